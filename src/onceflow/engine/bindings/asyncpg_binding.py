"""Steps on `asyncpg.Connection`: the fastest kind, and the only one without a thread or a second layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import asyncpg
from asyncpg.connection import _ConnectionProxy  # what isinstance(_, Connection) asks
from asyncpg.transaction import Transaction, TransactionState

from onceflow.db.driver_errors import is_connection_lost
from onceflow.db.link import keep_alive, session_settings
from onceflow.engine.bindings.connection_stack import ConnectionStack
from onceflow.engine.bindings.face_life import FaceLife
from onceflow.engine.bindings.protocol import (
    ABANDON_TIMEOUT_S,
    APPLICATION_NAME,
    CLEAN_SESSION,
    Binding,
    SqlArgument,
    StepConnection,
)

_TAKE_SQL = frozenset({"execute", "executemany", "fetch", "fetchval", "fetchrow", "fetchmany", "prepare", "cursor", "copy_from_query"})
_REFUSED = ("close", "terminate", "reset")
_SPOILING = ("set_type_codec", "set_builtin_type_codec", "reset_type_codec")  # codecs stay with the connection


class _Physical(asyncpg.Connection):
    """A connection that shows the step's face, not itself, to the user's listeners."""

    __slots__ = ("face", "is_clean")
    face: Any
    is_clean: bool  # has no step left anything in the session since it was opened, or cleaned?

    def _unwrap(self) -> Any:
        return self.face


class AsyncpgFace(_ConnectionProxy):
    """The connection a step sees: asyncpg's, with its SQL checked, and dead when the step is over.

    `transaction()` makes a savepoint in the step's transaction. A type codec set here costs the connection: it is
    closed when the step ends.
    """

    __slots__ = ("_con", "_life")

    def __init__(self, con: Any, life: FaceLife) -> None:
        self._con = con
        self._life = life

    async def copy_records_to_table(self, table_name: str, *args: Any, **options: Any) -> Any:
        """As asyncpg's; the text of `where` is checked like any statement."""
        return await self._copy_in("copy_records_to_table", table_name, *args, **options)

    async def copy_to_table(self, table_name: str, *args: Any, **options: Any) -> Any:
        """As asyncpg's; the text of `where` is checked like any statement."""
        return await self._copy_in("copy_to_table", table_name, *args, **options)

    async def _copy_in(self, name: str, *args: Any, **options: Any) -> Any:
        if where := options.get("where"):
            self._life.check_text(where)
        with self._life:
            return await getattr(self._con, name)(*args, **options)

    def __repr__(self) -> str:
        return f"<connection of step {self._life.step!r}{'' if self._life.alive else ', which is over'}>"


def _sql_of(args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    text = args[0] if args else options.get("query", options.get("command"))
    return text if isinstance(text, str) else None


def _pass_on(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the face that checks and then calls the connection's own."""

    def check(face: AsyncpgFace, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if name in _TAKE_SQL and (text := _sql_of(args, options)) is not None:
            face._life.check_text(text)
        elif name in _SPOILING:
            face._life.spoiled = True

    @functools.wraps(original)
    async def call_async(self: AsyncpgFace, *args: Any, **options: Any) -> Any:
        check(self, args, options)
        with self._life:
            return await original(self._con, *args, **options)

    @functools.wraps(original)
    def call(self: AsyncpgFace, *args: Any, **options: Any) -> Any:
        check(self, args, options)
        with self._life:
            return original(self._con, *args, **options)

    return call_async if inspect.iscoroutinefunction(original) else call


def _refuse(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(self: AsyncpgFace, *args: Any, **options: Any) -> Any:
        raise self._life.refuse(f"{name}()")

    return refuse


for _name, _method in inspect.getmembers(asyncpg.Connection, inspect.isfunction):
    if not _name.startswith("_") and _name not in vars(AsyncpgFace):
        setattr(AsyncpgFace, _name, (_refuse if _name in _REFUSED else _pass_on)(_name, _method))


class AsyncpgStep:
    """One step's use of one asyncpg connection."""

    def __init__(self, binding: AsyncpgBinding, con: Any, reused: bool, step: str) -> None:
        self._binding = binding
        self._con = con
        self._reused = reused
        self._life = FaceLife(step, binding.pgbouncer, binding.savepoint)
        self._name: str | None = None
        self._is_over = False

    async def run_call(self, sql: str, *args: SqlArgument) -> str | None:
        """Instead of begin, face and finish: one statement that is a transaction by itself, on a clean session which it leaves clean."""
        if not self._con.is_clean:
            await self._con.execute(CLEAN_SESSION)
        self._con.is_clean = False
        value = await self.call(sql, *args)
        self._con.is_clean = True
        await self._give_back(False)
        return value

    async def begin(self, text: str) -> None:
        self._con.is_clean = False
        before = self._reported_name()
        try:
            await self._con.execute(text)
        except Exception as error:
            if not (self._reused and is_connection_lost(error)):
                raise
            self._con.terminate()
            self._con = await self._binding.connect()
            await self._con.execute(text)
        # asyncpg refuses transaction() where it did not send the BEGIN itself; this lets it make savepoints.
        outer: Any = Transaction(self._con, None, False, False)
        outer._state = TransactionState.STARTED
        self._name = name if (name := self._reported_name()) != before else None
        self._con._top_xact = outer
        self._con.face = AsyncpgFace(self._con, self._life)

    def face(self) -> Any:
        return self._con.face

    async def call(self, sql: str, *args: SqlArgument) -> str | None:
        with self._life:
            value = await self._con.fetchval(sql, *args)
        return value if value is None or isinstance(value, str) else str(value)

    def _reported_name(self) -> str | None:
        return getattr(self._con.get_settings(), "application_name", None)

    async def settle(self) -> bool:
        return self._name is not None and self._reported_name() == self._name

    def explain(self, error: BaseException) -> BaseException:
        return self._life.explain(error)

    async def finish(self, text: str) -> None:
        self._life.check()
        self._end_face()
        if self._life.calls:
            raise self._life.still_running()
        try:
            await self._con.execute(text)
        except asyncpg.InterfaceError as error:
            if is_connection_lost(error):
                raise
            raise self._life.still_running() from error
        await self._give_back(self._life.spoiled)

    def is_broken(self) -> bool:
        return bool(self._con.is_closed())

    async def abandon(self) -> None:
        if self._is_over:
            return
        self._end_face()
        in_doubt = True
        try:
            if not (self._life.calls or self._life.spoiled or self._con.is_closed()):
                await self._con.execute("rollback", timeout=ABANDON_TIMEOUT_S)
                in_doubt = False
        except Exception:
            pass  # whatever it was, the connection is closed below and the server rolls back
        finally:
            await self._give_back(in_doubt)

    def _end_face(self) -> None:
        con = self._con
        self._life.alive = False
        con._top_xact = None
        con._pool_release_ctr += 1  # as asyncpg's pool does: ends the step's prepared statements, cursors, transactions
        for registered in (con._listeners, con._log_listeners, con._query_loggers, con._termination_listeners):
            registered.clear()

    async def _give_back(self, close: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        close = close or self._binding.stack.closed
        try:
            if close:
                await self._binding.close(self._con)
        finally:
            self._binding.stack.give_back(None if close else self._con)


class AsyncpgBinding(Binding):
    """The asyncpg connections of one process."""

    savepoint = "async with conn.transaction():"

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        super().__init__(dsn, limit, pgbouncer, executor)
        self.stack: ConnectionStack[Any] = ConnectionStack(limit)

    async def open(self, step: str = "") -> StepConnection:
        con = await self.stack.take()
        if con is not None:
            return AsyncpgStep(self, con, True, step)
        try:
            return AsyncpgStep(self, await self.connect(), False, step)
        except BaseException:
            self.stack.give_back(None)
            raise

    async def connect(self) -> Any:
        """A new physical connection, outside the stack."""
        options: dict[str, Any] = {"statement_cache_size": 0} if self.pgbouncer else {}
        con: Any = await asyncpg.connect(
            self.dsn,
            connection_class=_Physical,
            server_settings=session_settings(APPLICATION_NAME),
            **options,
        )
        con.face, con.is_clean = None, True
        keep_alive(con)
        return con

    async def close(self, con: Any) -> None:
        """Close a connection, cancelling what still runs on it."""
        try:
            await con.close(timeout=ABANDON_TIMEOUT_S)
        except Exception:
            con.terminate()

    async def close_all(self) -> None:
        for con in self.stack.close():
            await self.close(con)
