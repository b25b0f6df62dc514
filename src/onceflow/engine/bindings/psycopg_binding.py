"""Steps on `psycopg.Connection` (in a thread) and `psycopg.AsyncConnection`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import psycopg

from onceflow.db.driver_errors import is_connection_lost
from onceflow.engine.bindings.connection_stack import ConnectionStack
from onceflow.engine.bindings.face_life import FaceLife
from onceflow.engine.bindings.protocol import (
    ABANDON_TIMEOUT_S,
    Binding,
    SqlArgument,
)
from onceflow.engine.bindings.psycopg_face import FaceRules, PsycopgAsyncFace, PsycopgFace
from onceflow.engine.bindings.psycopg_physical import (
    Physical,
    PhysicalAsync,
    as_bytes,
    connect_options,
    first_text,
    new_name,
    reported_name,
    run_text,
    sever,
)

BUSY_S = 60.0  # how long a call of the engine's waits for one of the step's own on the same connection
LET_GO_S = 1.0  # how long a cancelled thread may take to notice before its socket is cut

T = TypeVar("T")


class PsycopgStep:
    """One step's use of one psycopg connection, from threads: the blocking methods, and the async ones around them."""

    def __init__(self, binding: PsycopgBinding, physical: Any, reused: bool, step: str) -> None:
        self._binding = binding
        self._physical = physical
        self._reused = reused
        self._life = FaceLife(step, binding.pgbouncer, binding.savepoint)
        self._face: Any = None
        self._name: bytes | None = None
        self._is_ended = self._is_kept = self._is_released = False

    def begin_blocking(self, text: str) -> None:
        before = reported_name(self._physical)
        try:
            self._run(text)
        except psycopg.Error as error:
            if not (self._reused and is_connection_lost(error)):
                raise
            self._renew()
            self._run(text)
        self._face = _make_face(self._binding.face_class, self._physical, self._life)
        self._name = new_name(self._physical, before)

    def face(self) -> Any:
        return self._face

    async def settle(self) -> bool:
        return self._name is not None and reported_name(self._physical) == self._name

    def explain(self, error: BaseException) -> BaseException:
        return self._life.explain(error)

    def call_blocking(self, sql: str, *args: SqlArgument) -> str | None:
        if not self._face.lock.acquire(timeout=BUSY_S):
            raise self._life.busy()
        try:
            self._life.check()
            return first_text(self._run(sql, args))
        finally:
            self._face.lock.release()

    def finish_blocking(self, text: str) -> None:
        self._life.check()
        if not self._face.lock.acquire(blocking=False):
            self._face.leave_step()
            raise self._life.still_running()
        try:
            is_busy = self._face.is_busy()
            self._face.leave_step()
            if is_busy:
                raise self._life.still_running()
            self._run(text)
        finally:
            self._face.lock.release()
        self._is_kept = not (self._life.spoiled or self._is_ended)
        self._is_ended = True

    def is_broken(self) -> bool:
        return bool(self._physical.closed)

    def abandon_blocking(self) -> None:
        if self._is_ended:
            return
        self._life.alive = False
        self._is_ended = True
        is_quiet = self._is_quiet()
        if self._face is not None:
            self._face.leave_step()
        if not is_quiet or self._life.spoiled:
            self._throw_away()
            return
        try:
            self._send("rollback")
            self._physical._prepared.clear()  # what was created in the step is gone, and plans on it with it
            self._is_kept = True
        except psycopg.Error:
            pass  # `release` closes the connection and the server rolls back

    def release(self) -> None:
        if self._is_released:
            return
        self._is_released = True
        keep = self._is_kept and not self._binding.stack.closed
        if not keep and self._is_ended:
            self._physical.close()
        self._binding.stack.give_back(self._physical if keep else None)

    async def begin(self, text: str) -> None:
        await self._in_thread(self.begin_blocking, text)

    async def call(self, sql: str, *args: SqlArgument) -> str | None:
        return await self._in_thread(self.call_blocking, sql, *args)

    async def finish(self, text: str) -> None:
        await self._in_thread(self.finish_blocking, text)
        self.release()

    async def abandon(self) -> None:
        if self._is_released:
            return
        try:
            # Not on the executor: all its threads may be held by the functions of abandoned steps.
            await asyncio.wait_for(asyncio.to_thread(self.abandon_blocking), 2 * ABANDON_TIMEOUT_S)
        except TimeoutError:
            sever(self._physical)
        finally:
            self.release()

    def _run(self, text: str, args: tuple[SqlArgument, ...] | None = None) -> Any:
        with self._physical.lock, self._life.noting():
            if self._is_ended:  # abandoned meanwhile; the connection may serve another step by now
                self._life.check()
            return self._send(text, args)

    def _send(self, text: str, args: tuple[SqlArgument, ...] | None = None) -> Any:
        physical = self._physical
        return physical.wait(run_text(physical.pgconn, text, None if args is None else as_bytes(args)))

    def _renew(self) -> None:
        """Replace a connection the server has closed while it was idle."""
        self._physical.close()
        physical = self._binding.connect_blocking()
        if self._is_ended:  # abandoned meanwhile
            physical.close()
            self._life.check()
        self._physical = physical

    def _locks(self) -> list[Any]:
        return [self._physical.lock] if self._face is None else [self._face.lock, self._physical.lock]

    def _is_quiet(self) -> bool:
        """Is no thread in the middle of something on the connection?"""
        for lock in self._locks():
            if not lock.acquire(blocking=False):
                return False
            lock.release()
        return not (self._face is not None and self._face.is_busy())

    def _throw_away(self) -> None:
        """Stop what a thread the step left behind is still doing, and close the connection."""
        with suppress(psycopg.Error):
            self._physical.cancel_safe(timeout=ABANDON_TIMEOUT_S)
        for lock in self._locks():
            if not lock.acquire(timeout=LET_GO_S):
                sever(self._physical)
                return
            lock.release()
        self._physical.close()

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._binding.executor, partial(work, *args))


class PsycopgBinding(Binding):
    """The psycopg connections of one process that serve `def` steps."""

    runs_in_thread = True
    savepoint = "with conn.transaction():"
    face_class: ClassVar[type[FaceRules]] = PsycopgFace
    step_class: ClassVar[type[PsycopgStep]] = PsycopgStep

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        super().__init__(dsn, limit, pgbouncer, executor)
        self.stack: ConnectionStack[Any] = ConnectionStack(limit)

    async def open(self, step: str = "") -> PsycopgStep:
        physical = await self.stack.take()
        if physical is not None:
            return self.step_class(self, physical, True, step)
        try:
            physical = await asyncio.to_thread(self.connect_blocking)
            return self.step_class(self, physical, False, step)
        except BaseException:
            self.stack.give_back(None)
            raise

    def connect_blocking(self) -> Any:
        """A new physical connection, outside the stack."""
        physical = Physical.connect(self.dsn, **connect_options(self.pgbouncer))
        physical.step_prepare_threshold = physical.prepare_threshold
        return physical

    async def close_all(self) -> None:
        for physical in self.stack.close():
            physical.close()


class PsycopgAsyncStep:
    """One step's use of one psycopg connection, on the event loop."""

    def __init__(self, binding: PsycopgAsyncBinding, physical: Any, reused: bool, step: str) -> None:
        self._binding = binding
        self._physical = physical
        self._reused = reused
        self._life = FaceLife(step, binding.pgbouncer, binding.savepoint)
        self._face: Any = None
        self._name: bytes | None = None
        self._is_over = False

    async def begin(self, text: str) -> None:
        before = reported_name(self._physical)
        try:
            await self._run(text)
        except psycopg.Error as error:
            if not (self._reused and is_connection_lost(error)):
                raise
            await self._physical.close()
            self._physical = await self._binding.connect()
            await self._run(text)
        self._face = _make_face(self._binding.face_class, self._physical, self._life)
        self._name = new_name(self._physical, before)

    def face(self) -> Any:
        return self._face

    async def settle(self) -> bool:
        return self._name is not None and reported_name(self._physical) == self._name

    def explain(self, error: BaseException) -> BaseException:
        return self._life.explain(error)

    async def call(self, sql: str, *args: SqlArgument) -> str | None:
        try:
            async with asyncio.timeout(BUSY_S):
                await self._face.lock.acquire()
        except TimeoutError:
            raise self._life.busy() from None
        try:
            self._life.check()
            return first_text(await self._run(sql, args))
        finally:
            self._face.lock.release()

    async def finish(self, text: str) -> None:
        self._life.check()
        is_busy = self._is_busy()
        self._face.leave_step()
        if is_busy:
            raise self._life.still_running()
        await self._run(text)
        await self._give_back(keep=not self._life.spoiled)

    def is_broken(self) -> bool:
        return bool(self._physical.closed)

    async def abandon(self) -> None:
        if self._is_over:
            return
        in_doubt = self._life.spoiled or self._is_busy()
        self._life.alive = False
        if self._face is not None:
            self._face.leave_step()
        keep = False
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                if in_doubt:
                    await self._physical.cancel_safe(timeout=ABANDON_TIMEOUT_S)
                else:
                    await self._run("rollback")
                    self._physical._prepared.clear()  # what was created in the step is gone, and plans on it with it
                    keep = True
        except (psycopg.Error, TimeoutError):
            pass  # the connection is closed below and the server rolls back
        finally:
            await self._give_back(keep)

    async def _run(self, text: str, args: tuple[SqlArgument, ...] | None = None) -> Any:
        physical = self._physical
        with self._life.noting():
            return await physical.wait(run_text(physical.pgconn, text, None if args is None else as_bytes(args)))

    def _is_busy(self) -> bool:
        return self._face is not None and (self._face.lock.locked() or self._face.is_busy())

    async def _give_back(self, keep: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        keep = keep and not self._binding.stack.closed
        if not keep:
            await self._physical.close()
        self._binding.stack.give_back(self._physical if keep else None)


class PsycopgAsyncBinding(Binding):
    """The psycopg connections of one process that serve `async def` steps."""

    savepoint = "async with conn.transaction():"
    face_class: ClassVar[type[FaceRules]] = PsycopgAsyncFace
    step_class: ClassVar[type[PsycopgAsyncStep]] = PsycopgAsyncStep

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        super().__init__(dsn, limit, pgbouncer, executor)
        self.stack: ConnectionStack[Any] = ConnectionStack(limit)

    async def open(self, step: str = "") -> PsycopgAsyncStep:
        physical = await self.stack.take()
        if physical is not None:
            return self.step_class(self, physical, True, step)
        try:
            return self.step_class(self, await self.connect(), False, step)
        except BaseException:
            self.stack.give_back(None)
            raise

    async def connect(self) -> Any:
        """A new physical connection, outside the stack."""
        physical = await PhysicalAsync.connect(self.dsn, **connect_options(self.pgbouncer))
        physical.step_prepare_threshold = physical.prepare_threshold
        return physical

    async def close_all(self) -> None:
        for physical in self.stack.close():
            await physical.close()


def _make_face(face_class: type[Any], physical: Any, life: FaceLife) -> Any:
    face = face_class(physical.pgconn)
    face.enter_step(physical, life)
    return face
