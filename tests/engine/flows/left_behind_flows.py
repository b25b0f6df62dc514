"""What goes on, or just ends, when nobody waits for it any more: losers of a race, and what a step's code leaves behind."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg

from onceflow import commit_with, current_run, first_of, sleep, sql_step, step, workflow
from onceflow.errors import StepTimeout

INSERT = "insert into effect (what, note) values ($1, $2)"


@step
async def pay(conn: asyncpg.Connection, note: str, hold_s: float = 0) -> str:
    await conn.execute(INSERT, current_run().run_id, note)
    await asyncio.sleep(hold_s)
    return note


@step
def pay_sync(conn: psycopg.Connection, note: str) -> str:
    conn.execute("insert into effect (what, note) values (%s, %s)", (current_run().run_id, note))
    return note


@step(group_commit=True)
async def pay_grouped(conn: asyncpg.Connection, note: str) -> str:
    await conn.execute(INSERT, current_run().run_id, note)
    return note


pay_in_sql = sql_step(f"{INSERT} returning note", name="pay_in_sql")


@step
async def pay_late(note: str) -> str:
    async with commit_with(asyncpg.Connection) as conn:
        await conn.execute(INSERT, current_run().run_id, note)
    return note


RACERS: dict[str, Any] = {
    "asyncpg": pay,
    "psycopg": pay_sync.aio,
    "grouped": pay_grouped,
    "sql": lambda note: pay_in_sql(current_run().run_id, note),
    "late": pay_late,
}


@workflow
async def racing_the_clock(racer: str, after_s: float) -> str:
    """A payment against the clock: the answer says which was first."""

    async def give_up() -> str:
        await asyncio.sleep(after_s)
        return "gave up"

    winner, _ = await first_of(RACERS[racer]("paid"), give_up())
    return "paid" if winner == 0 else "gave up"


@step
def touch_account(conn: psycopg.Connection) -> int:
    conn.execute("set local lock_timeout = '5s'")
    return conn.execute("update account set balance = balance - 1 where id = 1").rowcount


@step(execution_timeout=timedelta(seconds=0.2))
def times_out_in_a_thread() -> None:
    time.sleep(0.5)
    pay_sync("late")


@step(execution_timeout=timedelta(seconds=0.2))
def times_out_before_its_commit() -> None:
    time.sleep(0.5)
    with commit_with(psycopg.Connection) as conn:
        conn.execute("update account set balance = balance - 100 where id = 1")


@step(execution_timeout=timedelta(seconds=0.2))
async def times_out_on_the_loop() -> None:
    later.append(asyncio.create_task(pay_after(0.5)))
    await asyncio.sleep(60)


@step
async def leaves_a_task() -> None:
    later.append(asyncio.create_task(pay_after(0.3)))


@step
async def leaves_a_payment() -> None:
    later.append(asyncio.create_task(pay("late", 0.5)))
    await asyncio.sleep(0.2)


@step
def loses_in_a_thread() -> None:
    time.sleep(0.5)
    pay_sync("late")


later: list[asyncio.Task[Any]] = []


async def pay_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    await pay("late")


LEAVING: dict[str, Any] = {
    "times out in a thread": times_out_in_a_thread.aio,
    "times out before its commit": times_out_before_its_commit.aio,
    "times out on the loop": times_out_on_the_loop,
    "leaves a task": leaves_a_task,
    "leaves a payment": leaves_a_payment,
    "loses in a thread": lambda: first_of(loses_in_a_thread.aio(), sleep(0.2)),
}


@workflow
async def leaving_work(how: str) -> None:
    """The body goes on, long enough for whatever was left behind."""
    try:
        await LEAVING[how]()
    except StepTimeout:
        pass
    await pay("in place of it", 0.8)
    await touch_account.aio()
