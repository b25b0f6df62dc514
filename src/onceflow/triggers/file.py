"""A file that appears."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import AsyncIterator
from pathlib import Path

from onceflow.authoring.deferral import BaseTrigger, TriggerEvent
from onceflow.checks import check_seconds, check_text


class FileTrigger(BaseTrigger):
    """Fires when a file matches `path` (a path, or a glob pattern); the event is the sorted list of what matches. Looks every `poke_interval` seconds."""

    def __init__(self, path: str, poke_interval: float = 5.0) -> None:
        self.path = check_text(str(path), "FileTrigger: path")
        self.poke_interval = check_seconds(poke_interval, "FileTrigger: poke_interval")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not (found := await asyncio.to_thread(find_files, self.path)):
            await asyncio.sleep(self.poke_interval)
        yield TriggerEvent(found)


def find_files(path: str) -> list[str]:
    """What matches a path or a glob pattern, sorted."""
    return [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
