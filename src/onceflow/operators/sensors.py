"""Sensors that come along: for files, SQL conditions, moments, and tasks of other dags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from onceflow.authoring.deferral import BaseTrigger, TaskRescheduled
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.sensor import BaseSensor, PokeReturnValue
from onceflow.checks import check_duration, check_name, check_text, show
from onceflow.db import trigger_calls
from onceflow.errors import AuthoringError, FailTask
from onceflow.triggers.file import FileTrigger, find_files
from onceflow.triggers.sql import SqlTrigger


class FileSensor(BaseSensor):
    """Waits until a file matches `path` (a path, or a glob pattern); its output is the sorted list of what matches.

    >>> FileSensor("arrived", path="/data/{{ ds }}/*.csv", mode="deferrable", poke_interval=5)   # doctest: +SKIP
    """

    template_fields = ("path",)

    def __init__(self, task_id: str, *, path: str, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.path = check_text(str(path), f"sensor {self.task_id}: path")
        self.follow_fields()

    def poke(self, context: dict[str, Any]) -> PokeReturnValue:
        found = find_files(self.path)
        return PokeReturnValue(bool(found), found)

    def make_trigger(self, context: dict[str, Any]) -> BaseTrigger:
        return FileTrigger(self.path, self.patience.interval_s)


class SqlSensor(BaseSensor):
    """Waits until the first column of a query's first row is true; its output is that value. `database`: a registered one, or that of the steps.

    >>> SqlSensor("loaded", sql="select count(*) > 0 from rate where day = '{{ ds }}'", poke_interval=10)   # doctest: +SKIP
    """

    template_fields = ("sql",)

    def __init__(self, task_id: str, *, sql: str, database: str | None = None, mode: str = "deferrable", **options: Any) -> None:
        if mode != "deferrable":
            raise AuthoringError(f"sensor {task_id}: SqlSensor works in mode 'deferrable'; for a look from a worker, write @sensor with a connection")
        super().__init__(task_id, mode=mode, **options)
        self.sql, self.database_name = check_text(sql, f"sensor {self.task_id}: sql"), database
        self.follow_fields()

    def make_trigger(self, context: dict[str, Any]) -> BaseTrigger:
        return SqlTrigger(self.sql, self.database_name, self.patience.interval_s)


class DateTimeSensor(BaseOperator):
    """Waits until a moment, by the engine's clock, without a slot and without a triggerer. `target_time`: a datetime, or an ISO text (templates work).

    >>> DateTimeSensor("six", target_time="{{ data_interval_end }}")   # doctest: +SKIP
    """

    template_fields = ("target_time",)

    def __init__(self, task_id: str, *, target_time: datetime | str, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.target_time = target_time
        self.follow_fields()

    def execute(self, context: dict[str, Any]) -> None:
        wait_until(self.target_time if isinstance(self.target_time, datetime) else datetime.fromisoformat(str(self.target_time)))


class TimeDeltaSensor(BaseOperator):
    """Waits until a time after the end of the run's data interval."""

    def __init__(self, task_id: str, *, delta: timedelta, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.delta = check_duration(delta, f"sensor {self.task_id}: delta", error=AuthoringError)

    def execute(self, context: dict[str, Any]) -> None:
        wait_until(context["data_interval_end"] + self.delta)


def wait_until(moment: datetime) -> None:
    """Leaves the task until then; comes back at once when it is past."""
    left_s = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    if left_s > 0:
        raise TaskRescheduled(left_s)


class ExternalTaskSensor(BaseSensor):
    """Waits for a task of another dag, or for its run, of the same logical date.

    `external_task_id` or `external_task_ids`: without any it waits for the run. The date is this run's, less `execution_delta`, or what
    `execution_date_fn(logical_date)` answers. Succeeds when all are in `allowed_states`; fails at once for one in `failed_states`, and skips for one in `skipped_states`.
    """

    def __init__(
        self,
        task_id: str,
        *,
        external_dag_id: str,
        external_task_id: str | None = None,
        external_task_ids: Sequence[str] | None = None,
        execution_delta: timedelta | None = None,
        execution_date_fn: Callable[[datetime], datetime] | None = None,
        allowed_states: Sequence[str] = ("success",),
        failed_states: Sequence[str] = ("failed", "upstream_failed", "cancelled"),
        mode: str = "reschedule",
        **options: Any,
    ) -> None:
        super().__init__(task_id, mode=mode, **options)
        where = f"sensor {self.task_id}"
        if external_task_id is not None and external_task_ids is not None:
            raise AuthoringError(f"{where}: give external_task_id or external_task_ids, not both")
        if execution_delta is not None and execution_date_fn is not None:
            raise AuthoringError(f"{where}: give execution_delta or execution_date_fn, not both")
        if isinstance(external_task_ids, str):
            raise AuthoringError(f"{where}: external_task_ids must be a list of ids, not {show(external_task_ids)}")
        self.external_dag_id = check_name(external_dag_id, f"{where}: external_dag_id", error=AuthoringError)
        self.external_task_ids = [external_task_id] if external_task_id is not None else list(external_task_ids or [])
        self.execution_delta, self.execution_date_fn = execution_delta, execution_date_fn
        self.allowed_states, self.failed_states = list(allowed_states), list(failed_states)
        if both := set(self.allowed_states) & set(self.failed_states):
            raise AuthoringError(f"{where}: {sorted(both)[0]} is both allowed and failed")

    async def poke(self, context: dict[str, Any]) -> bool:
        date = context["logical_date"]
        if self.execution_date_fn is not None:
            date = await asyncio.to_thread(self.execution_date_fn, date)
        elif self.execution_delta is not None:
            date -= self.execution_delta
        states = await context["ti"].ask(trigger_calls.read_external(self.external_dag_id, date.isoformat(), self.external_task_ids))
        bad = [f"{name} is {state}" for name, state in states if state in self.failed_states]
        if bad:
            raise FailTask(f"{self.external_dag_id} of {date.isoformat()}: {', '.join(bad)}")
        return bool(states) and all(state in self.allowed_states for _, state in states)
