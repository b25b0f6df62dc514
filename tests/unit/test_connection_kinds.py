"""What an annotation says about a step's connection, told from names alone."""

from __future__ import annotations

from typing import Annotated, Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm

from onceflow.authoring.connection_kinds import connection_kind
from onceflow.errors import AuthoringError


class OwnSession(orm.Session):
    """An application's own session class, as SQLModel has one."""


class OwnConnection(psycopg.Connection[Any]):
    """A connection class the engine cannot make."""


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (asyncpg.Connection, "asyncpg"),
        (psycopg.Connection, "psycopg"),
        (psycopg.Connection[Any], "psycopg"),
        (psycopg.AsyncConnection[tuple[int]], "psycopg_async"),
        (Annotated[psycopg.Connection[Any], "for writing"], "psycopg"),
        (orm.Session, "sqlalchemy_session"),
        (OwnSession, "sqlalchemy_session"),
        (sqlalchemy.Connection, "sqlalchemy_connection"),
        (int, None),
        (list[int], None),
        (int | None, None),
        (Annotated[int, "x"], None),
        (Any, None),
        (None, None),
        ("asyncpg.Connection", None),
    ],
)
def test_the_kind_follows_from_the_class(annotation: object, kind: str | None) -> None:
    """Classes, subscripted and annotated ones give the kind; anything else gives None."""
    assert connection_kind(annotation) == kind


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        (asyncpg.pool.PoolConnectionProxy, "asyncpg.Connection"),
        (asyncpg.Pool, "asyncpg.Connection"),
        (psycopg.Cursor, "psycopg.Connection"),
        (psycopg.Cursor[Any], "psycopg.Connection"),
        (OwnConnection, "Annotate psycopg.Connection"),
        (sqlalchemy.Engine, "sqlalchemy.Connection"),
        (orm.scoped_session, "sqlalchemy.orm.Session"),
        (orm.sessionmaker[orm.Session], "sqlalchemy.orm.Session"),
        (psycopg.Connection[Any] | None, "psycopg.Connection"),
        (orm.Session | psycopg.Connection[Any], "one class alone, sqlalchemy.orm.session.Session"),
    ],
)
def test_a_lookalike_is_refused_with_what_to_write(annotation: object, hint: str) -> None:
    """Pools, engines, cursors, unions and subclasses name the right annotation in the error."""
    with pytest.raises(AuthoringError) as caught:
        connection_kind(annotation)
    assert hint in str(caught.value)
