"""Group commit for transactional steps that ask for it (`group_commit=True`): many small ones share one transaction.

The trade, stated in docs/guarantees.md: members see each other's uncommitted rows, and one xid stands for several steps.
There is no savepoint on the way: when any member fails, nothing of the group happened, and each runs again alone. Nor can
a member end the transaction for all by a COMMIT that the guard does not see: the server refuses it (sql/complete_group.sql).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections import deque
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from onceflow.db.calls import complete_group, quote_text, render
from onceflow.db.driver_errors import is_connection_lost
from onceflow.db.tokens import mark_token
from onceflow.engine.bindings import Binding, StepConnection
from onceflow.engine.step_transaction import LET_COMMIT, REFUSE_COMMIT
from onceflow.errors import LeaseLost

if TYPE_CHECKING:
    from onceflow.engine.run_step import Attempt

    Member = tuple[Attempt, asyncio.Future[bool]]

GROUP_S = 0.02  # no further member joins a transaction that has been open for that long
LEADERS = 2  # groups under way at a time: one at the server while the next gathers


class GroupCommitter:
    """Adaptive: a group is whatever waits when a leader is free, so a shallow queue commits one by one."""

    def __init__(self, group_max: int) -> None:
        self._group_max = group_max
        self._waiting: dict[Binding, deque[Member]] = {}
        self._leaders: dict[Binding, int] = {}

    async def submit(self, attempt: Attempt, binding: Binding) -> bool:
        """Runs the attempt in a group. True: committed. False: run it alone, unless the ledger has it (`is_finishing`: its commit was on its way).

        A caller that is cancelled leaves the queue; of a group that is under way it hears the end first, as that may commit its attempt too.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(binding, deque()).append((attempt, answer))
        if self._leaders.get(binding, 0) < LEADERS:
            self._leaders[binding] = self._leaders.get(binding, 0) + 1
            asyncio.get_running_loop().create_task(self._lead(binding), context=contextvars.Context())
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not any(waiting is answer for _, waiting in self._waiting[binding]):
                await asyncio.wait([answer])
            answer.cancel()
            raise

    async def _lead(self, binding: Binding) -> None:
        queue = self._waiting[binding]
        try:
            await asyncio.sleep(0)  # let everything that is ready now join
            while queue:
                if queue[0][1].done():
                    queue.popleft()  # its caller was cancelled meanwhile
                elif len(queue) == 1:
                    _answer(queue, False)
                else:
                    await self._run_group(binding, queue)
        finally:
            self._leaders[binding] -= 1
            _answer(queue, False)  # whatever ended this leader, nobody waits for ever

    async def _run_group(self, binding: Binding, queue: deque[Member]) -> None:
        members: list[Member] = []
        is_committed = False
        conn = None
        try:
            conn = await binding.open("group commit")
            started = time.perf_counter()

            def take() -> Attempt | None:
                while queue and queue[0][1].done():
                    queue.popleft()
                if not queue or len(members) >= self._group_max or (members and time.perf_counter() - started > GROUP_S):
                    return None
                members.append(queue.popleft())
                return members[-1][0]

            await self.commit_members(conn, take, members)
            is_committed = True
        except BaseException as error:
            if conn is None:
                _answer(queue, False)  # alone, each waits for the database, or is told why there is no connection
            else:
                await asyncio.shield(conn.abandon())
                if members and is_connection_lost(error):
                    await _end_lost_session(members[0][0])
            if not isinstance(error, Exception):
                raise
        finally:
            _answer(members, is_committed)

    async def commit_members(self, conn: StepConnection, take: Callable[[], Attempt | None], members: list[Member]) -> None:
        """Runs what `take` gives and puts into `members`, one after the other, and commits it all."""
        mark = await run_members(conn, take)
        await conn.finish(group_text(mark, [attempt for attempt, _ in members]))


async def _end_lost_session(leader: Attempt) -> None:
    """The server may not have noticed yet, and whoever runs alone next would wait for the locks of the lost transaction."""
    with suppress(LeaseLost):
        await leader.services.resolve(replace(leader.record, key=""), leader.token, rotate=False)


def _answer(members: MutableSequence[Member], is_committed: bool) -> None:
    for _, answer in members:
        if not answer.done():
            answer.set_result(is_committed)
    members.clear()


async def run_members(conn: StepConnection, take: Callable[[], Attempt | None]) -> str:
    """Runs the members' functions one after the other in one transaction; answers what marks it at the end.

    The mark names no member, as each may have written any row; only where tables are tracked each gets its own.
    """
    attempt = take()
    assert attempt is not None, "a leader starts a group only for waiting members"
    mark = mark_token(attempt.record.claimed.ti, attempt.token, "")
    await conn.begin(f"{attempt.services.begin_text(mark, attempt.step.isolation)}; {REFUSE_COMMIT}")
    while attempt is not None:
        if attempt.services.tracks:
            before, mark = mark, attempt.mark
            await conn.call(f"{check_text(before)}, set_config('onceflow.step', {quote_text(mark)}, true)")
        attempt.place.connection = conn
        try:
            await attempt.call_function(conn)
        finally:
            attempt.place.connection = None
        if not await conn.settle():  # it has rolled back for all: the next must not write outside of the group's transaction
            await conn.call(check_text(mark))
        attempt = take()
    return mark


def check_text(mark: str) -> str:
    """SQL that raises when a member has ended the shared transaction."""
    return f"select onceflow.check_mark({quote_text(mark)}, 'of a group')::text"


def group_text(mark: str, attempts: list[Attempt]) -> str:
    """The end of a group as one message: user rows before engine rows, then the records in one call, then COMMIT."""
    group = []
    for attempt in attempts:
        call = attempt.complete_call()
        group.append([attempt.mark, call.name, *call.args])
    return f"set constraints all immediate; {render(complete_group(mark, json.dumps(group)))}; {LET_COMMIT}; commit"
