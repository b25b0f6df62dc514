"""What the server says of SQL steps' texts, and their groups: what SQL steps of one worker share."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceflow.authoring.step import Step
from onceflow.db.calls import run_sql_steps
from onceflow.db.guard import check_statement, spoils_session
from onceflow.db.sql_text import NO_ARRAYS, SqlForm, check_columns, make_form
from onceflow.db.tokens import mark_token, name_session
from onceflow.engine.bindings import Binding, StepConnection
from onceflow.engine.group import GroupCommitter

if TYPE_CHECKING:
    from onceflow.engine.group import Member
    from onceflow.engine.run_sql import SqlAttempt
    from onceflow.engine.run_step import Attempt

MAX_DOUBTS = 5  # of a text that the server takes, but that fails as a part of a call


class SqlForms:
    """The form of each SQL step, asked from the server once; None: it runs through its driver."""

    def __init__(self) -> None:
        self._forms: dict[Step[..., Any], SqlForm | None] = {}
        self._doubts: Counter[Step[..., Any]] = Counter()
        self._asking = asyncio.Lock()

    async def find(self, attempt: Attempt, binding: Binding) -> SqlForm | None:
        """Raises AuthoringError for a text that answers two columns of one name."""
        step = attempt.step
        if binding.pgbouncer:
            return None  # no call of one round trip: its message would not reach the session that its statement was prepared in
        if step not in self._forms:
            async with self._asking:
                if step not in self._forms:
                    self._forms[step] = await _ask(attempt, binding)
        return self._forms[step]

    def doubt(self, step: Step[..., Any]) -> None:
        """A call failed for what the text or its tables look like: they may have changed, so the server is asked again."""
        self._doubts[step] += 1
        if self._doubts[step] < MAX_DOUBTS:
            self._forms.pop(step, None)
        else:
            self._forms[step] = None


async def _ask(attempt: Attempt, binding: Binding) -> SqlForm | None:
    """The form of a step's text, which is prepared, and the form too; None when either cannot be: its driver tells why."""
    step = attempt.step
    assert step.text is not None
    try:
        check_statement(step.text)
        if spoils_session(step.text):
            return None
        conn = await binding.open(step.name)
    except Exception:
        return None
    form, columns = None, []
    try:
        await conn.begin(attempt.begin_text())
        described = await conn.face().prepare(step.text)
        parameters = [parameter.oid for parameter in described.get_parameters()]
        columns = [(column.name, column.type.oid) for column in described.get_attributes()]
        form = make_form(step.text, parameters, columns)
        if (tried := make_form(step.text, parameters, columns, NO_ARRAYS)) is not None:
            await conn.face().prepare(tried.text)
    except Exception:
        return None
    finally:
        await asyncio.shield(conn.abandon())
    check_columns(step.name, [name for name, _ in columns])
    return form


class SqlGroups(GroupCommitter):
    """Groups of SQL steps, a call each; no leader takes all that can wait, so that one is at the server while the next gathers."""

    async def commit_members(self, conn: StepConnection, take: Callable[[], Attempt | None], members: list[Member]) -> None:
        attempts: list[Attempt] = []
        while (attempt := take()) is not None:
            attempts.append(attempt)
            if len(attempts) >= attempt.services.settings.concurrency:
                break
        await run_call(conn, attempts, "")


async def run_call(conn: Any, attempts: list[Any], key: str) -> None:
    """Runs SQL steps in one transaction, and keeps their outputs. `key` names its session: of a step, or empty for a group."""
    first: SqlAttempt = attempts[0]
    session = name_session(first.services.worker, mark_token(first.record.claimed.ti, first.token, key))
    steps = json.dumps([attempt.describe() for attempt in attempts])
    call = run_sql_steps(steps, session, first.services.settings.max_value_bytes)
    outputs = json.loads(await conn.run_call(call.sql, *call.args))
    for attempt, output in zip(attempts, outputs, strict=True):
        attempt.output = output
