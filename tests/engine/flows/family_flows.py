"""What a run starts: steps elsewhere, child runs, itself again, the outbox; and what becomes of it on retry and fork."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from noting import FORGET, Unwell, hold, need_file, note, note_sync

from onceflow import (
    continue_as,
    current_run,
    gather,
    idempotency_key,
    recv,
    sleep,
    step,
    uuid4,
    workflow,
)


@step(retries=1)
async def work(gate: str, n: int) -> list[Any]:
    """Runs elsewhere: ends when the gate is open; fails on its first try for n = 13, always for n = 99."""
    Path(f"{gate}-{n}").touch()
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    if n == 99 or (n == 13 and current_run().try_number == 1):
        raise Unwell(f"work {n}")
    return [n, os.getpid(), idempotency_key()]


@workflow
async def starting(gate: str) -> list[Any]:
    handles = [await work.start(gate, n) for n in (1, 2, 13)]
    bad = await work.start(gate, 99)
    results = [await h.result() for h in handles]
    try:
        await bad.result()
    except Unwell as error:
        results.append(str(error))
    return results


@workflow
def starting_sync(gate: str) -> list[Any]:
    handles = [work.start(gate, n) for n in (1, 2)]
    note_sync("started")
    return [h.result()[0] for h in handles]


@workflow
async def child(n: int, gate: str = "") -> int:
    await note(f"child {n}")
    if gate:
        await hold(gate)
    if n < 0:
        raise Unwell(f"child {n}")
    return n * 10


@workflow
async def parent() -> list[Any]:
    good, bad = await child.start(1), await child.start(-1)
    again = await child.start(1)
    found: list[Any] = [good.run_id, again.run_id, await good.result()]
    try:
        await bad.result()
    except Unwell as error:
        found.append(str(error))
    await sleep(FORGET)
    return [*found, await again.result()]


@workflow
def parent_sync() -> int:
    handle = child.start(4)
    sleep(FORGET)
    return int(handle.result())


@workflow
async def grandparent(gate: str) -> int:
    handle = await middle.start(gate)
    return int(await handle.result())


@workflow
async def middle(gate: str) -> int:
    handle = await child.start(5, gate)
    return int(await handle.result())


@workflow
async def parent_of_unlucky(folder: str) -> int:
    """Its child fails until a file is there."""
    handle = await unlucky.start(folder)
    return int(await handle.result())


@workflow
async def unlucky(folder: str) -> int:
    await note("before")
    await need_file(folder)
    return 5


@workflow
async def counting(left: int, total: int = 0) -> int:
    """Goes on as itself, with a fresh history."""
    await note(f"left {left}")
    if left:
        await continue_as(left - 1, total=total + left)
    return total


@workflow
def counting_sync(left: int) -> int:
    note_sync(f"left {left}")
    if left:
        continue_as(left - 1)
    return 0


@workflow
async def relaying(left: int) -> int:
    """Each go receives one message."""
    await note(str(await recv("m")))
    if left:
        await continue_as(left - 1)
    return left


@workflow
async def counting_in_group(left: int) -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(count_down(left))
    return 0


async def count_down(left: int) -> None:
    await note(f"left {left}")
    if left:
        await continue_as(left - 1)


@workflow
async def parent_of_counting() -> int:
    handle = await counting.start(3)
    return int(await handle.result())


@step
async def deliver(conn: asyncpg.Connection[Any], what: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, f"delivered {what}")


@step
async def order(conn: asyncpg.Connection[Any], what: str, fails: bool) -> None:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, f"ordered {what}")
    await deliver.start(what)
    if fails:
        raise Unwell(what)


@step
def order_sync(conn: psycopg.Connection, what: str, fails: bool) -> None:
    conn.execute("insert into effect (what, note) values (%s, %s)", (current_run().run_id, f"ordered {what}"))
    deliver.start(what)
    with conn.transaction(force_rollback=True):
        deliver.start("undone by a savepoint")
    if fails:
        raise Unwell(what)


@workflow
async def shop() -> str:
    await order("tea", False)
    await order_sync.aio("salt", False)
    for failing in (order("beer", True), order_sync.aio("wine", True)):
        try:
            await failing
        except Unwell:
            pass
    await sleep(FORGET)
    return "closed"


@step
async def my_key() -> tuple[str, str, str, str]:
    run = current_run()
    return idempotency_key(), run.run_id, run.dag_id, run.step_key


@workflow
async def repairable(folder: str) -> list[Any]:
    first = await note("first")
    started = await counted.start(folder, "started")
    inner = await gather(counted(folder, "left"), counted(folder, "right"))
    late = await started.result()
    await need_file(folder)
    return [first, inner, late, await note("last")]


@step
async def counted(folder: str, name: str) -> str:
    with Path(folder, name).open("a") as file:
        file.write("x")
    return name


@workflow
async def forkable(n: int) -> list[Any]:
    a = await note(f"a{n}")
    key = await uuid4()
    handle = await my_key.start()
    b = await note(f"b{n}")
    told = await handle.result()
    return [a, str(key), b, told[0], await note(f"c{n}")]


@workflow
async def writing_at_once(gate: str, count: int) -> None:
    """When the gate opens, many branches have something to write: outcomes of steps, and starts."""
    await gather(*[hold(gate) if n % 2 else start_behind(gate, n) for n in range(count)])


async def start_behind(gate: str, n: int) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    await work.start(gate, n)
