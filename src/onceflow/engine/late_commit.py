"""`commit_with`: the completing transaction of an external step, opened late and committed with its record."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onceflow.db.calls import render
from onceflow.db.driver_errors import is_connection_lost, is_stuck, translate
from onceflow.db.tokens import mark_token
from onceflow.engine.record import Record
from onceflow.engine.step_transaction import LET_COMMIT, REFUSE_COMMIT, adopt_token, find_idle_error
from onceflow.errors import AuthoringError, LeaseLost, LostContext, StepIdle

if TYPE_CHECKING:
    from onceflow.engine.place import Place


OPEN_TIMEOUT_S = 300.0


class CommitLost(Exception):
    """The completing transaction's connection died and nothing was committed: the step may run again. `is_inside`: before its end had been asked for."""

    def __init__(self, text: str, is_inside: bool = False) -> None:
        super().__init__(text)
        self.is_inside = is_inside


class LateCommit:
    """Both `with` (in a `def` step) and `async with` (in an `async def` step), once per step."""

    def __init__(self, place: Place, connection: type[Any]) -> None:
        services = place.task.services
        self._binding = services.binding(connection)
        self._token = place.task.claimed.token
        self._opened = 0.0
        self._place = place
        self._conn: Any = None
        self._failed = self._is_over = False
        if self._binding.runs_in_thread == place.is_async:
            raise AuthoringError(
                f"commit_with in step {place.step_key}: {connection.__module__}.{connection.__qualname__} is of the other colour; "
                "an async step takes an async connection, a def step a blocking one"
            )

    async def _open(self) -> Any:
        """Waits for a database that is away: nothing has been written yet."""
        services = self._place.task.services
        deadline, pause_s = time.monotonic() + OPEN_TIMEOUT_S, 0.002
        while True:
            self._token = await self._place.task.claimed.settled_token()
            try:
                self._conn = await self._binding.open(self._place.step_key)
                mark = mark_token(self._place.task.claimed.ti, self._token, self._place.step_key)
                await self._begin(f"{services.begin_text(mark, 'read committed')}; {REFUSE_COMMIT}")
                self._opened = time.monotonic()
                break
            except Exception as error:
                await self.abandon()
                if not is_connection_lost(error) or time.monotonic() > deadline:
                    raise
            pause_s = min(2 * pause_s, 1.0)
            await asyncio.sleep(pause_s * random.random())
        if self._is_over:  # its step was cancelled, or past its time limit, while its thread waited here
            await self.abandon()
            raise LostContext(f"commit_with in step {self._place.step_key}: the step is over")
        return self._conn.face()

    async def _begin(self, text: str) -> None:
        """Not on the executor of the steps: all its threads may be held by steps that wait for a connection."""
        if self._binding.runs_in_thread:
            await asyncio.to_thread(self._conn.begin_blocking, text)
        else:
            await self._conn.begin(text)

    async def _end(self, text: str) -> None:
        if self._binding.runs_in_thread:
            await asyncio.to_thread(self._conn.finish_blocking, text)
            self._conn.release()
        else:
            await self._conn.finish(text)

    def __enter__(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self._open(), self._place.task.loop).result()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._failed = kind is not None

    async def __aenter__(self) -> Any:
        return await self._open()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._failed = kind is not None

    @property
    def connection(self) -> Any:
        """That of the open transaction; None before the block is entered, and when the step is over."""
        return self._conn if self._opened and not self._is_over else None

    async def is_outdated(self, error: BaseException) -> bool:
        """Was something sent with a token that another branch had replaced since?"""
        return isinstance(translate(error), LeaseLost) and await self._place.task.claimed.settled_token() != self._token

    def explain(self, error: BaseException) -> BaseException:
        """The error to report in place of one of the block's."""
        return self._conn.explain(error) if self._conn is not None else error

    async def find_loss(self, record: Record, error: BaseException) -> Exception | None:
        """CommitLost or StepIdle, if the error says that the open transaction's connection is gone; None for any other, so for one of the user's own connections."""
        conn = self.connection
        if conn is None or not is_connection_lost(error):
            return None
        if not conn.is_broken() and not is_stuck(error):
            with suppress(Exception):
                await conn.call("select 1")  # the server's last word may come before the connection is seen to be closed
            if not conn.is_broken():
                return None
        return self._find_idle_error(record, error) or CommitLost(f"step {record.key} of {record.claimed} lost the connection of commit_with ({error})", True)

    def _find_idle_error(self, record: Record, error: BaseException) -> StepIdle | None:
        idle_s = self._place.task.services.settings.step_idle_s
        return find_idle_error(error, time.monotonic() - self._opened, idle_s, record.name, record.claimed)

    async def finish(self, record: Record, output: str, started: float) -> str:
        """Commits the block's writes with the step's record. Answers the recorded output's text."""
        if not self._opened:
            raise AuthoringError(
                f"step {record.name}: commit_with(...) opens nothing by itself; write `with commit_with(...) as conn:` (async with, in async def)"
            )
        if self._conn is None or self._failed:
            raise AuthoringError(f"step {record.name}: its commit_with block failed, but the step returned; let the error pass")
        adopt = adopt_token(record.claimed.ti, record.key, self._token, record.claimed.token)
        self._token = record.claimed.token
        record.claimed.is_ending = record.whole
        complete = render(record.complete(output, int((time.perf_counter() - started) * 1e6)))
        text = f"set constraints all immediate; {adopt}{complete}; {LET_COMMIT}; commit"
        try:
            await self._end(text)
        except Exception as error:
            told = self.explain(error)
            await self.abandon()
            if told is not error:
                raise told from told.__cause__
            own = translate(error)
            is_stale = isinstance(own, LeaseLost) and await record.claimed.settled_token() != self._token
            if own is not None and not is_stale:
                raise own from error
            if own is None and not is_connection_lost(error):
                raise
            recorded = await self._place.task.services.resolve(record, self._token)
            if recorded is None or recorded.state != "success":
                if idle := self._find_idle_error(record, error):
                    raise idle from error
                raise CommitLost(f"step {record.key} of {record.claimed}: its commit was lost with its connection ({error})") from error
            return recorded.output
        return output

    async def give_up(self, record: Record) -> None:
        """The step is over without it, also for a thread that still waits for its connection."""
        self._is_over = True
        is_lost = self._conn is not None and self._conn.is_broken()
        await self.abandon()
        if is_lost:  # perhaps at our end only: then the server keeps its locks until its session is ended
            await self._place.task.services.resolve(record, self._token, rotate=False)

    async def abandon(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.abandon()
