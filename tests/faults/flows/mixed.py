"""What the long fault run adds to the other workflows: groups, SQL steps, messages from steps, and a dag with a map, a join and a small pool."""

from __future__ import annotations

import asyncio
import os

import asyncpg
import psycopg
from payments import fetch, pay, pay_sql

import onceflow
from onceflow import commit_with, current_run, dag, sensor, step, task, workflow
from onceflow.engine.task_context import TaskInstance

ITEMS = 6


@step(group_commit=True)
async def pay_in_group(conn: asyncpg.Connection, key: str) -> int:
    number: int = await conn.fetchval("insert into effect (step, key) values ('pay_in_group', $1) returning id", key)
    return number


@step(group_commit=True)
async def pay_unless_poisoned(conn: asyncpg.Connection, key: str, is_poison: bool) -> int:
    """Writes, and then the poison raises."""
    number: int = await conn.fetchval("insert into effect (step, key) values ('pay_unless_poisoned', $1) returning id", key)
    if is_poison:
        raise ValueError(f"{key} is poison")
    return number


@step(group_commit=True, retries=2)
async def pay_poisoned(conn: asyncpg.Connection, key: str) -> int:
    """Poison with a retry policy of its own: the third try is good."""
    number: int = await conn.fetchval("insert into effect (step, key) values ('pay_poisoned', $1) returning id", key)
    if current_run().try_number < 3:
        raise ValueError(f"{key} is poison in try {current_run().try_number}")
    return number


@workflow
async def poison_among_many(key: str, good: int) -> list[str]:
    """One poison among good ones, at the same moment; answers what became of each."""
    work = [pay_unless_poisoned(f"{key}/{n}", False) for n in range(good)]
    work.insert(good // 2, pay_poisoned(f"{key}/poison"))
    work.insert(good // 3, pay_unless_poisoned(f"{key}/deadly", True))
    done = await onceflow.gather(*work, return_exceptions=True)
    return [type(one).__name__ for one in done]


@workflow
async def in_groups(key: str, count: int) -> int:
    return len(await onceflow.gather(*(pay_in_group(f"{key}/{n}") for n in range(count))))


@workflow
async def in_postgres(key: str, count: int) -> int:
    """SQL steps, one after the other and side by side."""
    await pay_sql(f"{key}/first")
    return len(await onceflow.gather(*(pay_sql(f"{key}/{n}") for n in range(count))))


@step(retries=20)
def pay_late_again(key: str) -> int:
    """An external step whose effect commits with its record. What its connection is lost with is its own error, so it has retries."""
    with commit_with(psycopg.Connection) as conn:
        row = conn.execute("insert into effect (step, key) values ('pay_late_again', %s) returning id", (key,)).fetchone()
    assert row is not None
    return int(row[0])


@workflow
async def pay_all_ways(key: str) -> str:
    """External and transactional steps, side by side and one after the other."""
    first, number = await onceflow.gather(fetch(f"{key}/a"), pay(f"{key}/b"))
    await pay_late_again.aio(f"{key}/c")
    return f"{first} {number > 0}"


@step
async def tell_pid(key: str) -> int:
    await asyncio.sleep(0.1)  # long enough to be caught in the midst of it
    return os.getpid()


@workflow
async def by_whom(key: str) -> int:
    """Who did it says who it was: the ledger must say the same."""
    for number in range(3):
        await tell_pid(f"{key}/{number}")
    return os.getpid()


@step
async def tell_two(conn: asyncpg.Connection, key: str, listener: int) -> None:
    """Its messages commit with its row."""
    await conn.execute("insert into effect (step, key) values ('tell_two', $1)", key)
    for number in (1, 2):
        await onceflow.send(listener, f"{key}/{number}", topic="told")


@workflow
async def hear_two(key: str) -> str:
    """Two messages, each of which is paid for once."""
    for _ in range(2):
        await pay(f"heard/{await onceflow.recv('told')}")
    return key


@workflow
async def tell_and_wait(key: str) -> str:
    """Starts who listens, tells it twice, and waits until it has heard."""
    handle = await hear_two.start(key)
    await tell_two(key, handle.run)
    return str(await handle.result())


@task
def list_items() -> list[int]:
    return list(range(ITEMS))


@task(pool="faults")
async def pay_item(conn: asyncpg.Connection, item: int) -> int:
    await conn.execute("insert into effect (step, key) values ('pay_item', $1)", f"{current_run().run_id}/{item}")
    return item


@task
async def join_items(conn: asyncpg.Connection, items: list[int], also: list[int]) -> int:
    await conn.execute("insert into effect (step, key, note) values ('join_items', $1, $2)", current_run().run_id, str(sum(items) + sum(also)))
    return sum(items)


@dag(schedule=None, max_active_tasks=64, max_active_runs=8)
def map_and_join() -> None:
    """Two maps in a pool of 7 that are more than it holds, and a join of both."""
    items = list_items()
    join_items(pay_item.expand(item=items), pay_item.override(task_id="pay_more").partial().expand(item=[10, 11, 12]))


@sensor(poke_interval=0.05, timeout=600)
async def third_look(conn: asyncpg.Connection, ti: TaskInstance) -> bool:
    """Each look is a transaction that writes, and what it writes stays only with the last."""
    await conn.execute("insert into effect (step, key) values ('third_look', $1)", ti.run_id)
    return ti.resume is not None and ti.resume["kwargs"]["pokes"] >= 2


@dag
def look_again() -> None:
    third_look()
