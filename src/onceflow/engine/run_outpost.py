"""Steps whose effect lives in another Postgres: `@step(database="name")`. Exactly once there too.

An outpost there (outpost/install.sql) keeps one row per step. Before an attempt begins, its token is committed into that
row, so that no earlier attempt can commit any more; the effect's transaction checks the token and records the output.
The ledger here is written after: a crash between the two is reconciled by the next attempt, which finds the output there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import uuid
from contextlib import suppress
from typing import Any

from onceflow.authoring.step import Step
from onceflow.db.calls import quote_text
from onceflow.db.driver_errors import sqlstate_of, translate
from onceflow.engine.bindings import Binding
from onceflow.engine.record import Record
from onceflow.engine.run_step import MAX_REPLAYS, Attempt, elapsed_us, step_connection_class
from onceflow.engine.services import Services
from onceflow.errors import NoDatabase, SettingsError

log = logging.getLogger("onceflow.step")


class OutpostAttempt(Attempt):
    """One transaction in the other database, with a token of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.token = str(uuid.uuid4())
        self.place.database = self.step.database

    def begin_text(self) -> str:
        return self.services.begin_text(self.token, self.step.isolation)

    def finish_text(self) -> str:
        self.is_finishing = True
        key = f"{self.record.claimed.ti}, {self.record.claimed.epoch}, {quote_text(self.record.key)}"
        record = f"select onceflow_outpost.record_step({key}, {quote_text(self.token)}, {quote_text(self.output)})"
        return f"set constraints all immediate; {record}; commit"


async def run_outpost(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    """Runs the step until it is committed there once, then records it here. Raises the step's own error, or LeaseLost."""
    binding = services.binding(step_connection_class(step), find_dsn(services, step))
    await services.record(record, record.start)
    started = time.perf_counter()
    replays, in_doubt, pause_s = 0, False, 0.0
    while True:
        attempt = OutpostAttempt(services, record, step, args, kwargs, place)
        try:
            await asyncio.sleep(pause_s * random.random())
            found = await _raise_fence(binding, attempt)
            in_doubt = False
            output = found if found is not None else await attempt.run(binding)
            break
        except asyncio.CancelledError:
            if in_doubt or attempt.is_finishing:
                await _look_after(services, record, binding, OutpostAttempt(services, record, step, args, kwargs, place))
            raise
        except Exception as error:
            if own := translate(error):
                raise own from error
            in_doubt = in_doubt or (attempt.is_finishing and attempt.is_lost(error))
            if in_doubt:  # no failure may be recorded of what may have been committed: only the other database can tell
                log.warning("step %s of %s: is it committed in database %r? Asking again (%s)", record.key, record.claimed, step.database, error)
            elif replays >= MAX_REPLAYS or not (attempt.is_lost(error) or sqlstate_of(error) in ("40001", "40P01")):
                raise
        replays, pause_s = replays + 1, min(max(0.002, 2 * pause_s), 1.0)
    recorded: str | None = await services.record(record, lambda: record.complete(output, elapsed_us(started)))
    return output if recorded is None else recorded


async def _look_after(services: Services, record: Record, binding: Binding, attempt: OutpostAttempt) -> None:
    """The step was cancelled while its commit was on its way: what was committed is recorded here, so that its body gets it after all."""
    with suppress(Exception):
        if (output := await _raise_fence(binding, attempt)) is not None:
            await services.record(record, lambda: record.complete(output, elapsed_us(attempt.started)))


async def _raise_fence(binding: Binding, attempt: OutpostAttempt) -> str | None:
    """Makes this the only attempt that may commit; the output when an earlier one has committed already."""
    held = attempt.record.claimed
    conn = await binding.open(attempt.step.name)
    try:
        await conn.begin(attempt.begin_text())
        key = f"{held.ti}, {attempt.place.task.history.base_epoch}, {held.epoch}, {quote_text(attempt.record.key)}"
        answer = await conn.call(f"select onceflow_outpost.raise_fence({key}, {held.fence}, {quote_text(attempt.token)})::text")
        await conn.finish("commit")
    except BaseException as error:
        await asyncio.shield(conn.abandon())
        if sqlstate_of(error) in ("3F000", "42883"):
            raise NoDatabase(
                f"database {attempt.step.database!r} of step {attempt.step.name} has no outpost: run `onceflow db outpost {attempt.step.database}` once"
            ) from error
        raise
    found = json.loads(answer or "{}")
    return found["output"] if found["done"] else None


def find_dsn(services: Services, step: Step[..., Any]) -> str:
    name = step.database or ""
    known = dict(services.settings.databases)
    if name not in known:
        raise SettingsError(
            f"step {step.name} writes to database {name!r}, which is not known here: set ONCEFLOW_DATABASE_{name.upper()} to its DSN (known: {sorted(known)})"
        )
    return known[name]
