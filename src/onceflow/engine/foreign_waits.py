"""asyncio's own timeouts and races around steps: refused, since what they decide would not be recorded.

Three places see them all: where a task is made (wait_for of a coroutine on Python 3.11, as_completed), where a call of the
engine's begins (wait_for on 3.12, which awaits in place), and where somebody asks a strand to tell of its end (wait_for and
as_completed of tasks, asyncio.wait). asyncio.timeout shows in none of them: a worker watches it where it is entered.
"""

from __future__ import annotations

import asyncio.timeouts
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from onceflow.errors import NonDeterminismError

_REFUSED = {
    "wait_for": "onceflow.timeout",
    "timeout": "onceflow.timeout",
    "as_completed": "onceflow.gather or onceflow.first_of",
    "wait": "onceflow.gather or onceflow.first_of",
}
_ENDS = ("_run", "run_forever", "run")  # of the event loop: below them nothing is the body's
_ENGINE = os.path.dirname(__file__)


def refuse_unrecorded_waits() -> None:
    """Raises NonDeterminismError when called, at any depth, from wait_for or as_completed of asyncio."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_name not in _ENDS:
        if (name := name_refused(frame)) in ("wait_for", "as_completed"):
            raise refusal_of(name)
        frame = frame.f_back


def refuse_waiting_for_strand(frame: FrameType | None) -> None:
    """Raises NonDeterminismError if this frame, which asks a strand to tell of its end, decides by which one is first or by the clock."""
    name = name_refused(frame) if frame is not None else None
    if frame is None or name is None:
        return
    if name == "wait":
        asked = frame.f_back.f_back if frame.f_back is not None else None
        is_ours = asked is not None and asked.f_code.co_filename.startswith(_ENGINE)
        if is_ours or (frame.f_locals.get("return_when") == asyncio.ALL_COMPLETED and frame.f_locals.get("timeout") is None):
            return
    raise refusal_of(name)


def name_refused(frame: FrameType) -> str | None:
    """The function of asyncio's that this frame is of, if it is one of those that may be refused."""
    code = frame.f_code
    if not code.co_filename.endswith(("asyncio/tasks.py", "asyncio\\tasks.py")):
        return None
    name = "as_completed" if code.co_qualname.startswith("_AsCompleted") else {"_wait": "wait"}.get(code.co_name, code.co_name)
    return name if name in _REFUSED else None


def refusal_of(name: str) -> NonDeterminismError:
    decides = "by the clock" if name in ("wait_for", "timeout") else "by which one is first"
    return NonDeterminismError(
        f"asyncio.{name} around steps decides {decides}, and that is not recorded: a replay could take another path. Use {_REFUSED[name]}."
    )


def watch_timeouts(refuse_in_body: Callable[[NonDeterminismError], None]) -> None:
    """From now on, in this process, entering asyncio.timeout calls `refuse_in_body`, which raises the error where it stands in a body."""
    enter = asyncio.timeouts.Timeout.__aenter__
    if getattr(enter, "is_watched", False):
        return

    async def watched(self: Any) -> Any:
        if self.when() is not None:
            caller = sys._getframe(1)
            refuse_in_body(refusal_of("wait_for" if name_refused(caller) == "wait_for" else "timeout"))
        return await enter(self)

    watched.is_watched = True  # type: ignore[attr-defined]
    asyncio.timeouts.Timeout.__aenter__ = watched  # type: ignore[method-assign]
