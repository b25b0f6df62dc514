"""A dag as data: what the database keeps of it, checked."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from onceflow.authoring.dataset import describe_datasets, describe_task_datasets, show_schedule
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.xcom_arg import XComArg, find_item_arguments
from onceflow.authoring.schedule import pack_schedule
from onceflow.authoring.task_options import TaskOptions
from onceflow.authoring.timetable import Bounds
from onceflow.codec import encode
from onceflow.errors import AuthoringError


def describe_dag(dag: DAG) -> dict[str, Any]:
    """The dag's plan as plain JSON: its tasks in an order that follows the arrows. Raises AuthoringError for a cycle."""
    order = sort_tasks(dag)
    numbers = {task.task_id: ix for ix, task in enumerate(order)}
    weights, leaves = weigh_tasks(order), find_leaves(order)
    leaders: dict[str, int] = {}  # the first task of each mapped group stands for it
    for task in order:
        if task.mapped_group is not None:
            leaders.setdefault(task.mapped_group.group_id, numbers[task.task_id])
    return {
        **describe_schedule(dag),
        **describe_datasets(dag.condition, order),
        "description": dag.description,
        "owner": dag.owner,
        "tags": dag.tags,
        "priority": dag.priority,
        "team": dag.team,
        "max_active_runs": dag.max_active_runs,
        "max_active_tasks": dag.max_active_tasks,
        "params": json.loads(encode(dag.params, where=f"params of dag {dag.dag_id}")),
        "tasks": [_describe_task(task, numbers, weights, leaves) | _describe_mapping(task, numbers, leaders) for task in order],
        "param_schemas": dag.param_schemas,
        "listens": dag.listens,
        **({"deadlines": [deadline.describe() for deadline in dag.deadlines]} if dag.deadlines else {}),
        "groups": [{"group_id": g.group_id, "parent": g.parent.group_id if g.parent else None, "tooltip": g.tooltip} for g in dag.groups.values()],
        "labels": [[numbers[above], numbers[below], text] for (above, below), text in dag.labels.items()],
    }


def describe_schedule(dag: DAG) -> dict[str, Any]:
    """When the dag runs: for people, and for a scheduler that does not have its file."""
    schedule = dag.schedule
    return {
        "schedule_interval": None if schedule is None else str(schedule) if isinstance(schedule, str | timedelta) else repr(schedule),
        "timetable_description": show_schedule(schedule, dag.timetable),
        "schedule": pack_schedule(dag.timetable, Bounds(dag.start_date, dag.end_date), dag.catchup, dag.timezone) if dag.timetable.makes_runs else None,
    }


def sort_tasks(dag: DAG) -> list[BaseOperator]:
    """The tasks, upstream ones first, else in the order they were described. A cycle is refused, shown as a path."""
    order: list[BaseOperator] = []
    left = dict(dag.tasks)
    placed: set[str] = set()
    while left:
        free = [task for task in left.values() if placed.issuperset(task.upstream)]
        if not free:
            raise AuthoringError(f"dag {dag.dag_id} in {dag.fileloc} has a cycle: {' >> '.join(_find_cycle(left))}; remove one of these arrows")
        for task in free:
            order.append(task)
            placed.add(task.task_id)
            del left[task.task_id]
    return order


def _find_cycle(left: dict[str, BaseOperator]) -> list[str]:
    path = [next(iter(left))]
    while path.count(path[-1]) < 2:
        path.append(next(name for name in left[path[-1]].upstream if name in left))
    return path[path.index(path[-1]) :][::-1]


def find_leaves(order: list[BaseOperator]) -> set[str]:
    """The tasks from which a run's state is read: none that matters lies below them. A teardown matters only if it says so."""

    def matters(task: BaseOperator) -> bool:
        return not task.options.is_teardown or task.options.on_failure_fail_dagrun

    found = {task.task_id for task in order if matters(task) and not any(matters(below) for below in task.downstream.values())}
    return found or {task.task_id for task in order if not task.downstream}


def weigh_tasks(order: list[BaseOperator]) -> dict[str, int]:
    """Each task's weight by its rule: its own, plus that of every distinct task downstream (or upstream) of it; none is counted twice."""
    below = _reach(reversed(order), "downstream")
    above = _reach(order, "upstream")
    own = {task.task_id: task.options.priority_weight for task in order}
    reach = {"downstream": below, "upstream": above}
    return {task.task_id: own[task.task_id] + sum(own[other] for other in reach.get(task.options.weight_rule, {}).get(task.task_id, ())) for task in order}


def _reach(order: Any, direction: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task in order:
        nearest = getattr(task, direction)
        found[task.task_id] = set(nearest).union(*(found[name] for name in nearest))
    return found


def _describe_task(task: BaseOperator, numbers: dict[str, int], weights: dict[str, int], leaves: set[str]) -> dict[str, Any]:
    options = task.options
    return {
        "ix": numbers[task.task_id],
        "task_id": task.task_id,
        "operator": task.operator_name,
        "kind": task.kind,
        "trigger_rule": options.trigger_rule,
        "upstream": sorted(numbers[name] for name in task.upstream),
        "downstream": sorted(numbers[name] for name in task.downstream),
        "retries": task.retry.retries,
        "weight": weights[task.task_id],
        "queue": options.queue,
        "pool": options.pool,
        "pool_slots": options.pool_slots,
        "max_tis": options.max_active_tis_per_dag,
        "max_in_run": options.max_active_tis_per_dagrun,
        "is_leaf": task.task_id in leaves,
        "executor_config": options.executor_config or None,
        "decides": task.decides,
        "is_setup": options.is_setup,
        "is_teardown": options.is_teardown,
        "listens": options.listens(),
        "group": task.group.group_id if task.group else None,
        "timeout_s": None if options.execution_timeout is None else options.execution_timeout.total_seconds(),
        **_describe_past(options),
        **describe_task_datasets(options.outlets, options.inlets),
    }


def _describe_past(options: TaskOptions) -> dict[str, bool]:
    """Who waits for what is downstream in the run before waits for the task there, too."""
    waits = {"depends_on_past": options.depends_on_past or options.wait_for_downstream, "wait_for_downstream": options.wait_for_downstream}
    return {name: True for name, is_set in waits.items() if is_set}


def _describe_mapping(task: BaseOperator, numbers: dict[str, int], leaders: dict[str, int]) -> dict[str, Any]:
    if task.mapping is None:
        return {}
    described: dict[str, Any] = {"mapping": [[parameter, _describe_source(source, task, numbers)] for parameter, source in task.mapping]}
    if task.mapped_group is not None:
        described |= {"map_group": leaders[task.mapped_group.group_id], "takes_item": any(True for _ in find_item_arguments(task.list_arguments()))}
    return described


def _describe_source(source: Any, task: BaseOperator, numbers: dict[str, int]) -> dict[str, Any]:
    if isinstance(source, XComArg):
        return {"ix": numbers[source.operator.task_id], "key": source.key}
    return {"literal": json.loads(encode(source, where=f"expand() of task {task.task_id}"))}
