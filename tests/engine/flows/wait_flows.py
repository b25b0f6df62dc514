"""Bodies that wait: for a time, a message, an event, a started step. They are forgotten meanwhile and go on where they were."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from onceflow import current_run, gather, get_event, recv, send, set_event, sleep, step, workflow

FORGET = 0.15


@step
async def leave(conn: asyncpg.Connection[Any], text: str) -> str:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, text)
    return text


@step
def leave_sync(conn: psycopg.Connection, text: str) -> str:
    conn.execute("insert into effect (what, note) values (%s, %s)", (current_run().run_id, text))
    return text


@step
async def pause_at(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def sleeping(seconds: float) -> list[str]:
    found = [await leave("before")]
    await sleep(seconds)
    found.append(await leave("between"))
    await sleep(timedelta(seconds=seconds))
    return [*found, await leave("after")]


@workflow
def sleeping_sync(seconds: float) -> list[str]:
    found = [leave_sync("before")]
    sleep(seconds)
    return [*found, leave_sync("after")]


@workflow
async def receiving(topics: list[str], limit_s: float | None) -> list[Any]:
    found = [await recv(topic, limit_s) for topic in topics]
    await sleep(FORGET)
    return found


@workflow
def receiving_sync(topics: list[str]) -> list[Any]:
    return [recv(topic) for topic in topics]


@workflow
async def receiving_in_branches() -> list[Any]:
    return list(await gather(recv("a"), recv("b"), asyncio_branch()))


async def asyncio_branch() -> Any:
    one, other = await asyncio.gather(recv("c"), recv("d"))
    return [one, other]


@workflow
async def sending(run: int, topic: str, messages: list[Any]) -> None:
    for message in messages:
        await send(run, message, topic)
        await sleep(FORGET)


@workflow
async def publishing(gate: str) -> None:
    await set_event("stage", {"n": 1})
    await pause_at(gate)
    await set_event("stage", {"n": 2})
    await set_event("end", (1, 2))


@workflow
async def watching(run: int) -> list[Any]:
    found = [await get_event(run, "stage")]
    await sleep(FORGET)
    return [*found, await get_event(run, "end"), await get_event(run, "never", timeout=20)]


@workflow
async def watching_in_vain(run: int) -> Any:
    return await get_event(run, "never", timeout=0.2)


@workflow
async def tidy() -> None:
    """What stands in a finally: is not run by a suspension."""
    try:
        await leave("work")
        await recv("go")
    finally:
        await leave("cleaned up")


@workflow
def tidy_sync() -> None:
    try:
        leave_sync("work")
        recv("go")
    finally:
        leave_sync("cleaned up")


@workflow
async def tidy_in_group() -> None:
    async def branch(name: str) -> None:
        try:
            await recv(name)
        finally:
            await leave(f"cleaned {name}")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch("go"))
            group.create_task(branch("stop"))
    finally:
        await leave("cleaned up")


@workflow
async def fanning(n: int) -> int:
    handles = [await double.start(i) for i in range(n)]
    return sum([await h.result() for h in handles])


@workflow
async def waiting_by(way: str) -> Any:
    """Waits for messages x and y by means of asyncio."""
    if way == "gather":
        return await asyncio.gather(recv("x"), recv("y"))
    if way == "task":
        other = asyncio.create_task(receive("y"))
        return [await recv("x"), await other]
    if way == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(receive("x")), group.create_task(receive("y"))]
        return [t.result() for t in tasks]
    if way == "queue":
        queue: asyncio.Queue[Any] = asyncio.Queue()
        feeder = asyncio.create_task(feed(queue))
        found = [await queue.get(), await queue.get()]
        await feeder
        return found
    return await gather(recv("x"), recv("y"))


async def receive(topic: str) -> Any:
    return await recv(topic)


async def feed(queue: asyncio.Queue[Any]) -> None:
    for topic in ("x", "y"):
        await queue.put(await recv(topic))


@workflow
async def quick() -> str:
    return "quick"


@workflow
async def busy_beside_waiting(gate: str) -> list[Any]:
    """One branch waits, the other works: nothing may be forgotten in its midst."""
    return list(await asyncio.gather(recv("z"), pause_at(gate), asyncio.to_thread(wait_for_file, gate), wait_in_memory(gate)))


def wait_for_file(gate: str) -> None:
    """Not a step, so not recorded: a replay does it again."""
    while not Path(gate).exists():
        time.sleep(0.01)


async def wait_in_memory(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.05)
