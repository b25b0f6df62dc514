"""The strands of a body: which of them do something, and which only wait.

Each asyncio task begun in a body is a strand; a body in a thread is one. A strand is quiet in a durable wait, and while it
waits for another strand (gather, a task group, a lock of asyncio's). When all are quiet, the body can leave memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

THREAD = "thread"
Strand = asyncio.Task[Any] | str
ENDLESS: set[asyncio.Task[Any]] = set()
"""Tasks that catch every error and go on. They get no answer any more; collecting them as garbage would wake them."""
_MEANS = tuple(module.__file__ for module in (asyncio.taskgroups, asyncio.locks, asyncio.queues))


class Branches:
    """`changes` tells whether anything moved between two looks."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changes = 0
        self._changed = changed
        self._busy: dict[Strand, str] = {}  # the path of its scope
        self._waiting: dict[Strand, str] = {}
        self._root: Strand | None = None  # the body itself
        self.engaged: set[asyncio.Task[Any] | None] = set()  # strands in the midst of a call of the engine's

    def follow(self, task: asyncio.Task[Any], path: str) -> None:
        """Counts a task until it is done."""
        self._root = self._root or task
        self._busy[task] = path
        task.add_done_callback(self._forget)

    def follow_thread(self) -> None:
        """The body is a plain function in a thread."""
        self._root = THREAD
        self._busy[THREAD] = ""

    def enter_wait(self) -> Strand | None:
        """The present strand waits from now on; answers it for `leave_wait`. None: it is no strand, or waits already."""
        task = asyncio.current_task()
        strand: Strand = task if task is not None and (task in self._busy or task in self._waiting) else THREAD
        if strand not in self._busy:
            return None
        self._waiting[strand] = self._busy.pop(strand)
        self._move()
        return strand

    def leave_wait(self, strand: Strand | None) -> None:
        if strand is not None and strand in self._waiting:
            self._busy[strand] = self._waiting.pop(strand)
        self._move()

    def are_quiet(self) -> bool:
        """Whether no strand will go on without a wait coming true. A body that has ended leaves nothing to wait for."""
        if self._root not in self._waiting and self._root not in self._busy:
            return False
        return all(strand is not THREAD and self._awaits_strand(strand) for strand in self._busy)

    def are_still(self) -> bool:
        """The same, and none is just about to go on because what it waited for is there."""
        waiters = [strand._fut_waiter for strand in self._waiting if isinstance(strand, asyncio.Task)]  # type: ignore[attr-defined]
        return self.are_quiet() and all(waiter is not None and not waiter.done() for waiter in waiters)

    async def end_all(self, timeout_s: float) -> list[str]:
        """Cancels the strands that their body has left behind; answers the paths of their scopes."""
        left = {strand: path for strand, path in (self._busy | self._waiting).items() if isinstance(strand, asyncio.Task) and not strand.done()}
        for strand in left:
            strand.cancel()
        if left:
            await asyncio.wait(left, timeout=timeout_s)
        for strand in left:
            if not strand.done():
                ENDLESS.add(strand)
            elif not strand.cancelled():
                strand.exception()  # nobody else will ask for it
        return list(left.values())

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._busy.pop(task, None)
        self._waiting.pop(task, None)
        self._move()

    def _move(self) -> None:
        self.changes += 1
        self._changed()

    def _awaits_strand(self, task: Any) -> bool:
        """Sits this task in asyncio's own means of waiting for other tasks?"""
        waiter = task._fut_waiter
        if waiter is None or waiter.done() or task in self.engaged:
            return False
        if isinstance(waiter, asyncio.Task):
            return waiter in self._busy or waiter in self._waiting
        if children := getattr(waiter, "_children", None):  # of gather
            return all(child.done() or child in self._busy or child in self._waiting for child in children)
        code = getattr(_innermost(task.get_coro()), "cr_code", None)
        return code is not None and (code.co_filename in _MEANS or (code.co_filename == asyncio.tasks.__file__ and code.co_name == "_wait"))


def _innermost(coro: Any) -> Any:
    """The coroutine at the end of the chain of awaits."""
    while hasattr(inner := getattr(coro, "cr_await", None), "cr_await"):
        coro = inner
    return coro
