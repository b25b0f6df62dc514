"""Durable code: branches, decisions, identities. Each flow forgets itself at least once and is replayed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from noting import FORGET, Unwell, fail, hold, keep, keep_sync, need_file, note, pay, pay_slowly, plain

import onceflow
from onceflow import (
    RetryPolicy,
    current_run,
    first_of,
    gather,
    idempotency_key,
    now,
    recv,
    sleep,
    step,
    uuid4,
    workflow,
)


@workflow
async def gathering() -> list[Any]:
    first = await gather(pay("a"), pay("b"), note("c"), gather(pay("d"), note("e")))
    mixed = await gather(note("f"), fail("g"), plain(3), return_exceptions=True)
    try:
        await gather(note("h"), fail("first"), fail("second"), note("i"))
    except Unwell as error:
        raised = str(error)
    await sleep(FORGET)
    return [first, [m if isinstance(m, str | int) else repr(m) for m in mixed], raised, await gather()]


@workflow
async def asyncio_gathering() -> list[Any]:
    first = await asyncio.gather(pay("a"), pay("b"), note("c"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pay("d")), group.create_task(pay("e"))]
        await note("f")
    lock = asyncio.Lock()

    async def one_by_one(name: str) -> str:
        async with lock:
            return await pay(name)

    third = await asyncio.gather(one_by_one("g"), one_by_one("h"))
    task = asyncio.create_task(pay("i"))
    await note("j")
    fourth = await task
    return [first, [t.result() for t in tasks], third, fourth]


@workflow
async def left_behind() -> str:
    """asyncio.gather raises at once; the branch that it leaves behind never ends."""
    try:
        await asyncio.gather(fail("at once"), pay_slowly("x"))
    except Unwell:
        await note("caught")
    await sleep(FORGET)
    return "done"


@workflow
async def racing() -> list[Any]:
    """The decision is recorded: after a replay the same branch has won."""
    found: list[Any] = [await first_of(slow("tortoise", 30), slow("hare", 0.01))]
    await sleep(FORGET)
    found.append(await first_of(note("one"), note("two")))
    try:
        await first_of(fail("broken"), sleep(30))
    except Unwell as error:
        found.append(str(error))
    found.append(await first_of(recv("never"), sleep(0.01)))
    await sleep(FORGET)
    return found


async def slow(name: str, seconds: float) -> str:
    await note(f"{name} starts")
    await sleep(seconds)
    return name


@workflow
async def limited(gate: str) -> list[Any]:
    found: list[Any] = [await onceflow.timeout(note("in time"), 30)]
    for branch in (recv("never"), hold(gate), slow("snail", 30)):
        try:
            await onceflow.timeout(branch, timedelta(seconds=0.05))
        except TimeoutError as error:
            found.append(type(error).__name__)
    await sleep(FORGET)
    return found


@workflow
async def decisions() -> list[Any]:
    """What was recorded on the first run, and what a replay sees."""
    chosen = [await now(), await onceflow.random(), await uuid4(), await now(), await onceflow.random()]
    first = await keep(chosen)
    await sleep(FORGET)
    return [first, chosen]


@workflow
def decisions_sync() -> list[Any]:
    chosen = [now(), onceflow.random(), uuid4(), now(), onceflow.random()]
    first = keep_sync(chosen)
    sleep(FORGET)
    return [first, chosen]


@step
async def my_key() -> tuple[str, str, str, str]:
    run = current_run()
    return idempotency_key(), run.run_id, run.dag_id, run.step_key


@workflow
async def keyed(branched: bool) -> str:
    return str((await gather(my_key()))[0][0] if branched else (await my_key())[0])


@step(retries=2)
async def key_of_tries(folder: str) -> list[str]:
    path = Path(folder, "keys")
    with path.open("a") as file:
        file.write(idempotency_key() + "\n")
    keys = path.read_text().split()
    if len(keys) < 3:
        raise Unwell("again")
    return keys


@workflow
async def identities(folder: str) -> dict[str, Any]:
    run = current_run()
    handles = [await my_key.start(), await my_key.start()]
    found = {
        "body": [run.run_id, run.dag_id],
        "direct": [await my_key(), await my_key()],
        "gathered": await gather(my_key(), branch_key()),
        "started": [await h.result() for h in handles],
        "tries": await key_of_tries(folder),
    }
    await sleep(FORGET)
    return found


async def branch_key() -> Any:
    return await my_key()


@step(retries=2)
async def outer(folder: str) -> list[Any]:
    """Its first try fails behind a sub-step that succeeded and one that failed."""
    path = Path(folder, f"outer-{current_run().try_number}")
    path.touch()
    found: list[Any] = [await note("inner"), await asyncio.gather(note("left"), note("right"))]
    try:
        await need_file(folder)
        found.append("needed")
    except Unwell:
        Path(folder, "repaired").touch()
        raise
    return found


@workflow
async def nesting(folder: str) -> list[Any]:
    found = await outer(folder)
    await sleep(FORGET)
    return [found, await note("end")]


@step(retry=RetryPolicy(retries=5, delay=timedelta(seconds=0.3)))
async def slowly_retried(folder: str) -> int:
    marks = len(list(Path(folder).glob("mark-*")))
    Path(folder, f"mark-{marks}").touch()
    if marks < 2:
        raise Unwell("again")
    return marks


@workflow
async def waits_for_retry(folder: str) -> int:
    """While it waits for the next try it is forgotten."""
    return await slowly_retried(folder)


@workflow
async def racing_messages(seconds: float) -> list[Any]:
    """A message against the clock: whoever wins, the message is either received or still there."""
    winner, value = await first_of(recv("m"), sleep(seconds))
    return [winner, value]


@workflow
async def many_branches(n: int) -> list[Any]:
    """Branches of every make, each with a wait in its middle."""
    first = await gather(*(pay(f"a{i}") for i in range(n)))
    second = await asyncio.gather(*(pay(f"b{i}") for i in range(n)))
    async with asyncio.TaskGroup() as group:
        third = [group.create_task(pay(f"c{i}")) for i in range(n)]
    handles = [await counted_note.start(f"d{i}") for i in range(n)]
    return [first, second, [t.result() for t in third], [await h.result() for h in handles], await first_of(pay("e"), sleep(30))]


@step
async def counted_note(conn: asyncpg.Connection[Any], text: str) -> str:
    return await note.fn(conn, text)
