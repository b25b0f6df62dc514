"""The fault proxy against a real Postgres, with the drivers the engine and its steps use."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

from tests.database import TestDatabase
from tests.proxy import Proxy

INSERT = "insert into effect values (%s)"


@pytest.fixture
def proxy(db: TestDatabase) -> Iterator[Proxy]:
    """A proxy in front of the test's server, and a table `effect` to see what was committed."""
    db.sql("create table effect (n int)")
    with Proxy(db.superuser_dsn) as started:
        yield started


def committed(db: TestDatabase) -> list[int]:
    """What other connections see in `effect`."""
    return [row[0] for row in db.sql("select n from effect order by n")]


def test_psycopg_loses_the_reply_to_a_commit_that_happened(db: TestDatabase, proxy: Proxy) -> None:
    """The client gets an error, the row is there: the ambiguous commit."""
    fault = proxy.cut_next(b"commit", when="answered")
    with psycopg.connect(proxy.dsn(db.superuser_dsn)) as connection:
        connection.execute(INSERT, (1,))
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert fault.wait_answered() is None
    assert committed(db) == [1]


def test_psycopg_is_cut_before_the_commit(db: TestDatabase, proxy: Proxy) -> None:
    """The same error for the client, and no row: from the client's side the two cannot be told apart."""
    proxy.cut_next(b"commit", when="before")
    with psycopg.connect(proxy.dsn(db.superuser_dsn)) as connection:
        connection.execute(INSERT, (1,))
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    db.wait_for("select count(*) = 0 from pg_locks where relation = 'effect'::regclass")
    assert committed(db) == []


async def test_asyncpg_loses_the_reply_to_a_commit_that_happened(db: TestDatabase, proxy: Proxy) -> None:
    """asyncpg reports a lost connection, the row is there."""
    fault = proxy.cut_next(b"commit", when="answered")
    connection = await asyncpg.connect(proxy.dsn(db.superuser_dsn))
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
        async with connection.transaction():
            await connection.execute("insert into effect values ($1)", 1)
    assert fault.wait_answered() is None
    assert committed(db) == [1]


async def test_a_prepared_statement_is_hit_at_its_execution(db: TestDatabase, proxy: Proxy) -> None:
    """asyncpg sends the SQL once and executes it by name later; the fault follows the name."""
    connection = await asyncpg.connect(proxy.dsn(db.superuser_dsn))
    insert = await connection.prepare("insert into effect values ($1)")
    await insert.fetch(1)
    fault = proxy.cut_next(b"insert into EFFECT", when="answered")
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
        await insert.fetch(2)
    assert fault.wait_answered() is None
    assert committed(db) == [1, 2]


async def test_a_held_statement_lands_after_another_connections_work(db: TestDatabase, proxy: Proxy) -> None:
    """The delayed first attempt: cut for the client, run by the server only when delivered."""
    fault = proxy.cut_next(b"insert into effect", when="held")
    connection = await asyncpg.connect(proxy.dsn(db.superuser_dsn))
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
        await connection.execute("insert into effect values (1)")
    assert committed(db) == []
    assert fault.deliver() is None
    assert committed(db) == [1]


def test_a_swallowed_error_shows_its_sqlstate(db: TestDatabase, proxy: Proxy) -> None:
    """The test learns what the client never saw."""
    fault = proxy.cut_next(b"raise", when="forwarded")
    dsn = proxy.dsn(db.superuser_dsn)
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("do $$ begin raise exception 'no' using errcode = 'OF001'; end $$")
    assert fault.wait_answered() == "OF001"
