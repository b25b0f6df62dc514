"""Bodies and steps that leave the recorded path, by mistake or by design."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from noting import FORGET, hold, keep, note, note_sync, pay, pay_slowly, plain

import onceflow
from onceflow import (
    gather,
    patch,
    sleep,
    step,
    workflow,
)


@step
def plain_step() -> int:
    return 1


@step
async def calls_step_inside(conn: asyncpg.Connection[Any]) -> None:
    await conn.execute("insert into effect (what, note) values ('misuse', 'inside')")
    await note("inner")


@step
def calls_step_inside_sync(conn: psycopg.Connection) -> None:
    note_sync("inner")


@step
async def sleeps_inside(conn: asyncpg.Connection[Any]) -> None:
    await sleep(1)


@step
async def sleeps_outside() -> None:
    await sleep(1)


@step
async def awaits_started_inside() -> None:
    handle = await plain_step.start()
    await handle.result()


async def in_bare_thread() -> Any:
    """No context in there: the call would go unrecorded."""
    box: list[Any] = []

    def call() -> None:
        try:
            box.append(plain_step())
        except Exception as error:
            box.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)
    raise box[0]


async def in_pool() -> Any:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return await asyncio.wrap_future(pool.submit(plain_step))


async def ends_as_completed() -> None:
    for one in asyncio.as_completed([note("x"), note("y")]):
        await one


async def waits_with_timeout() -> None:
    async with asyncio.timeout(0.05):
        await sleep(30)


async def waits_for_task() -> None:
    await asyncio.wait_for(asyncio.create_task(pay_slowly("z")), 0.05)


async def waits_for_first() -> None:
    await asyncio.wait([asyncio.create_task(note("x")), asyncio.create_task(note("y"))], return_when=asyncio.FIRST_COMPLETED)


async def generates() -> AsyncIterator[int]:
    yield 1
    await note("generated")
    yield 2


@workflow
async def not_called(n: int) -> int:
    return n


@step
async def gathers_inside(conn: asyncpg.Connection[Any]) -> None:
    await gather(plain(1))


MISUSES: dict[str, Callable[[], Any]] = {
    "bare thread": in_bare_thread,
    "pool": in_pool,
    "def step in async body": lambda: plain_step(),
    "step inside a transaction": lambda: calls_step_inside(),
    "def step inside a transaction": lambda: calls_step_inside_sync.aio(),
    "sleep inside a transaction": lambda: sleeps_inside(),
    "sleep inside a step": lambda: sleeps_outside(),
    "result inside a step": lambda: awaits_started_inside(),
    "wait_for": lambda: asyncio.wait_for(note("x"), 30),
    "wait_for a coroutine": lambda: asyncio.wait_for(pay("x"), 30),
    "wait_for a task": waits_for_task,
    "as_completed": ends_as_completed,
    "asyncio.timeout": waits_with_timeout,
    "asyncio.wait": waits_for_first,
    "direct call": lambda: not_called(1),
    "bad arguments": lambda: note("a", "b"),  # type: ignore[call-arg]
    "negative sleep": lambda: sleep(-1),
    "gather of steps in a transaction": lambda: gathers_inside(),
    "commit_with in the body": lambda: onceflow.commit_with(asyncpg.Connection),
}


@workflow
async def misuse(name: str) -> Any:
    return await MISUSES[name]()


@workflow
async def misuse_swallowed(name: str) -> str:
    """A body that catches everything cannot hide it."""
    try:
        await MISUSES[name]()
    except BaseException:
        pass
    return "hidden"


@workflow
def misuse_sync(name: str) -> Any:
    if name == "async step in def body":
        return note("x")
    if name == "gather in def body":
        return gather(plain(1))
    raise KeyError(name)


@workflow
async def using_generator() -> list[int]:
    """An async generator of the body's own may call steps."""
    found = []
    async for value in generates():
        found.append(value)
        await sleep(FORGET)
    return found


@workflow
async def unsteady(folder: str) -> str:
    """Its path depends on the outside: a replay goes elsewhere."""
    path = Path(folder, "was-here")
    text = "second" if path.exists() else "first"
    path.touch()
    await note(text)
    await sleep(FORGET)
    return text


@workflow
async def unsteady_swallowed(folder: str) -> str:
    path = Path(folder, "was-here")
    text = "second" if path.exists() else "first"
    path.touch()
    try:
        await note(text)
        await sleep(FORGET)
    except BaseException:
        pass
    return text


@workflow
async def unsteady_names(folder: str) -> str:
    path = Path(folder, "was-here")
    if path.exists():
        await keep("another")
    else:
        await note("first")
    path.touch()
    await sleep(FORGET)
    return "?"


@workflow
async def unsteady_order(folder: str) -> str:
    """Leaves out what it had done."""
    path = Path(folder, "was-here")
    if not path.exists():
        await note("first")
    path.touch()
    await sleep(FORGET)
    return "?"


@workflow
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@step
async def step_cancels_itself() -> None:
    raise asyncio.CancelledError


@workflow
async def step_of_it_cancelled() -> str:
    try:
        await step_cancels_itself()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "?"


@workflow
async def stubborn(gate: str) -> str:
    """Catches everything, for ever."""
    await note("began")
    while not Path(gate).exists():
        try:
            await sleep(30)
        except BaseException:
            continue
    return "gave in"


@workflow
def stubborn_sync(gate: str) -> str:
    note_sync("began")
    while not Path(gate).exists():
        try:
            sleep(30)
        except BaseException:
            continue
    return "gave in"


@workflow
async def patched_twice() -> list[bool]:
    found = [await patch("one"), await patch("one"), await patch("two")]
    await sleep(FORGET)
    return found


@workflow
async def deaf(gate: str) -> str:
    """Hears nothing of what happens to it."""
    try:
        await hold(gate)
    except BaseException:
        pass
    try:
        await note("after")
    except BaseException:
        pass
    return "hidden"
