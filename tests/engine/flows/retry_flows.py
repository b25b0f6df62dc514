"""Bodies that handle some failures and end by others; a file repairs what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noting import Unwell, hold, note

from onceflow import continue_as, gather, step, workflow


class TooMany(Exception):
    pass


@step
async def need(folder: str, name: str) -> str:
    """Counts its calls in a file of its name; fails until it is repaired."""
    with Path(folder, name).open("a") as file:
        file.write("x")
    if not Path(folder, "repaired").exists():
        raise Unwell(name)
    return name


async def try_need(folder: str, name: str) -> str:
    try:
        return await need(folder, name)
    except Unwell:
        await note(f"{name} was bad")
        return f"no {name}"


@workflow
async def handling(folder: str) -> list[str]:
    handled = await try_need(folder, "handled")
    return [handled, await need(folder, "last")]


@workflow(retries=1)
async def handling_twice(folder: str) -> list[str]:
    """The first try repairs what the second needs."""
    handled = await try_need(folder, "handled")
    try:
        return [handled, await need(folder, "last")]
    finally:
        Path(folder, "repaired").touch()


@workflow
async def handling_from(folder: str, how: str) -> list[str]:
    """What it fails by is raised anew."""
    handled = await try_need(folder, "handled")
    try:
        return [handled, await need(folder, "last")]
    except Unwell as error:
        if how == "from it":
            raise TooMany(how) from error
        raise TooMany(how)  # noqa: B904


@workflow
async def handling_in_gather(folder: str) -> list[str]:
    first = await gather(need(folder, "a"), need(folder, "b"), return_exceptions=True)
    return [*[str(one) for one in first], *await gather(need(folder, "c"), need(folder, "d"), note("e"))]


@workflow
async def counting_failures(folder: str) -> list[str]:
    """Fails by a reason of its own: it may be any of them."""
    found = [await try_need(folder, "one"), await try_need(folder, "two")]
    if "no one" in found:
        raise TooMany("two of two") from None
    return found


@workflow
async def needing(folder: str, name: str) -> str:
    return await need(folder, name)


@workflow
async def needing_later(folder: str, name: str, goes: int = 1) -> str:
    """Fails in the run in which it goes on."""
    if goes:
        await continue_as(folder, name, goes - 1)
    return await need(folder, name)


@workflow
async def handling_children(folder: str) -> list[str]:
    """One child's failure is handled, a second one's too, which has gone on as another run; a third is never asked; by a fourth it fails."""
    bad, gone, unasked, last = [
        await needing.start(folder, "bad"),
        await needing_later.start(folder, "gone"),
        await needing.start(folder, "unasked"),
        await needing.start(folder, "last"),
    ]
    found: list[str] = []
    for child in (bad, gone):
        try:
            found.append(await child.result())
        except Unwell as error:
            found.append(f"no {error}")
    return [*found, await last.result(), await unasked.result()]


@workflow
async def handling_tasks(folder: str) -> list[Any]:
    bad, last = await need.start(folder, "bad"), await need.start(folder, "last")
    found: list[str] = []
    try:
        found.append(await bad.result())
    except Unwell as error:
        found.append(f"no {error}")
    return [*found, await last.result()]


@workflow
async def handling_then_holding(folder: str, gate: str) -> str:
    handled = await try_need(folder, "handled")
    await hold(gate)
    return handled
