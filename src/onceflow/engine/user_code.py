"""Calls of the user's functions: what would end the worker's loop, or hang a future, becomes an ordinary error."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from onceflow.authoring.deferral import TaskWaits
from onceflow.engine.waits import Suspended

_LEAVES = (SystemExit, KeyboardInterrupt)
# Out of a thread these are never the engine's: it cancels coroutines only.
_OF_A_THREAD = (*_LEAVES, StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)


class StoppedTask(Protocol):
    """What is asked of a task: is it lost, stopped or suspended?"""

    @property
    def is_over(self) -> bool: ...


def call_user(work: Callable[[], Any], what: str) -> Any:
    """The function's result. SystemExit, KeyboardInterrupt, StopIteration and a CancelledError come out as RuntimeError."""
    try:
        return work()
    except _OF_A_THREAD as error:
        raise tamed(error, what) from error


async def await_user(work: Awaitable[Any], what: str) -> Any:
    """The same for a coroutine, which Python itself keeps from raising StopIteration."""
    try:
        return await work
    except _LEAVES as error:
        raise tamed(error, what) from error


def call_step(work: Callable[[], Any], what: str, task: StoppedTask) -> Any:
    """A step's function in a thread: no error but an Exception comes out, for only that can be the outcome of a try; or a TaskWaits.

    Nor a Suspended, unless the task tells it to its code: a step may have kept it from another run.
    """
    try:
        return call_user(work, what)
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, TaskWaits) or (isinstance(error, Suspended) and task.is_over):
            raise
        raise tamed(error, what) from error


async def await_step(work: Awaitable[Any], what: str, task: StoppedTask) -> Any:
    """The same for a step's coroutine."""
    try:
        return await await_user(work, what)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        if isinstance(error, TaskWaits) or (isinstance(error, Suspended) and task.is_over):
            raise
        raise tamed(error, what) from error


def tamed(error: BaseException, what: str) -> RuntimeError:
    if isinstance(error, StopIteration):
        return RuntimeError(f"{what} raised {error!r}: give next() a default, or catch it")
    return RuntimeError(f"{what} raised {error!r}: it cannot end its worker; raise an ordinary exception instead")
