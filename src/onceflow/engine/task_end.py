"""What a task of a dag makes of its result: a branch's decision, several outputs, nothing at all."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.checks import show
from onceflow.engine.mapped_values import make_lists
from onceflow.engine.outlet_events import OutletEvents
from onceflow.engine.stored_values import store_large
from onceflow.engine.task_context import TaskInstance
from onceflow.engine.task_run import TaskRun
from onceflow.errors import AuthoringError


def end_with(task: TaskRun, operator: BaseOperator, ti: TaskInstance, pushed: dict[str, str], fn: Callable[..., Any]) -> Callable[..., Any]:
    """The task's function, so that each pass of it starts with nothing pushed, and its result is settled before it is recorded."""
    store = task.services.store
    events: OutletEvents = ti.outlet_events

    def keep(value: Any) -> Any:
        return value if store is None else store_large(store, task.claimed, operator, pushed, value)

    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            pushed.clear()
            events.clear()
            value = settle_result(operator, ti, events.collect(await fn(*args, **kwargs)))
            events.save(pushed)
            return value if store is None else await asyncio.to_thread(keep, value)

        return call_async

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        pushed.clear()
        events.clear()
        value = settle_result(operator, ti, make_lists(events.collect(fn(*args, **kwargs))))
        events.save(pushed)
        return keep(value)

    return call


def settle_result(operator: BaseOperator, ti: TaskInstance, value: Any) -> Any:
    """The output to record. Raises AuthoringError for a result that says nothing the dag can go by."""
    if operator.decides == "branch":
        return choose_branch(operator, value)
    if operator.decides is not None:
        return bool(value)
    if operator.options.multiple_outputs and value is not None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise AuthoringError(f"task {operator.task_id} has multiple_outputs=True, so it must return a dict with texts for keys, not {show(value)}")
        for key, item in value.items() if not ti.is_elsewhere else ():  # there each key is read out of the output
            ti.xcom_push(key, item)
    return value if operator.options.do_xcom_push else None


def choose_branch(operator: BaseOperator, value: Any) -> Any:
    """The ids of the tasks that go on: as answered, but a group is its first tasks."""
    answered = [] if value is None else [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple | set) else None
    if answered is None or not all(isinstance(one, str) for one in answered):
        raise AuthoringError(f"branch {operator.task_id} must answer the id of a task, a list of ids, or None, not {show(value)}")
    chosen: list[str] = []
    for name in answered:
        group = operator.dag.groups.get(name)
        firsts = [task.task_id for task in group.list_ends(first=True)] if group else [name]
        directly = [task_id for task_id in firsts if task_id in operator.downstream]
        if not directly:
            raise AuthoringError(
                f"branch {operator.task_id} answered {name!r}, which is not directly downstream of it; those are {sorted(operator.downstream)}"
            )
        chosen += directly
    return chosen[0] if isinstance(value, str) and len(chosen) == 1 else chosen
