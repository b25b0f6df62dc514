"""Waiting without a slot: a task hands a trigger over and is gone; when the trigger fires, it goes on with the event."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onceflow.authoring.context import find_here
from onceflow.checks import check_duration, show
from onceflow.codec import decode, encode
from onceflow.errors import AuthoringError, EncodingError, TriggerFailed, WaitTimeout


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """What a trigger saw: any value that can be recorded. It reaches the task, and stands in the ledger."""

    payload: Any = None


class BaseTrigger(ABC):
    """Looks for one thing to happen, without holding a slot of any worker. Write your own by inheriting.

    A triggerer makes it anew from its class and its arguments (which must be recordable, and keep their names as attributes), and runs
    `run()` beside many others in one event loop: await, never block. The first event ends it. After a crash of its triggerer another one
    runs it from the start, so it must look at the present state and not rely on what it saw before. An error of it fails the task's try.

    >>> class RowThere(BaseTrigger):
    ...     def __init__(self, day: str, every_s: float = 1.0):
    ...         self.day, self.every_s = day, every_s
    ...     async def run(self):
    ...         yield TriggerEvent(self.day)
    >>> RowThere("2026-01-01").serialize()[1]
    {'day': '2026-01-01', 'every_s': 1.0}
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path by which a triggerer imports it, and the arguments with which it makes it."""
        names = [
            name
            for name, one in inspect.signature(type(self).__init__).parameters.items()
            if name != "self" and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise AuthoringError(f"{type(self).__qualname__} keeps no attribute {missing[0]!r} for its argument of that name: keep it, or write serialize()")
        return f"{type(self).__module__}:{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    @abstractmethod
    def run(self) -> AsyncIterator[TriggerEvent]:
        """An async generator; its first event is the one that counts."""


class TaskWaits(BaseException):
    """Leaves the task: no error, and nothing that user code should catch."""


class TaskDeferred(TaskWaits):
    """The task waits for a trigger, or for a person's answer, and goes on with `method(context, event=…, **kwargs)`."""

    def __init__(
        self,
        trigger: BaseTrigger | None,
        method: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | None = None,
        approval: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(trigger, method)
        self.trigger, self.method, self.kwargs, self.timeout, self.approval = trigger, method, kwargs or {}, timeout, approval

    def describe(self) -> tuple[str, str]:
        """(next, trigger) as defer_to_trigger takes them. Raises AuthoringError or EncodingError for what cannot be kept."""
        if self.approval is not None:
            shown: dict[str, Any] = {"classpath": "onceflow:approval", "kwargs": {}, "approval": self.approval}
        else:
            assert self.trigger is not None
            classpath, kwargs = self.trigger.serialize()
            if "<" in classpath or classpath.startswith("__main__:"):
                raise AuthoringError(f"trigger {classpath} cannot be imported by a triggerer: define the class at the top of a module of your dags folder")
            try:
                shown = {"classpath": classpath, "kwargs": json.loads(encode(kwargs, where=f"arguments of trigger {classpath}"))}
            except EncodingError as error:
                raise AuthoringError(str(error)) from error
        return json.dumps({"method": self.method, "kwargs": json.loads(encode(self.kwargs, where="kwargs of defer"))}), json.dumps(shown)


class TaskRescheduled(TaskWaits):
    """The task is called again after a time; meanwhile it holds no slot."""

    def __init__(self, delay_s: float, kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(delay_s)
        self.delay_s, self.kwargs = delay_s, kwargs or {}

    def describe(self) -> str:
        return json.dumps({"method": "execute", "kwargs": json.loads(encode(self.kwargs, where="kwargs of a reschedule"))})


def check_trigger(trigger: Any, timeout: Any, what: str) -> None:
    if not isinstance(trigger, BaseTrigger):
        raise AuthoringError(f"{what}: trigger must be a BaseTrigger, such as FileTrigger(…), not {show(trigger)}")
    if timeout is not None:
        check_duration(timeout, f"{what}: timeout", error=AuthoringError)


def defer(trigger: BaseTrigger, *, timeout: timedelta | None = None) -> Any:
    """In a @task function: waits for the trigger without a slot, and answers its event's payload.

    The function leaves here, its transaction is rolled back, and when the event is there it is called once more from its beginning, and
    `defer` answers: so write nothing before it. One `defer` for each call of the function. `timeout` (a timedelta): then WaitTimeout is raised here.

    >>> @task   # doctest: +SKIP
    ... def load(path: str) -> int:
    ...     seen = defer(FileTrigger(path))
    ...     return len(open(path).readlines())
    """
    check_trigger(trigger, timeout, "defer")
    place = find_here("defer")
    context = place.context if place is not None else None
    if context is None:
        raise AuthoringError("defer works in a running task of a dag; in a workflow, use recv, get_event or sleep")
    resume = context["ti"].resume
    if resume is not None:
        return read_event(resume)
    raise TaskDeferred(trigger, "execute", {}, timeout)


def read_event(resume: dict[str, Any]) -> Any:
    """The payload with which a task goes on. Raises WaitTimeout or TriggerFailed."""
    event = resume.get("event")
    if isinstance(event, dict) and "$over" in event:
        raise WaitTimeout("the wait took longer than its timeout")
    if isinstance(event, dict) and "$trigger_error" in event:
        raise TriggerFailed(event["$trigger_error"])
    return decode(json.dumps(event))
