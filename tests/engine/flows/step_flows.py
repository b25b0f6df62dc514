"""Every kind of step, in bodies of both colours. `effect.what` is the run's id, so each test finds its own rows."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as sa_asyncio
from noting import FORGET, hold, hold_sync, text
from sqlalchemy.orm import Session

from onceflow import (
    commit_with,
    current_run,
    gather,
    idempotency_key,
    sleep,
    sql_step,
    step,
    workflow,
)


@step
async def on_asyncpg(conn: asyncpg.Connection[Any], note: str) -> str:
    return str(await conn.fetchval(text(note)))


@step
def on_psycopg(conn: psycopg.Connection, note: str) -> str:
    return str(conn.execute(text(note)).fetchone()[0])


@step
async def on_psycopg_async(conn: psycopg.AsyncConnection, note: str) -> str:
    return str((await (await conn.execute(text(note))).fetchone())[0])


@step
def on_session(session: Session, note: str) -> str:
    return str(session.execute(sa.text(text(note))).scalar_one())


@step
async def on_async_session(session: sa_asyncio.AsyncSession, note: str) -> str:
    return str((await session.execute(sa.text(text(note)))).scalar_one())


@step
def on_sa_connection(conn: sa.Connection, note: str) -> str:
    return str(conn.execute(sa.text(text(note))).scalar_one())


@step
async def on_sa_async_connection(conn: sa_asyncio.AsyncConnection, note: str) -> str:
    return str((await conn.execute(sa.text(text(note)))).scalar_one())


in_sql = sql_step("insert into effect (what, note) values ($1::text, $2::text) returning note", name="in_sql")


@step
def late(note: str) -> str:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(note))
    return note


@step
async def late_async(note: str) -> str:
    async with commit_with(asyncpg.Connection) as conn:
        await conn.execute(text(note))
    return note


@step
def late_session(note: str) -> str:
    with commit_with(Session) as session:
        session.execute(sa.text(text(note)))
    return note


@workflow
async def all_kinds(gate: str) -> list[str]:
    """Each kind once, then a place to crash or be suspended at."""
    notes = [
        await on_asyncpg("asyncpg"),
        await on_psycopg.aio("psycopg"),
        await on_psycopg_async("psycopg_async"),
        await on_session.aio("session"),
        await on_async_session("async_session"),
        await on_sa_connection.aio("sa_connection"),
        await on_sa_async_connection("sa_async_connection"),
        (await in_sql(current_run().run_id, "sql"))[0]["note"],
        await late.aio("late"),
        await late_async("late_async"),
        await late_session.aio("late_session"),
    ]
    await (hold(gate) if gate else sleep(FORGET))
    return [*notes, await on_asyncpg("end")]


@workflow
def all_kinds_sync(gate: str) -> list[str]:
    notes = [
        on_psycopg("psycopg"),
        on_session("session"),
        on_sa_connection("sa_connection"),
        late("late"),
        late_session("late_session"),
    ]
    hold_sync(gate) if gate else sleep(FORGET)
    return [*notes, on_psycopg("end")]


@step
def late_with_error_inside(note: str) -> str:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(note))
        raise ValueError("inside")


@step
def late_with_error_after(note: str) -> str:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(note))
    raise ValueError("after")


@step
async def late_async_with_error_after(note: str) -> str:
    async with commit_with(asyncpg.Connection) as conn:
        await conn.execute(text(note))
    raise ValueError("after")


@step
def late_twice(note: str) -> str:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(note))
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(note))
    return note


@step
def late_swallowed(note: str) -> str:
    try:
        with commit_with(psycopg.Connection) as conn:
            conn.execute(text(note))
            raise ValueError("inside")
    except ValueError:
        return "went on"


@step
async def late_swallowed_async(note: str) -> str:
    try:
        async with commit_with(asyncpg.Connection) as conn:
            await conn.execute(text(note))
            raise ValueError("inside")
    except ValueError:
        return "went on"


@step
def late_unused(note: str) -> str:
    """Never enters its block."""
    commit_with(psycopg.Connection)
    return note


@step
def late_of_other_colour(note: str) -> str:
    with commit_with(psycopg.AsyncConnection) as conn:
        conn.execute(text(note))
    return note


@step
async def late_in_a_branch(note: str) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(late_async.fn(note))
    return task.result()


LATE = {
    s.name: s
    for s in (
        late_in_a_branch,
        late_with_error_inside,
        late_with_error_after,
        late_async_with_error_after,
        late_twice,
        late_swallowed,
        late_swallowed_async,
        late_unused,
        late_of_other_colour,
    )
}


@workflow
async def run_late(name: str) -> str:
    """One of the late-commit steps by its name; its error is recorded once and replayed."""
    chosen = LATE[name]
    try:
        return str(await chosen("x") if chosen.is_async else await chosen.aio("x"))
    finally:
        await sleep(FORGET)


@step
def many_late(i: int) -> int:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(str(i)))
    return i


@workflow
async def hundred_late() -> int:
    return sum(await gather(*(many_late.aio(i) for i in range(100))))


@step(isolate="process")
def in_process(values: list[int]) -> tuple[int, int]:
    print("what a step prints does not mix with its answer")
    return sum(values), os.getpid()


@step(isolate="process")
async def in_process_async(value: int) -> str:
    return f"{value} {idempotency_key()}"


@step(isolate="process")
def in_process_failing() -> None:
    raise TwoArguments(7, "seven")


@step(isolate="process", execution_timeout=timedelta(seconds=5))  # long enough for a Python to start on a busy machine
def in_process_for_ever(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


@step(isolate="process")
def in_process_dying() -> None:
    os._exit(3)


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


@workflow
async def isolated(marker: str) -> list[Any]:
    found: list[Any] = []
    total, pid = await in_process.aio([1, 2, 3])
    found += [total, pid != os.getpid(), await in_process_async(5)]
    for chosen, args in ((in_process_failing, ()), (in_process_for_ever, (marker,)), (in_process_dying, ())):
        try:
            await chosen.aio(*args)
        except Exception as error:
            found.append((type(error).__name__, error.args))
    await sleep(FORGET)
    return found


@step(execution_timeout=timedelta(seconds=0.2))
async def slow_async() -> None:
    await asyncio.sleep(60)


@step(execution_timeout=timedelta(seconds=0.2))
def slow(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.01)


@step(execution_timeout=timedelta(seconds=0.2))
async def slow_asyncpg(conn: asyncpg.Connection[Any]) -> None:
    await conn.execute(text("never"))
    await conn.execute("select pg_sleep(60)")


@step(execution_timeout=timedelta(seconds=0.2))
def slow_psycopg(conn: psycopg.Connection) -> None:
    conn.execute(text("never"))
    conn.execute("select pg_sleep(60)")


@workflow
async def timeouts(gate: str) -> list[str]:
    found = []
    for branch in (slow_async(), slow.aio(gate), slow_asyncpg(), slow_psycopg.aio()):
        try:
            await branch
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    await sleep(FORGET)
    return found
