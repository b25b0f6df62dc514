"""Steps of every kind that send, set, start and take inside their own transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as sa_asyncio
from noting import FORGET, Unwell, hold, note, text
from sqlalchemy.orm import Session

from onceflow import (
    commit_with,
    current_run,
    gather,
    get_event,
    now,
    recv,
    send,
    set_event,
    sleep,
    step,
    workflow,
)


@workflow
async def ship(what: str) -> str:
    await note(f"shipped {what}")
    return f"{what} is on its way"


@step
async def deliver(conn: asyncpg.Connection[Any], what: str) -> str:
    await conn.execute(text(f"delivered {what}"))
    return f"{what} delivered"


async def act(what: str, to: int, fails: bool) -> list[Any]:
    """Everything that can be done in the open transaction of an async step."""
    got = await recv("inbox", timeout=0)
    nothing = await recv("empty", timeout=0)
    await send(to, f"{what} got {got}", "news")
    await set_event(what, got)
    seen = await get_event(current_run(), what, timeout=0)
    handles = [await ship.start(what), await deliver.start(what)]
    if fails:
        raise Unwell(what)
    return [got, nothing, seen, *handles]


def act_sync(what: str, to: int, fails: bool) -> list[Any]:
    """The same in a def step."""
    got = recv("inbox", timeout=0)
    nothing = recv("empty", timeout=0)
    send(to, f"{what} got {got}", "news")
    set_event(what, got)
    seen = get_event(current_run(), what, timeout=0)
    handles = [ship.start(what), deliver.start(what)]
    if fails:
        raise Unwell(what)
    return [got, nothing, seen, *handles]


@step
async def on_asyncpg(conn: asyncpg.Connection[Any], what: str, to: int, fails: bool) -> list[Any]:
    await conn.execute(text(what))
    return await act(what, to, fails)


@step
def on_psycopg(conn: psycopg.Connection, what: str, to: int, fails: bool) -> list[Any]:
    conn.execute(text(what))
    return act_sync(what, to, fails)


@step
async def on_psycopg_async(conn: psycopg.AsyncConnection, what: str, to: int, fails: bool) -> list[Any]:
    await conn.execute(text(what))
    return await act(what, to, fails)


@step
def on_session(session: Session, what: str, to: int, fails: bool) -> list[Any]:
    session.execute(sa.text(text(what)))
    return act_sync(what, to, fails)


@step
async def on_async_session(session: sa_asyncio.AsyncSession, what: str, to: int, fails: bool) -> list[Any]:
    await session.execute(sa.text(text(what)))
    return await act(what, to, fails)


@step
def on_sa_connection(conn: sa.Connection, what: str, to: int, fails: bool) -> list[Any]:
    conn.execute(sa.text(text(what)))
    return act_sync(what, to, fails)


@step
async def on_sa_async_connection(conn: sa_asyncio.AsyncConnection, what: str, to: int, fails: bool) -> list[Any]:
    await conn.execute(sa.text(text(what)))
    return await act(what, to, fails)


@step
async def late_async(what: str, to: int, fails: bool) -> list[Any]:
    async with commit_with(asyncpg.Connection) as conn:
        await conn.execute(text(what))
    return await act(what, to, fails)


@step
def late(what: str, to: int, fails: bool) -> list[Any]:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(text(what))
        return act_sync(what, to, fails)


@step
def late_session(what: str, to: int, fails: bool) -> list[Any]:
    with commit_with(Session) as session:
        session.execute(sa.text(text(what)))
    return act_sync(what, to, fails)


ONE_BY_ONE = (on_asyncpg, on_psycopg, on_psycopg_async, on_session, on_async_session, on_sa_connection, on_sa_async_connection, late, late_async, late_session)


@step(group_commit=True)
async def grouped(conn: asyncpg.Connection[Any], what: str, to: int, fails: bool) -> list[Any]:
    await conn.execute(text(what))
    return await act(what, to, fails)


@step(group_commit=True)
def grouped_sync(conn: psycopg.Connection, what: str, to: int, fails: bool) -> list[Any]:
    conn.execute(text(what))
    return act_sync(what, to, fails)


STEPS: dict[str, Any] = {s.name: s for s in (*ONE_BY_ONE, grouped, grouped_sync)}


async def call(name: str, *args: Any) -> Any:
    chosen = STEPS[name]
    return await (chosen(*args) if chosen.is_async else chosen.aio(*args))


@workflow
async def acting(name: str, to: int) -> list[Any]:
    """Once in vain, then for good; the handles that came out of the step are waited for after a replay."""
    await recv("go")
    try:
        await call(name, "lost", to, True)
    except Unwell:
        pass
    *found, child, task = await call(name, name, to, False)
    await sleep(FORGET)
    return [*found, await child.result(), await task.result(), child.run_id]


@workflow
async def acting_in_groups(name: str, to: int, failing: int) -> list[str]:
    """Five at once; one of them fails, if so told."""
    branches = [call(name, f"member {i}", to, i == failing) for i in range(5)]
    results = await gather(*branches, return_exceptions=True)
    return ["failed" if isinstance(r, Unwell) else await r[3].result() for r in results]


@workflow
def acting_sync(to: int) -> list[Any]:
    *found, child, task = on_psycopg("sync", to, False)
    return [*found, child.result(), task.result()]


@workflow
async def waiting_for(handle: Any) -> str:
    return f"heard: {await handle.result()}"


@workflow
async def handing_on(to: int) -> str:
    """The handle of a child goes to another child, which waits for it."""
    *_, child, _ = await on_asyncpg("passed", to, False)
    other = await waiting_for.start(child)
    return str(await other.result())


@workflow
async def reading(count: int) -> list[str]:
    return [str(await recv("news")) for _ in range(count)]


@step
async def take_and_hold(conn: asyncpg.Connection[Any], gate: str, fails: bool) -> Any:
    got = await recv("shared", timeout=0)
    Path(f"{gate}-taken").touch()
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    if fails:
        raise Unwell("put it back")
    return got


@workflow
async def sharing(gate: str, fails: bool) -> list[Any]:
    """A step and a branch of the body are after the same message."""

    async def receive() -> Any:
        await hold(f"{gate}-taken")
        return await recv("shared", timeout=30 if fails else 0.5)

    await recv("go")
    return [str(found) for found in await gather(take_and_hold(gate, fails), receive(), return_exceptions=True)]


@step
def announce(conn: psycopg.Connection, to: int, gate: str) -> None:
    """Sends, and commits when the gate is open."""
    send(to, "now", "news")
    Path(f"{gate}-sent").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


@workflow
def announcing(to: int, gate: str) -> None:
    announce(to, gate)


@step(retries=3)
async def outside(to: int) -> list[Any]:
    """External: its first try fails behind all it did, its second does the same and more."""
    tries = current_run().try_number
    await send(to, "same", "news")
    if tries > 1:
        await send(to, f"try {tries}", "news")
    await set_event("outside", tries)
    child = await ship.start("outside")
    task = await deliver.start("outside")
    if tries < 3:
        raise Unwell("not yet")
    return [child, task]


@workflow
async def acting_outside(to: int) -> list[Any]:
    child, task = await outside(to)
    await sleep(FORGET)
    return [await child.result(), await task.result()]


@step
async def wavering(folder: str, to: int) -> str:
    """External, and another way each time it runs."""
    mark = Path(folder, "was-here")
    if not mark.exists():
        await send(to, "first way", "news")
        mark.touch()
        while True:
            await asyncio.sleep(0.01)
    await set_event("way", "second")
    await send(to, "second way", "news")
    return "second"


@workflow
async def waver(folder: str, to: int) -> str:
    return await wavering(folder, to)


@step
async def takes_patiently(conn: asyncpg.Connection[Any]) -> Any:
    return await recv("inbox", timeout=1)


@step
def waits_for_event(conn: psycopg.Connection) -> Any:
    return get_event(current_run(), "never")


@step
async def tells_time(conn: asyncpg.Connection[Any]) -> Any:
    return await now()


@step
async def takes_outside() -> Any:
    return await recv("inbox", timeout=0)


@step(isolate="process")
def sends_from_process() -> None:
    send(1, "x")


@step
async def sends_to_nobody(conn: asyncpg.Connection[Any]) -> None:
    await conn.execute(text("never"))
    await send(42, "x")


@step
def sends_to_nobody_sync(session: Session) -> None:
    session.execute(sa.text(text("never")))
    send(42, "x")


left_behind: list[str] = []


@step
async def leaves_a_task(conn: asyncpg.Connection[Any], to: int) -> None:
    async def later() -> None:
        await ended.wait()
        try:
            await send(to, "too late", "news")
        except Exception as error:
            left_behind.append(f"{type(error).__name__}: {error}")

    ended = asyncio.Event()
    left.append((asyncio.create_task(later()), ended))


left: list[tuple[Any, asyncio.Event]] = []


@step
async def free_the_task() -> list[str]:
    task, ended = left.pop()
    ended.set()
    await task
    return left_behind


@workflow
async def leaving_a_task(to: int) -> list[str]:
    await leaves_a_task(to)
    return await free_the_task()


MISUSES: dict[str, Callable[[], Any]] = {
    "recv that waits": lambda: takes_patiently(),
    "get_event that waits": lambda: waits_for_event.aio(),
    "now": lambda: tells_time(),
    "recv in an external step": lambda: takes_outside(),
    "send from a process": lambda: sends_from_process.aio(),
    "send to nobody": lambda: sends_to_nobody(),
    "send to nobody, sync": lambda: sends_to_nobody_sync.aio(),
}


@workflow
async def misuse_inside(name: str) -> Any:
    return await MISUSES[name]()
