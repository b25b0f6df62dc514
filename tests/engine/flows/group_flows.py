"""Steps that share a commit, and members of their groups that mean no good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
from noting import note
from sqlalchemy.orm import Session

from onceflow import current_run, gather, step, workflow

INSERT = "insert into effect (what, note) values ('{}', '{}')"


def mark_call(folder: str, name: str) -> str:
    """Counts a call in a file; the text of an insert that says the same."""
    with Path(folder, name).open("a") as file:
        file.write("x")
    return INSERT.format(current_run().run_id, name)


@step(group_commit=True)
async def good_asyncpg(conn: asyncpg.Connection[Any], folder: str, name: str) -> str:
    await conn.execute(mark_call(folder, name))
    return name


@step(group_commit=True)
async def bad_asyncpg(conn: asyncpg.Connection[Any], how: str) -> None:
    try:
        await conn._con.execute(how)
    except asyncpg.PostgresError:
        pass  # it goes on as if nothing were


@step(group_commit=True)
def good_psycopg(conn: psycopg.Connection, folder: str, name: str) -> str:
    conn.execute(mark_call(folder, name).encode())
    return name


@step(group_commit=True)
def bad_psycopg(conn: psycopg.Connection, how: str) -> None:
    conn.pgconn.exec_(how.encode())


@step(group_commit=True)
async def good_psycopg_async(conn: psycopg.AsyncConnection, folder: str, name: str) -> str:
    await conn.execute(mark_call(folder, name).encode())
    return name


@step(group_commit=True)
async def bad_psycopg_async(conn: psycopg.AsyncConnection, how: str) -> None:
    conn.pgconn.exec_(how.encode())


@step(group_commit=True)
def good_session(session: Session, folder: str, name: str) -> str:
    session.execute(sa.text(mark_call(folder, name)))
    return name


@step(group_commit=True)
def bad_session(session: Session, how: str) -> None:
    session.connection().connection.driver_connection.pgconn.exec_(how.encode())


GOOD: dict[str, Callable[..., Any]] = {
    "asyncpg": good_asyncpg,
    "psycopg": good_psycopg.aio,
    "psycopg_async": good_psycopg_async,
    "session": good_session.aio,
}
BAD: dict[str, Callable[..., Any]] = {
    "asyncpg": bad_asyncpg,
    "psycopg": bad_psycopg.aio,
    "psycopg_async": bad_psycopg_async,
    "session": bad_session.aio,
}


@workflow
async def mixed_group(driver: str, folder: str, hows: list[str]) -> list[Any]:
    """Good members before, between and after the bad ones."""
    good, bad = GOOD[driver], BAD[driver]
    calls = [good(folder, f"g0{j}") for j in range(3)]
    for i, how in enumerate(hows, 1):
        calls += [bad(how), *(good(folder, f"g{i}{j}") for j in range(3))]
    answers = await gather(*calls, return_exceptions=True)
    return [type(answer).__name__ if isinstance(answer, Exception) else answer for answer in answers]


@step(group_commit=True)
async def add_crosswise(conn: asyncpg.Connection[Any], account: int, gate: str, others: str) -> None:
    """Touches one account; the first of a group then waits until the other group has touched its own."""
    await conn.execute("update account set balance = balance + 1 where id = $1", account)
    Path(gate).touch()
    while not Path(others).exists():
        await asyncio.sleep(0.005)


@workflow
async def cross(accounts: list[int], gate: str, others: str) -> None:
    await gather(*[add_crosswise(account, gate, others) for account in accounts])


@step(group_commit=True)
async def order_in_group(conn: asyncpg.Connection[Any], folder: str, name: str) -> None:
    await conn.execute(mark_call(folder, name))
    await note.start(f"after {name}")


@workflow
async def outbox_in_group(folder: str) -> None:
    await gather(*[order_in_group(folder, f"o{i}") for i in range(3)])
