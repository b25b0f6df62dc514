"""Runs of which one at a time is enough."""

from __future__ import annotations

from typing import Any

from onceflow import continue_as, recv, workflow


@workflow
async def refresh(day: str, round: int = 1) -> str:
    """Ends when it is told to; "again" lets it go on as another run."""
    word = await recv("word")
    if word == "again":
        await continue_as(day, round + 1)
    return f"{day} {round}: {word}"


@workflow
async def wants(day: str, text: str) -> Any:
    handle = await refresh.using(deduplicate=text).start(day)
    return [await handle.result(), handle.run_id]
