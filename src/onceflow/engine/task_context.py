"""What a task of a dag knows of itself and its run: its context, for its parameters, its operator and its templates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onceflow.authoring import registry
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.param import check_params
from onceflow.authoring.graph.xcom_arg import RETURN_VALUE
from onceflow.checks import check_text
from onceflow.codec import decode, encode
from onceflow.db import calls
from onceflow.db.calls import Call
from onceflow.engine.mapped_values import MOST_AT_ONCE, load_value, open_pages
from onceflow.engine.outlet_events import OUTLET_EVENTS, OutletEvents, TriggeringEvents
from onceflow.engine.stored_values import MOST_BYTES
from onceflow.errors import InvalidArgument

if TYPE_CHECKING:
    from onceflow.engine.task_run import TaskRun

MOST_KEY = 512


@dataclass(frozen=True, slots=True)
class DagRun:
    """The run: `conf` are the params it was started with. Times are aware, in UTC."""

    run: int
    dag_id: str
    run_id: str
    run_type: str
    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    conf: dict[str, Any]
    state: str = "running"


@dataclass(slots=True)
class TaskInstance:
    """The task's instance in its run: `ti.xcom_push(key=, value=)`, `ti.xcom_pull(task_ids=, key=)`, and what it is."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    max_tries: int
    state: str
    _task: TaskRun | None = None
    _pushed: dict[str, str] | None = None  # by key, encoded
    resume: dict[str, Any] | None = None  # how this try goes on, if it has waited
    is_elsewhere: bool = False  # its transaction is in another database
    outlet_events: OutletEvents = field(default_factory=lambda: OutletEvents("", ()))

    async def ask(self, call: Call) -> Any:
        """The engine's answer to a call, for operators of its own. From the worker's loop only."""
        assert self._task is not None, "asked outside of a running task"
        return await self._task.services.call_again(call)

    def xcom_push(self, key: str, value: Any) -> None:
        """Gives a value to other tasks under a key. It is written in the transaction that completes this task: of a try that fails nothing stays.

        Raises EncodingError for what cannot be kept, or is larger than max_value_bytes.
        """
        check_text(key, "xcom_push: the key", most=MOST_KEY)
        if self._task is None or self._pushed is None:
            raise InvalidArgument("xcom_push works while the task runs, not in a callback")
        if self.is_elsewhere:
            raise InvalidArgument(f"xcom_push in task {self.task_id}, whose transaction is in another database, could be lost in a crash; return the value")
        if key == OUTLET_EVENTS:
            raise InvalidArgument(f"xcom_push: the key {OUTLET_EVENTS!r} is the engine's; take another")
        if key == RETURN_VALUE:
            raise InvalidArgument(f"xcom_push: the key {RETURN_VALUE!r} is what the task returns; return it, or take another key")
        self._pushed[key] = encode(
            value,
            where=f"xcom_push({key!r}) of task {self.task_id}",
            limit=MOST_BYTES if self._task.services.store else self._task.services.settings.max_value_bytes,
        )

    def xcom_pull(
        self, task_ids: str | Sequence[str] | None = None, key: str = RETURN_VALUE, *, map_indexes: int | Sequence[int] | None = None, default: Any = None
    ) -> Any:
        """What a task of this run returned, or pushed under a key; `default` where there is nothing. A list of task ids gives a list.

        Of a mapped task: the list over its instances, or over `map_indexes`; one index gives one value. Of more than 1,000 instances a def task gets it page
        by page, as it reads. Without task_ids it is this task's own.
        In an `async def` task the answer is a coroutine: `await ti.xcom_pull(...)`.
        """
        task = self._task
        if task is None:
            raise InvalidArgument("xcom_pull works while the task runs, not in a callback")
        names = [self.task_id] if task_ids is None else [task_ids] if isinstance(task_ids, str) else list(task_ids)
        indexes = None if map_indexes is None else [map_indexes] if isinstance(map_indexes, int) else list(map_indexes)
        wanted: list[list[Any]] = [[name, key, *index] for name in names for index in ([[]] if indexes is None else [[number] for number in indexes])]

        is_thread = asyncio._get_running_loop() is not task.loop

        async def pull() -> Any:
            if is_thread and indexes is None and isinstance(task_ids, str) and self._is_mapped(task_ids):
                pages = await open_pages(task, task_ids, key, MOST_AT_ONCE)
                if pages is not None:
                    return pages
            texts = await task.services.call_again(calls.read_values(task.claimed.run, json.dumps(wanted)))
            found = [default if text is None else await load_value(task, decode(text)) for text in texts]
            return found[0] if len(wanted) == 1 and (task_ids is None or isinstance(task_ids, str)) and not isinstance(map_indexes, Sequence) else found

        return task.perform_blocking(pull) if is_thread else pull()

    def _is_mapped(self, task_id: str) -> bool:
        found = registry.find_dag(self.dag_id).tasks.get(task_id)
        return found is not None and found.mapping is not None


def read_run(dag: DAG, *, run: int, run_id: str, logical_date: str, dag_run: dict[str, Any]) -> DagRun:
    """From what a claim, or a callback, tells of a run."""
    date = _moment(logical_date)
    start, end = dag_run["data_interval_start"], dag_run["data_interval_end"]
    conf = decode(json.dumps(dag_run["params"])) if dag_run["params"] else {}
    if not isinstance(conf, dict):
        raise InvalidArgument(f"run {run_id} of dag {dag.dag_id} was started with positional arguments; a dag takes params by name")
    first = date if start is None else _moment(start)
    last = first if end is None else _moment(end)
    return DagRun(run, dag.dag_id, run_id, dag_run["run_type"], date, first, last, conf, dag_run.get("state") or "running")


def build_context(dag: DAG, run: DagRun, operator: BaseOperator | None, ti: TaskInstance | None) -> dict[str, Any]:
    """Everything by name, as Airflow calls it. Raises InvalidArgument for params that do not fit their schemas."""
    params = {**decode(encode(dag.params)), **run.conf}
    date = run.logical_date
    return {
        "dag": dag,
        "dag_run": run,
        "run_id": run.run_id,
        "params": params,
        "logical_date": date,
        "data_interval_start": run.data_interval_start,
        "data_interval_end": run.data_interval_end,
        "ds": f"{date:%Y-%m-%d}",
        "ds_nodash": f"{date:%Y%m%d}",
        "ts": date.isoformat(),
        "ts_nodash": f"{date:%Y%m%dT%H%M%S}",
        "task": operator,
        "ti": ti,
        "task_instance": ti,
        "try_number": ti.try_number if ti else None,
        "map_index": ti.map_index if ti else None,
        "inlets": list(operator.options.inlets) if operator else [],
        "outlets": list(operator.options.outlets) if operator else [],
        "outlet_events": ti.outlet_events if ti else None,
        "triggering_dataset_events": TriggeringEvents(),
    }


def task_context(task: TaskRun, operator: BaseOperator, pushed: dict[str, str]) -> dict[str, Any]:
    """The context of a task that is about to run."""
    held, dag = task.claimed, operator.dag
    ti = TaskInstance(held.dag_id, held.run_id, held.task_id, held.map_index, held.try_number, held.max_tries + 1, "running", task, pushed, held.resume)
    ti.outlet_events = OutletEvents(operator.task_id, operator.options.outlets)
    run = read_run(dag, run=held.run, run_id=held.run_id, logical_date=held.logical_date, dag_run=held.dag_run or {})
    context = build_context(dag, run, operator, ti)
    check_params(context["params"], dag.param_schemas, f"run {held.run_id} of dag {held.dag_id}")
    return context


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
