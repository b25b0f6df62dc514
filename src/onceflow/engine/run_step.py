"""Runs one try of a step and commits its outcome. The heart of the promise: effect and record in one transaction."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from onceflow.authoring.connection_kinds import plain_class
from onceflow.authoring.context import here
from onceflow.authoring.step import Step
from onceflow.codec import encode
from onceflow.db.calls import Call, render
from onceflow.db.driver_errors import is_connection_lost, is_stale_plan, is_stuck, sqlstate_of, translate
from onceflow.db.sql_text import check_columns
from onceflow.db.tokens import mark_token
from onceflow.engine.bindings import Binding, StepConnection
from onceflow.engine.isolated import run_isolated
from onceflow.engine.late_commit import CommitLost
from onceflow.engine.record import Record
from onceflow.engine.services import Services
from onceflow.engine.step_transaction import LET_COMMIT, REFUSE_COMMIT, adopt_token, find_idle_error
from onceflow.engine.user_code import await_step, call_step
from onceflow.errors import AlreadyRecorded, LeaseLost, StepDisconnected, StepTimeout

log = logging.getLogger("onceflow.step")
MAX_LOSSES = 12  # of the step's own connection while its function runs: restarts of a server are survived, a step that kills it is told
MAX_REPLAYS = 50  # of serialization failures, deadlocks and lost connections within one try
UNREACHABLE_S = 300.0  # how long the steps' database may refuse connections while the engine's answers


class Attempt:
    """One transaction of a step: how far it came, so that an error can be read."""

    def __init__(self, services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> None:
        self.services, self.record, self.step, self.args, self.kwargs, self.place = services, record, step, args, kwargs, place.anew()
        self.token = record.claimed.token
        record.claimed.is_ending = False  # not any more, if one before this did not get through
        self.started = time.perf_counter()
        self.is_begun = False
        self.is_finishing = False
        self.is_broken = False
        self.output = "null"

    def begin_text(self) -> str:
        return f"{self.services.begin_text(self.mark, self.step.isolation)}; {REFUSE_COMMIT}"

    @property
    def mark(self) -> str:
        """What names the step in its transaction."""
        return mark_token(self.record.claimed.ti, self.token, self.record.key)

    def finish_text(self) -> str:
        """Deferred constraints first (user rows before engine rows), then the record, then COMMIT: one message."""
        adopt = adopt_token(self.record.claimed.ti, self.record.key, self.token, self.record.claimed.token)
        return f"set constraints all immediate; {adopt}{self.complete_text()}; {LET_COMMIT}; commit"

    def complete_text(self) -> str:
        return render(self.complete_call())

    def complete_call(self) -> Call:
        """The record, with the lease's present token: from here on the commit may be on its way."""
        self.mark_finishing()
        return self.record.complete(self.output, elapsed_us(self.started))

    def mark_finishing(self) -> None:
        self.is_finishing = True
        self.token = self.record.claimed.token
        self.record.claimed.is_ending = self.record.whole

    def is_lost(self, error: Exception) -> bool:
        """Is that our connection's loss? The user's function may well raise an OSError that has to do with other things."""
        if not self.is_begun:
            return is_connection_lost(error) or isinstance(error, TimeoutError) or sqlstate_of(error) == "53300"
        # What the server said of its own accord (a SQLSTATE) may come before the connection is seen to be closed.
        return is_connection_lost(error) and (self.is_finishing or self.is_broken or sqlstate_of(error) is not None or is_stuck(error))

    def _mark_begun(self) -> None:
        self.is_begun = True
        self.started = time.perf_counter()

    async def run(self, binding: Binding) -> str:
        """The committed output's text. Any error: nothing of it was committed, unless the connection died while finishing."""
        conn = await binding.open(self.step.name)
        self.place.connection = conn
        try:
            if binding.runs_in_thread:
                await self._run_in_thread(conn)
            else:
                await self._run_on_loop(conn)
        except BaseException as error:
            self.is_broken = conn.is_broken()
            await asyncio.shield(conn.abandon())
            if (told := conn.explain(error)) is not error:
                raise told from told.__cause__
            raise
        finally:
            self.place.connection = None
        return self.output

    async def _run_on_loop(self, conn: StepConnection) -> None:
        await conn.begin(self.begin_text())
        self._mark_begun()
        await self.call_function(conn)
        await conn.finish(self.finish_text())

    async def call_function(self, conn: StepConnection) -> None:
        """Runs the user's function in the open transaction and keeps its result's text."""
        if self.step.text is not None:
            rows = await conn.face().fetch(self.step.text, *self.args)
            check_columns(self.step.name, list(rows[0].keys()) if rows else [])
            value: Any = [dict(row) for row in rows]
        else:
            value = await invoke(self.services, self.step, (conn.face(), *self.args), self.kwargs, self.place)
        self.output = encode(value, where=self.step.name, limit=self.services.settings.max_value_bytes)

    async def _run_in_thread(self, conn: Any) -> None:
        def work() -> None:
            conn.begin_blocking(self.begin_text())
            self._mark_begun()
            value = self.step.fn(conn.face(), *self.args, **self.kwargs)
            self.output = encode(value, where=self.step.name, limit=self.services.settings.max_value_bytes)
            conn.finish_blocking(self.finish_text())

        await in_thread(self.services, self.step, work, self.place)
        conn.release()


async def run_transactional(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    """Runs a transactional (or SQL) step until it is committed once; raises the step's own error, or LeaseLost."""
    binding = services.binding(step_connection_class(step))
    if step.group_commit:
        attempt = Attempt(services, record, step, args, kwargs, place)
        services.share_commit(record, True)
        if await services.groups.submit(attempt, binding):
            return attempt.output
        services.share_commit(record, False)
        if attempt.is_finishing and (recorded := await services.resolve(record, attempt.token)) is not None and recorded.state == "success":
            return recorded.output
    replays, losses, refused_s, pause_s = 0, 0, 0.0, 0.0
    while True:
        attempt = Attempt(services, record, step, args, kwargs, place)
        try:
            return await attempt.run(binding)
        except Exception as error:
            committed = await judge_error(attempt, error)
            if committed is not None:
                return committed
            if replays >= MAX_REPLAYS or refused_s >= UNREACHABLE_S:
                raise
            losses += attempt.is_begun and attempt.is_lost(error)
            if losses > MAX_LOSSES:
                raise disconnected(record, losses) from error
        pause_s = min(max(0.002, 2 * pause_s), 1.0)
        if attempt.is_begun:
            replays += 1
        else:
            refused_s += pause_s
        await asyncio.sleep(pause_s * random.random())


async def judge_error(attempt: Attempt, error: Exception) -> str | None:
    """What an error of an attempt means: the output when it was committed after all, None to run it again; else raises.

    A lost connection waits here until the engine's own is back: an outage of the database is nobody's failed try.
    """
    own = translate(error)
    if isinstance(own, LeaseLost) and await attempt.record.claimed.settled_token() != attempt.token:
        return None  # resolve_commit of another branch gave the lease a new token meanwhile
    if own is not None and not (isinstance(own, AlreadyRecorded) and attempt.is_finishing):
        raise own from error
    if own is not None or attempt.is_lost(error):
        recorded = await attempt.services.resolve(attempt.record, attempt.token, rotate=attempt.is_finishing)
        if recorded is not None:
            if recorded.state != "success":
                raise AlreadyRecorded(f"step {attempt.record.key} of {attempt.record.claimed} is recorded as {recorded.state}") from error
            return recorded.output
        if not attempt.is_begun:
            return None
        open_s, idle_s = time.perf_counter() - attempt.started, attempt.services.settings.step_idle_s
        if idle := find_idle_error(error, open_s, idle_s, attempt.step.name, attempt.record.claimed):
            raise idle from error
    elif sqlstate_of(error) not in ("40001", "40P01") and not is_stale_plan(error):
        raise error
    return None


async def run_external(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    """Runs an external step: `started` is committed before, the outcome after. A crash between reads "outcome unknown", and so does the loss of the
    connection of commit_with: the step runs again within its try."""
    losses = 0
    for replay in range(MAX_REPLAYS):
        try:
            return await _run_external_once(services, record, step, args, kwargs, place.anew())
        except CommitLost as lost:
            losses += lost.is_inside
            if losses > MAX_LOSSES:
                raise disconnected(record, losses) from lost
            log.warning("%s; running it again", lost)
        await asyncio.sleep(min(0.002 * 2**replay, 1.0) * random.random())
    return await _run_external_once(services, record, step, args, kwargs, place.anew())


async def _run_external_once(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    await services.record(record, record.start)
    started = time.perf_counter()
    try:
        if step.isolate == "process":
            value = await run_isolated(step, args, kwargs, place)
        else:
            try:
                value = await invoke(services, step, args, kwargs, place)
            finally:
                await place.close()
        output = encode(value, where=step.name, limit=services.settings.max_value_bytes)
        if place.late_commit is not None:
            committed: str = await place.late_commit.finish(record, output, started)
            return committed
    except BaseException as error:
        if place.late_commit is not None:
            told = await place.late_commit.find_loss(record, error) or place.late_commit.explain(error)
            await asyncio.shield(place.late_commit.give_up(record))
            if told is not error:
                raise told from told.__cause__ or error
            if await place.late_commit.is_outdated(error):
                raise CommitLost(f"step {record.key} of {record.claimed}: the lease has got a new token meanwhile") from error
        raise
    recorded: str | None = await services.record(record, lambda: record.complete(output, elapsed_us(started)))
    return output if recorded is None else recorded


async def invoke(services: Services, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> Any:
    """Calls the user's function where it belongs: a coroutine here, a plain function in a thread; within its time limit."""
    if not step.is_async:
        return await in_thread(services, step, lambda: step.fn(*args, **kwargs), place)
    token = here.set(place)
    try:
        async with asyncio.timeout(timeout_s(step)) as limit:
            return await await_step(step.fn(*args, **kwargs), f"step {step.name}", place.task)
    except TimeoutError as error:
        if limit.expired():
            raise timed_out(step) from error
        raise
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise RuntimeError(f"step {step.name} was cancelled by its own code") from error
    finally:
        here.reset(token)


async def in_thread(services: Services, step: Step[..., Any], work: Callable[[], Any], place: Any) -> Any:
    """Runs `work` in a thread with the step's place. A thread cannot be killed: past its limit it is left to itself."""
    context = contextvars.copy_context()
    context.run(here.set, place)
    future = asyncio.get_running_loop().run_in_executor(services.threads, context.run, call_step, work, f"step {step.name}", place.task)
    future.add_done_callback(lambda f: f.cancelled() or f.exception())  # past its limit, or cancelled, nobody else will ask for it
    try:
        async with asyncio.timeout(timeout_s(step)) as limit:
            return await asyncio.shield(future)
    except TimeoutError as error:
        if limit.expired():
            raise timed_out(step) from error
        raise


def disconnected(record: Record, losses: int) -> StepDisconnected:
    return StepDisconnected(
        f"step {record.name} of {record.claimed} lost its connection {losses} times while it ran; its writes were rolled back each time. Does the step "
        "end its own session, or a limit of the server (transaction_timeout, a proxy) end it? Split the step, or raise that limit."
    )


def timeout_s(step: Step[..., Any]) -> float | None:
    return step.execution_timeout.total_seconds() if step.execution_timeout else None


def timed_out(step: Step[..., Any]) -> StepTimeout:
    return StepTimeout(f"step {step.name} exceeded its execution_timeout of {timeout_s(step)} s; its writes were rolled back")


def elapsed_us(started: float) -> int:
    return int((time.perf_counter() - started) * 1_000_000)


@lru_cache(maxsize=1024)  # reading a signature costs a tenth of a short step
def step_connection_class(step: Step[..., Any]) -> Any:
    """The class of the step's connection; SQL steps run on asyncpg."""
    if step.text is not None:
        import asyncpg

        return asyncpg.Connection
    return plain_class(step.hints[next(iter(inspect.signature(step.fn).parameters))])
