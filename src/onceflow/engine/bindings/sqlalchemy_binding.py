"""Steps on SQLAlchemy: `Session`, `Connection` and their asyncio forms, each on top of a psycopg step.

SQLAlchemy is given the step's psycopg face as its DBAPI connection and joins the transaction that is already open. So
all it sends passes the same checks, and its connections live in a psycopg binding's stack, not in a pool of its own.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_asyncio
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from onceflow.engine.bindings.protocol import Binding
from onceflow.engine.bindings.psycopg_binding import (
    PsycopgAsyncBinding,
    PsycopgAsyncStep,
    PsycopgBinding,
    PsycopgStep,
)
from onceflow.engine.bindings.psycopg_face import DbapiAsyncFace, DbapiFace
from onceflow.engine.bindings.psycopg_physical import connect_options
from onceflow.engine.bindings.sqlalchemy_face import (
    StepSaConnection,
    open_session,
    step_async_session,
    step_session,
)
from onceflow.errors import StepSplit

_given: ContextVar[Any] = ContextVar("given")
_ENGINE_OPTIONS: dict[str, Any] = {"poolclass": NullPool, "use_native_hstore": False}


@contextmanager
def _giving(connection: Any) -> Iterator[None]:
    """Let the next connect of an engine made here take `connection`."""
    token = _given.set(connection)
    try:
        yield
    finally:
        _given.reset(token)


def _take_given() -> Any:
    try:
        return _given.get()
    except LookupError:
        raise StepSplit("a step's SQLAlchemy engine opens no further connections: use the session or connection the step was given") from None


async def _take_given_async() -> Any:
    return _take_given()


class SaStep(PsycopgStep):
    """A step on SQLAlchemy, from threads."""

    _binding: SaConnectionBinding
    _shown: Any = None

    def begin_blocking(self, text: str) -> None:
        engine = self._binding.engine_blocking()
        super().begin_blocking(text)
        self._shown = self._binding.show(StepSaConnection.join(engine, self._face, self._face))

    def face(self) -> Any:
        return self._shown

    async def settle(self) -> bool:
        if isinstance(self._shown, Session):
            await self._in_thread(self._shown.flush)
        return await super().settle()

    def finish_blocking(self, text: str) -> None:
        self._life.check()
        if isinstance(self._shown, Session):
            self._shown.flush()
        super().finish_blocking(text)


class SaConnectionBinding(PsycopgBinding):
    """Serves `sqlalchemy.Connection`."""

    savepoint = "with conn.begin_nested():"
    face_class = DbapiFace
    step_class = SaStep

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        super().__init__(dsn, limit, pgbouncer, executor)
        self._engine: sa.Engine | None = None
        self._engine_lock = threading.Lock()

    def engine_blocking(self) -> sa.Engine:
        """The engine; the first call asks the server what SQLAlchemy wants to know, on a connection of its own."""
        with self._engine_lock:
            if self._engine is None:
                engine = sa.create_engine("postgresql+psycopg://", creator=_take_given, **_ENGINE_OPTIONS)
                with _giving(psycopg.connect(self.dsn, **connect_options(self.pgbouncer))):
                    engine.connect().close()
                self._engine = engine
            return self._engine

    def show(self, connection: StepSaConnection) -> Any:
        """What the user's function is given."""
        return connection


class SessionBinding(SaConnectionBinding):
    """Serves `sqlalchemy.orm.Session` and its subclasses."""

    savepoint = "with session.begin_nested():"
    session_class: ClassVar[type] = Session

    @classmethod
    def for_class(cls, annotated: type) -> type[Binding]:
        return cls if annotated is Session else _for_session(cls, annotated)

    def show(self, connection: StepSaConnection) -> Any:
        return open_session(step_session(self.session_class), connection)


class SaAsyncStep(PsycopgAsyncStep):
    """A step on SQLAlchemy's asyncio extension."""

    _binding: SaAsyncConnectionBinding
    _shown: Any = None

    async def begin(self, text: str) -> None:
        engine = await self._binding.engine()
        await super().begin(text)
        connection = await greenlet_spawn(self._join, engine.sync_engine)
        self._shown = self._binding.show(sa_asyncio.AsyncConnection(engine, connection))

    def _join(self, engine: sa.Engine) -> StepSaConnection:
        async def give() -> Any:
            return self._face

        return StepSaConnection.join(engine, engine.dialect.connect(async_creator_fn=give), self._face)

    def face(self) -> Any:
        return self._shown

    async def settle(self) -> bool:
        if isinstance(self._shown, sa_asyncio.AsyncSession):
            await self._shown.flush()
        return await super().settle()

    async def finish(self, text: str) -> None:
        self._life.check()
        if isinstance(self._shown, sa_asyncio.AsyncSession):
            await self._shown.flush()
        await super().finish(text)


class SaAsyncConnectionBinding(PsycopgAsyncBinding):
    """Serves `sqlalchemy.ext.asyncio.AsyncConnection`."""

    savepoint = "async with conn.begin_nested():"
    face_class = DbapiAsyncFace
    step_class = SaAsyncStep

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        super().__init__(dsn, limit, pgbouncer, executor)
        self._engine: sa_asyncio.AsyncEngine | None = None
        self._engine_lock = asyncio.Lock()

    async def engine(self) -> sa_asyncio.AsyncEngine:
        """The engine; the first call asks the server what SQLAlchemy wants to know, on a connection of its own."""
        async with self._engine_lock:
            if self._engine is None:
                engine = sa_asyncio.create_async_engine("postgresql+psycopg_async://", async_creator=_take_given_async, **_ENGINE_OPTIONS)
                options = connect_options(self.pgbouncer)
                with _giving(await psycopg.AsyncConnection.connect(self.dsn, **options)):
                    async with engine.connect():
                        pass
                self._engine = engine
            return self._engine

    def show(self, connection: sa_asyncio.AsyncConnection) -> Any:
        """What the user's function is given."""
        return connection


class AsyncSessionBinding(SaAsyncConnectionBinding):
    """Serves `sqlalchemy.ext.asyncio.AsyncSession` and its subclasses."""

    savepoint = "async with session.begin_nested():"
    session_class: ClassVar[type] = sa_asyncio.AsyncSession

    @classmethod
    def for_class(cls, annotated: type) -> type[Binding]:
        return cls if annotated is sa_asyncio.AsyncSession else _for_session(cls, annotated)

    def show(self, connection: sa_asyncio.AsyncConnection) -> Any:
        return open_session(step_async_session(self.session_class), connection)


@functools.cache
def _for_session(binding: type[Binding], annotated: type) -> type[Binding]:
    return type(f"{annotated.__name__}Binding", (binding,), {"session_class": annotated})
