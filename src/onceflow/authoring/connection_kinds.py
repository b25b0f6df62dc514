"""Which kind of database connection an annotation asks for, told without importing any driver.

The decision reads the names of the annotation's classes, so authoring works where no driver is installed.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from onceflow.errors import AuthoringError

ASYNCPG = "asyncpg"
PSYCOPG = "psycopg"
PSYCOPG_ASYNC = "psycopg_async"
SESSION = "sqlalchemy_session"
ASYNC_SESSION = "sqlalchemy_async_session"
SA_CONNECTION = "sqlalchemy_connection"
SA_ASYNC_CONNECTION = "sqlalchemy_async_connection"

ASYNC_KINDS = frozenset({ASYNCPG, PSYCOPG_ASYNC, ASYNC_SESSION, SA_ASYNC_CONNECTION})
_MAY_BE_SUBCLASSED = frozenset({SESSION, ASYNC_SESSION})

_KINDS = {
    ("asyncpg.connection", "Connection"): ASYNCPG,
    ("psycopg", "Connection"): PSYCOPG,
    ("psycopg", "AsyncConnection"): PSYCOPG_ASYNC,
    ("sqlalchemy.orm.session", "Session"): SESSION,
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): ASYNC_SESSION,
    ("sqlalchemy.engine.base", "Connection"): SA_CONNECTION,
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"): SA_ASYNC_CONNECTION,
}
_LOOKALIKES = {
    ("asyncpg.pool", "PoolConnectionProxy"): "asyncpg.Connection",
    ("asyncpg.pool", "Pool"): "asyncpg.Connection",
    ("psycopg", "Cursor"): "psycopg.Connection",
    ("psycopg", "AsyncCursor"): "psycopg.AsyncConnection",
    ("psycopg_pool.pool", "ConnectionPool"): "psycopg.Connection",
    ("psycopg_pool.pool_async", "AsyncConnectionPool"): "psycopg.AsyncConnection",
    ("psycopg2.extensions", "connection"): "psycopg.Connection (psycopg 3)",
    ("sqlalchemy.engine.base", "Engine"): "sqlalchemy.Connection",
    ("sqlalchemy.ext.asyncio.engine", "AsyncEngine"): "sqlalchemy.ext.asyncio.AsyncConnection",
    ("sqlalchemy.orm.session", "sessionmaker"): "sqlalchemy.orm.Session",
    ("sqlalchemy.orm.scoping", "scoped_session"): "sqlalchemy.orm.Session",
    ("sqlalchemy.ext.asyncio.session", "async_sessionmaker"): "sqlalchemy.ext.asyncio.AsyncSession",
    ("sqlalchemy.ext.asyncio.scoping", "async_scoped_session"): "sqlalchemy.ext.asyncio.AsyncSession",
}


def connection_kind(annotation: object) -> str | None:
    """The kind of connection `annotation` names, or None if it names none.

    Reads a class, a subscripted class (`psycopg.Connection[Any]`), `Annotated[...]` and a `type` alias. A union with a
    connection in it, a pool, an engine, and a subclass of a connection raise AuthoringError with what to write instead.
    Subclasses of SQLAlchemy's Session and AsyncSession are fine (SQLModel's, or the application's own).
    """
    plain = plain_class(annotation)
    if _is_union(plain):
        _refuse_union(plain)
    if not isinstance(plain, type):
        return None
    for base in plain.__mro__:
        name = (base.__module__, base.__qualname__)
        if name in _LOOKALIKES:
            raise AuthoringError(
                f"{_name(plain)} is not a connection a step can be given: annotate the first parameter with "
                f"{_LOOKALIKES[name]}; the engine opens it, in the step's own transaction."
            )
        if kind := _KINDS.get(name):
            return _checked(kind, plain, base)
    return None


def plain_class(annotation: Any) -> Any:
    """The annotation without Annotated, type aliases and type arguments; a union stays as it is."""
    while True:
        if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
            return annotation
        if type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
            continue
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin is None or _is_union(annotation):
            return annotation
        else:
            annotation = origin


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _refuse_union(annotation: object) -> None:
    for member in typing.get_args(annotation):
        if connection_kind(member):
            raise AuthoringError(
                f"{annotation} is a choice of types: annotate a step's connection with one class alone, "
                f"{_name(plain_class(member))}; the annotation decides which driver the engine uses."
            )


def _checked(kind: str, plain: type, base: type) -> str:
    if plain is not base and kind not in _MAY_BE_SUBCLASSED:
        raise AuthoringError(
            f"{_name(plain)} is a subclass of {_name(base)}: the engine opens the step's connection itself and cannot "
            f"make one of yours. Annotate {_name(base)}."
        )
    return kind


def _name(plain: type) -> str:
    return f"{plain.__module__}.{plain.__qualname__}"
