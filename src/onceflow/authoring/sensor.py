"""Sensors: tasks that look again and again until something is there."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

from onceflow.authoring.context import need_here
from onceflow.authoring.deferral import BaseTrigger, TaskRescheduled
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.signature import read_connection, read_hints
from onceflow.authoring.step import Step, task
from onceflow.checks import check_choice, check_duration, check_flag, show
from onceflow.errors import AuthoringError, SensorTimeout, SkipTask

MODES = ("poke", "reschedule", "deferrable")


@dataclass(frozen=True, slots=True)
class PokeReturnValue:
    """What a poke may answer in place of True or False, when the sensor shall have an output."""

    is_done: bool
    xcom_value: Any = None

    def __bool__(self) -> bool:
        return self.is_done


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a sensor waits, and how often it looks."""

    interval_s: float
    timeout_s: float
    mode: str
    soft_fail: bool
    exponential_backoff: bool
    max_wait_s: float | None

    def wait_s(self, pokes: int, used_s: float) -> float:
        """How long until the next poke, after `pokes` of them; not beyond the timeout. Raises when that is over."""
        if used_s >= self.timeout_s:
            raise self.give_up()
        wait_s: float = self.interval_s * (2 ** min(pokes - 1, 40) if self.exponential_backoff else 1)
        return max(0.001, min(wait_s, self.max_wait_s or wait_s, self.timeout_s - used_s))

    def give_up(self) -> Exception:
        what = f"what this sensor waits for did not come within {self.timeout_s:g} s"
        return SkipTask(f"{what} (soft_fail)") if self.soft_fail else SensorTimeout(what)


def make_patience(
    where: str,
    poke_interval: float | timedelta,
    timeout: float | timedelta,
    mode: str,
    soft_fail: bool,
    exponential_backoff: bool,
    max_wait: float | timedelta | None,
) -> Patience:
    return Patience(
        read_seconds(poke_interval, f"{where}: poke_interval"),
        read_seconds(timeout, f"{where}: timeout"),
        check_choice(mode, f"{where}: mode", MODES, error=AuthoringError),
        check_flag(soft_fail, f"{where}: soft_fail", error=AuthoringError),
        check_flag(exponential_backoff, f"{where}: exponential_backoff", error=AuthoringError),
        None if max_wait is None else read_seconds(max_wait, f"{where}: max_wait"),
    )


def read_seconds(value: Any, where: str) -> float:
    """Seconds, or a timedelta, greater than 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12:
        return float(value)
    if not isinstance(value, timedelta):
        raise AuthoringError(f"{where} must be seconds, or a timedelta, greater than 0, not {show(value)}")
    return check_duration(value, where, error=AuthoringError).total_seconds()


class BaseSensor(BaseOperator):
    """A task that waits for something: write `poke(context)`, which answers whether it is there (def or async def).

    `poke_interval` and `timeout` are seconds, or timedeltas; the timeout counts from the try's start, and what is over fails the task for
    good (SensorTimeout), or with `soft_fail` skips it. `mode`: "poke" holds its slot while it waits; "reschedule" frees it between two
    pokes, each of which stands in the ledger; "deferrable" frees it and lets a triggerer look, for sensors that have `make_trigger(context)`.
    `exponential_backoff` doubles the interval each time, up to `max_wait`. A poke that raises fails the try, as in any task.

    >>> class RowsThere(BaseSensor):
    ...     def __init__(self, task_id, *, table, **options):
    ...         super().__init__(task_id, **options)
    ...         self.table = table
    ...     def poke(self, context):
    ...         return count_rows(self.table) > 0
    """

    def __init__(
        self,
        task_id: str,
        *,
        poke_interval: float | timedelta = 60,
        timeout: float | timedelta = 3600,
        mode: str = "poke",
        soft_fail: bool = False,
        exponential_backoff: bool = False,
        max_wait: float | timedelta | None = None,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        self.patience = make_patience(f"sensor {self.task_id}", poke_interval, timeout, mode, soft_fail, exponential_backoff, max_wait)
        if mode == "deferrable" and type(self).make_trigger is BaseSensor.make_trigger:
            raise AuthoringError(
                f"sensor {self.task_id}: {type(self).__name__} has no make_trigger(context), so no triggerer can look for it; use mode='reschedule'"
            )

    def poke(self, context: dict[str, Any]) -> Any:
        """Whether it is there; a PokeReturnValue, if the sensor shall have an output."""
        raise NotImplementedError(f"{type(self).__name__} has no poke(context)")

    def make_trigger(self, context: dict[str, Any]) -> BaseTrigger:
        """What looks for it in a triggerer, in mode deferrable."""
        raise NotImplementedError(f"{type(self).__name__} has no make_trigger(context)")

    async def execute(self, context: dict[str, Any]) -> Any:
        if self.patience.mode == "deferrable":
            self.defer(trigger=self.make_trigger(context), method_name="execute_complete", timeout=timedelta(seconds=self.patience.timeout_s))
        looks = Looks(self.patience, context)
        while not (found := await self._poke(context)):
            await asyncio.sleep(looks.wait_s())
        return _output(found)

    def execute_complete(self, context: dict[str, Any], event: Any = None) -> Any:
        """Called when the trigger has fired, in mode deferrable; what it returns is the task's output."""
        return None if event is True else event

    def settle_wait(self, error: Exception) -> Any:
        raise self.patience.give_up() if isinstance(error, TimeoutError) else error

    async def _poke(self, context: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.poke):
            return await self.poke(context)
        return await asyncio.to_thread(self.poke, context)


class Looks:
    """The looks of one try, of which some may have been made before the task came back."""

    def __init__(self, patience: Patience, context: dict[str, Any]) -> None:
        resume = context["ti"].resume or {}
        self._patience = patience
        self._pokes = (resume.get("kwargs") or {}).get("pokes", 0)
        self._began = time.monotonic() - (resume["used_s"] if resume else 0.0)

    def wait_s(self) -> float:
        """After a look in vain: how long to wait. Leaves the task when it gives its slot back meanwhile."""
        self._pokes += 1
        wait_s = self._patience.wait_s(self._pokes, time.monotonic() - self._began)
        if self._patience.mode == "reschedule":
            raise TaskRescheduled(wait_s, {"pokes": self._pokes})
        return wait_s


def _output(found: Any) -> Any:
    return found.xcom_value if isinstance(found, PokeReturnValue) else None


def sensor(
    fn: Callable[..., Any] | None = None,
    *,
    poke_interval: float | timedelta = 60,
    timeout: float | timedelta = 3600,
    mode: str = "reschedule",
    soft_fail: bool = False,
    exponential_backoff: bool = False,
    max_wait: float | timedelta | None = None,
    **options: Any,
) -> Any:
    """Makes a task of a function that answers whether something is there; it is called again until it does.

    As with @task, a connection as its first parameter makes each look a transaction (then mode "reschedule"), and arguments come from other
    tasks or the context. The other options are those of BaseSensor, but that the mode is "reschedule" by default, and of @task.

    >>> @sensor(poke_interval=30, timeout=timedelta(hours=2))
    ... def rows_there(conn: asyncpg.Connection, ds: str) -> bool: ...
    """
    if fn is None:
        return lambda one: sensor(
            one,
            poke_interval=poke_interval,
            timeout=timeout,
            mode=mode,
            soft_fail=soft_fail,
            exponential_backoff=exponential_backoff,
            max_wait=max_wait,
            **options,
        )
    name = getattr(fn, "__qualname__", repr(fn))
    patience = make_patience(f"sensor {name}", poke_interval, timeout, mode, soft_fail, exponential_backoff, max_wait)
    if mode == "deferrable":
        raise AuthoringError(f"sensor {name}: a function cannot be looked for by a triggerer; use mode='reschedule', or a sensor class with make_trigger")
    if mode == "poke" and read_connection(fn, read_hints(fn, "sensor")):
        raise AuthoringError(f"sensor {name}: with a connection, mode='poke' would keep a transaction open for its whole wait; use mode='reschedule'")
    made: Step[..., Any] = task(_look_again(fn, patience), **options)
    return made


def _look_again(fn: Callable[..., Any], patience: Patience) -> Callable[..., Any]:
    """The function, called until it answers something true."""
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            looks = Looks(patience, _context())
            while not (found := await fn(*args, **kwargs)):
                await asyncio.sleep(looks.wait_s())
            return _output(found)

        return call_async

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        looks = Looks(patience, _context())
        while not (found := fn(*args, **kwargs)):
            time.sleep(looks.wait_s())
        return _output(found)

    return call


def _context() -> dict[str, Any]:
    context = need_here("a sensor").context
    if context is None:
        raise AuthoringError("a sensor works as a task of a dag; in a workflow, use recv, get_event or sleep in a loop")
    return context
