"""What a step sees of SQLAlchemy: its connection and session classes, with the ways out of the transaction closed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection

from onceflow.engine.bindings.face_life import FaceLife


class GivenConnection(PoolProxiedConnection):
    """Hands SQLAlchemy the step's psycopg connection without a pool that would roll back and close it."""

    is_valid = True
    is_detached = True

    def __init__(self, dbapi_connection: Any, driver_connection: Any) -> None:
        self.dbapi_connection = dbapi_connection
        self.driver_connection = driver_connection  # psycopg's own, for what SQLAlchemy cannot do
        self._info: dict[Any, Any] = {}

    @property
    def info(self) -> dict[Any, Any]:
        """Notes of the user, for this step."""
        return self._info

    @property
    def record_info(self) -> None:
        """No pool, no record."""
        return None

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:
        """SQLAlchemy found the connection broken; the engine throws it away."""
        self.is_valid = False

    def detach(self) -> None:
        """There is no pool to detach from."""

    def close(self) -> None:
        """The engine closes the connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dbapi_connection, name)


class StepSaConnection(sa.Connection):
    """SQLAlchemy's connection inside a step: it refuses to end the transaction; begin_nested() makes savepoints."""

    step_life: FaceLife

    @classmethod
    def join(cls, engine: sa.Engine, dbapi_connection: Any, face: Any) -> StepSaConnection:
        """A connection on the step's psycopg connection, in its transaction; sends nothing."""
        connection = cls(engine, GivenConnection(dbapi_connection, face))
        connection.step_life = face.step_life
        sa.Connection.begin(connection)
        return connection

    def invalidate(self, exception: BaseException | None = None) -> None:
        """Refuse, but to SQLAlchemy itself, which has found the connection broken and says by which error."""
        if exception is None:
            raise self.step_life.refuse("Connection.invalidate()")
        super().invalidate(exception)


class SessionRules:
    """What a step's session refuses; `with session.begin():` only flushes, begin_nested() makes savepoints."""

    get_bind: Callable[..., Any]

    @property
    def step_life(self) -> FaceLife:
        """That of the connection it works on."""
        life: FaceLife = self.get_bind().step_life
        return life


def _refusal(call: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        raise self.step_life.refuse(call)

    refuse.__doc__ = f"Refuse {call}: it is the engine's."
    return refuse


# A session that is closed or reset forgets, without a word, what it has not flushed yet.
for _name in ("commit", "rollback", "close", "reset", "invalidate"):
    setattr(SessionRules, _name, _refusal(f"Session.{_name}()" + (" (or `with` on the session)" if _name == "close" else "")))
for _name in ("begin", "commit", "rollback", "close", "detach"):
    setattr(StepSaConnection, _name, _refusal(f"Connection.{_name}()" + (" (or `with` on the connection)" if _name == "close" else "")))


@functools.cache
def step_session(annotated: type) -> type:
    """The session class with a step's rules."""
    return type(annotated.__name__, (SessionRules, annotated), {})


@functools.cache
def step_async_session(annotated: Any) -> type:
    """The asyncio session class whose inner session has a step's rules."""
    return type(annotated.__name__, (annotated,), {"sync_session_class": step_session(annotated.sync_session_class)})


def open_session(session_class: type, bind: Any) -> Any:
    """A session that works in the transaction already open on `bind`."""
    return session_class(bind=bind, join_transaction_mode="rollback_only", expire_on_commit=False)
