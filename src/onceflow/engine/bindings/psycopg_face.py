"""What a step sees of psycopg: real `psycopg.Connection` objects, one for each step, around one physical connection.

Since the object is the step's own, row factories, adapters and handlers set on it end with it; only the libpq
connection and the memory of its prepared statements live on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq, sql

from onceflow.engine.bindings.face_life import FaceLife

_DEAD = pq.PGconn()  # is closed and never was open
_TAKE_SQL = ("execute", "executemany", "stream", "copy")


def text_of(query: Any, connection: Any) -> str:
    """The SQL text of anything psycopg executes: str, bytes, a Composable or a template string."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    if isinstance(query, sql.Composable):
        return query.as_string(connection)
    as_string = getattr(sql, "as_string", str)  # psycopg 3.3 and later know template strings
    return str(as_string(query, connection))


@functools.cache
def guarded(cursor: type) -> type:
    """The cursor class with the step's checks before every text it sends."""
    methods = {name: _checked(getattr(cursor, name)) for name in _TAKE_SQL}
    return type(cursor.__name__, (cursor,), {"__slots__": (), **methods})


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check_and_call(self: Any, *args: Any, **options: Any) -> Any:
        query = args[0] if args else options.get("query", options.get("statement"))
        connection = self.connection
        if query is not None:
            connection.step_life.check_text(text_of(query, connection))
        return original(self, *args, **options)

    return check_and_call


class FaceRules:
    """What both kinds of face share: they check SQL, refuse to end the transaction, and die with the step."""

    step_life: FaceLife
    pgconn: Any
    _prepared: Any

    def enter_step(self, physical: Any, life: FaceLife) -> None:
        """Take the physical connection's place for one step."""
        self.step_life = life
        self._autocommit = True  # psycopg must not send a BEGIN of its own
        self._prepared = physical._prepared  # which statements the server knows
        self.prepare_threshold = physical.step_prepare_threshold

    def leave_step(self) -> None:
        """From now on every use raises LostContext."""
        self.step_life.alive = False
        self.pgconn = _DEAD

    def is_busy(self) -> bool:
        """Is something of the step still unfinished on the wire? Ask with the lock held."""
        return bool(self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE or self.pgconn.pipeline_status != pq.PipelineStatus.OFF)

    def check_still_open(self) -> None:
        """Notice at once if something has ended the step's transaction without the guard seeing it."""
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE and self.step_life.alive:
            self.step_life.undone = "a statement ended its transaction, so its writes are not bound to its record"
            self.step_life.check()

    def undo_step(self) -> None:
        """Let nothing more run in the step: a session above has rolled back what it believes to be its transaction."""
        self.step_life.undone = "its session was rolled back; raise to undo the step, or use begin_nested() for a part that may fail"

    @property
    def prepare_threshold(self) -> int | None:
        """When psycopg prepares a statement. Always None, which is never, behind pgbouncer: other clients would meet the same names."""
        return self._prepared.prepare_threshold  # type: ignore[no-any-return]

    @prepare_threshold.setter
    def prepare_threshold(self, threshold: int | None) -> None:
        self._prepared.prepare_threshold = None if self.step_life.pooled else threshold

    @property
    def cursor_factory(self) -> Any:
        """The class of cursors; whatever is set gets the step's checks."""
        return self._cursor_factory

    @cursor_factory.setter
    def cursor_factory(self, cursor: type) -> None:
        self._cursor_factory = guarded(cursor)

    @property
    def server_cursor_factory(self) -> Any:
        """The class of named cursors; whatever is set gets the step's checks."""
        return self._server_cursor_factory

    @server_cursor_factory.setter
    def server_cursor_factory(self, cursor: type) -> None:
        self._server_cursor_factory = guarded(cursor)

    def _check_connection_ok(self) -> None:
        self.step_life.check()
        super()._check_connection_ok()  # type: ignore[misc]


def _refusal(call: str) -> Callable[..., Any]:
    def refuse(self: FaceRules, *args: Any, **options: Any) -> Any:
        raise self.step_life.refuse(call)

    refuse.__doc__ = f"Refuse {call}: it is the engine's."
    return refuse


for _name in ("commit", "rollback", "close", "set_autocommit", "tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback",
              "tpc_recover"):  # fmt: skip
    setattr(FaceRules, _name, _refusal(f"{_name}()"))
for _name in ("__enter__", "__aenter__"):
    setattr(FaceRules, _name, _refusal("`with` on the connection, which ends in a commit and a close,"))


class PsycopgFace(FaceRules, psycopg.Connection[Any]):
    """The connection a `def` step sees."""

    def wait(self, *args: Any, **options: Any) -> Any:
        """All that is sent passes here."""
        self.step_life.check()
        with self.step_life.noting():
            result = super().wait(*args, **options)
        self.check_still_open()
        return result


class PsycopgAsyncFace(FaceRules, psycopg.AsyncConnection[Any]):
    """The connection an `async def` step sees."""

    async def wait(self, *args: Any, **options: Any) -> Any:
        """All that is sent passes here."""
        self.step_life.check()
        with self.step_life.noting():
            result = await super().wait(*args, **options)
        self.check_still_open()
        return result


class DbapiFace(PsycopgFace):
    """The same under SQLAlchemy, whose own error handling calls rollback and close."""

    def rollback(self) -> None:
        """Send nothing, so that the step cannot go on outside of its transaction; refuse all that comes after."""
        self.undo_step()

    def close(self) -> None:
        """Do nothing: the engine closes the connection."""

    def _check_connection_ok(self) -> None:
        """Leave it to the cursor's execute: SQLAlchemy wraps what is raised before that."""


class DbapiAsyncFace(PsycopgAsyncFace):
    """The same under SQLAlchemy's asyncio extension."""

    async def rollback(self) -> None:
        """As DbapiFace's."""
        self.undo_step()

    async def close(self) -> None:
        """As DbapiFace's."""

    def _check_connection_ok(self) -> None:
        """As DbapiFace's."""
