"""Steps that get in each other's way in the database."""

from __future__ import annotations

import asyncpg
import psycopg
from gates import GATES, pass_gate, pass_gate_blocking

import onceflow
from onceflow import commit_with, step, workflow


@step
async def touch_both(conn: asyncpg.Connection, key: str, first: int, second: int) -> None:
    """Two rows, in the order given; both of a pair hold their first row before either asks for its second."""
    await conn.execute("update counter set value = value + 1 where id = $1", first)
    (GATES / f"{key}.{first}.open").touch()
    await pass_gate(f"{key}.{second}", str(first))
    await conn.execute("update counter set value = value + 1 where id = $1", second)
    await conn.execute("insert into effect (step, key) values ('touch_both', $1)", f"{key}/{first}")


@step
def touch_both_blocking(conn: psycopg.Connection, key: str, first: int, second: int) -> None:
    """The same in a thread."""
    conn.execute("update counter set value = value + 1 where id = %s", (first,))
    (GATES / f"{key}.{first}.open").touch()
    pass_gate_blocking(f"{key}.{second}", str(first))
    conn.execute("update counter set value = value + 1 where id = %s", (second,))
    conn.execute("insert into effect (step, key) values ('touch_both', %s)", (f"{key}/{first}",))


@workflow
async def deadlock(key: str, first: int, second: int) -> None:
    await onceflow.gather(touch_both(key, first, second), touch_both_blocking.aio(key, second, first))


@step(isolation="serializable")
async def take_one(conn: asyncpg.Connection, key: str) -> bool:
    """Takes one of what is left, by a sum over all takings: right only when takings do not overlap."""
    left: int = await conn.fetchval("select 10 - count(*) from effect where note = 'taken'")
    note = "taken" if left > 0 else "none left"
    await conn.execute("insert into effect (step, key, note) values ('take_one', $1, $2)", key, note)
    return left > 0


@workflow
async def take(key: str) -> bool:
    return await take_one(key)


@step
async def lock_row(conn: asyncpg.Connection, key: str, gate: str) -> None:
    await conn.execute("update counter set value = value + 1 where id = 1")
    await conn.execute("insert into effect (step, key) values ('lock_row', $1)", key)
    await pass_gate(gate, key)


@workflow
async def hold_row(key: str, gate: str) -> None:
    await lock_row(key, gate)


@step
async def book(conn: asyncpg.Connection, key: str) -> None:
    """Locks a row that everybody wants, and has a last word to say."""
    await conn.execute("update counter set value = value + 1 where id = 1")
    await conn.execute("insert into effect (step, key) values ('book', $1)", key)
    await conn.execute("select 'booked'")


@step(group_commit=True)
async def book_in_group(conn: asyncpg.Connection, key: str) -> None:
    await book.fn(conn, key)


@step
def book_blocking(conn: psycopg.Connection, key: str) -> None:
    conn.execute("update counter set value = value + 1 where id = 1")
    conn.execute("insert into effect (step, key) values ('book', %s)", (key,))
    conn.execute("select 'booked'")


@step
def pay_late_booked(key: str) -> None:
    with commit_with(psycopg.Connection) as conn:
        book_blocking.fn(conn, key)


@workflow
async def book_twice(key: str) -> None:
    await onceflow.gather(book(f"{key}/1"), book(f"{key}/2"))


@workflow
async def book_in_group_twice(key: str) -> None:
    await onceflow.gather(book_in_group(f"{key}/1"), book_in_group(f"{key}/2"))


@workflow
async def book_blocking_twice(key: str) -> None:
    await onceflow.gather(book_blocking.aio(f"{key}/1"), book_blocking.aio(f"{key}/2"))


@workflow
async def book_late_twice(key: str) -> None:
    await onceflow.gather(pay_late_booked.aio(f"{key}/1"), pay_late_booked.aio(f"{key}/2"))
