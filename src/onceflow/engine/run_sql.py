"""Runs an SQL step inside Postgres: its SQL, its record and the commit are one call, without Python in between.

Where that would not be exact (db/sql_text), and behind a pooler, it runs through its driver, like any transactional step.
"""

from __future__ import annotations

import time
from typing import Any

from onceflow.authoring.step import Step
from onceflow.db.driver_errors import sqlstate_of
from onceflow.db.sql_text import Slots, SqlForm
from onceflow.db.tokens import prove_token
from onceflow.engine.bindings import StepConnection
from onceflow.engine.record import Record
from onceflow.engine.run_step import Attempt, judge_error, run_transactional, step_connection_class
from onceflow.engine.services import Services
from onceflow.engine.sql_forms import run_call

# What a call may fail for where the text by itself would not, or would otherwise: 0A not supported inside a function, 42 the text, its names and types
# (they may have changed), 54 a limit of the encoding, 57014 a statement_timeout that counted from the call's beginning.
UNFIT = ("0A", "42", "54", "57014")


class SqlAttempt(Attempt):
    """One transaction of an SQL step as one call. Its commit is on its way as soon as it was sent."""

    def __init__(self, form: SqlForm, slots: Slots, *given: Any) -> None:
        super().__init__(*given)
        self.form, self.slots = form, slots

    async def _run_on_loop(self, conn: StepConnection) -> None:
        await run_call(conn, [self], self.record.key)

    def describe(self) -> dict[str, Any]:
        """What run_sql_steps is told of it: with a proof that is good for this try alone in place of the token."""
        self.is_begun = self.record.is_asked = True
        self.mark_finishing()
        record, (texts, moments) = self.record, self.slots
        return {
            "text": self.form.text, "answers": self.form.answers, "args": texts, "moments": moments, "mark": self.mark, "run": record.claimed.run,
            "ti": record.claimed.ti, "proof": prove_token(self.token, f"{record.key}/{record.try_number}/in postgres"), "key": record.key, "name": record.name,
            "try": record.try_number, "inputs": record.inputs, "inputs_hash": record.inputs_hash, "whole": record.whole,
        }  # fmt: skip


async def run_sql(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    """Runs an SQL step until it is committed once; answers its output, or raises its own error, or LeaseLost."""
    binding = services.binding(step_connection_class(step))
    given = services, record, step, args, kwargs, place
    form = await services.sql_forms.find(Attempt(*given), binding)
    slots = form.bind(args) if form is not None else None
    if form is None or slots is None:
        return await run_transactional(*given)
    if step.group_commit:
        attempt = SqlAttempt(form, slots, *given)
        services.share_commit(record, True)
        if await services.sql_groups.submit(attempt, binding):
            return attempt.output
        services.share_commit(record, False)
        if attempt.is_finishing and (recorded := await services.resolve(record, attempt.token)) is not None and recorded.state == "success":
            return recorded.output
    attempt = SqlAttempt(form, slots, *given)
    try:
        return await attempt.run(binding)
    except Exception as error:
        if (sqlstate_of(error) or "").startswith(UNFIT):
            services.sql_forms.doubt(step)
        else:
            attempt.started = time.perf_counter()  # a connection lost in the middle of a long call was not idle
            committed = await judge_error(attempt, error)
            if committed is not None:
                return committed
    return await run_transactional(*given)
