"""Notices that an event loop stands still, and who keeps it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import TracebackType

log = logging.getLogger("onceflow.triggerer")
STALL_S = 1.0


class StallWatch:
    """For the `with` block: a thread that asks the loop for a sign of life, and warns with the name and the place of what blocks it for longer than a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._loop_thread = loop, threading.get_ident()
        self._answered, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="onceflow-stalls", daemon=True)

    def __enter__(self) -> StallWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(STALL_S / 4):
            self._answered.clear()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._answered.wait(STALL_S):
                self._tell(asked)

    def _tell(self, asked: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        place = traceback.extract_stack(frame)[-1] if frame is not None else None
        task = asyncio.current_task(self._loop)
        who = task.get_name() if task is not None else "something"
        log.warning(
            "%s blocks the event loop, so no other trigger goes on: await in it, never block",
            who,
            extra={"at": f"{place.filename}:{place.lineno}" if place else "?", "since_s": round(time.monotonic() - asked, 1)},
        )
        self._answered.wait()
