"""Plans of dags for the SQL tests, and what must come of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sql.engine_calls import Engine, Task


@dataclass(frozen=True)
class Node:
    """A task of a made-up dag: its upstream ones by name, its rule, and what it (or its mapped group) is expanded over ((parameter, upstream name or list), …)."""

    upstream: tuple[str, ...] = ()
    rule: str = "all_success"
    mapping: tuple[tuple[str, Any], ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None  # the mapped group it is in; all its tasks say the same mapping


def make_plan(nodes: dict[str, Node]) -> dict[str, Any]:
    """The plan JSON of tasks named in an order that follows the arrows."""
    numbers = {name: ix for ix, name in enumerate(nodes)}
    tasks = []
    for name, node in nodes.items():
        below = [numbers[other] for other, n in nodes.items() if name in n.upstream]
        task = {
            "ix": numbers[name], "task_id": name, "operator": "Made", "trigger_rule": node.rule, "upstream": [numbers[u] for u in node.upstream],
            "downstream": below, "retries": 0, "weight": 1, "queue": None, "pool": "default_pool", "pool_slots": 1, "is_leaf": not below,
        }  # fmt: skip
        if node.mapping is not None:
            sources = [[p, {"ix": numbers[s], "key": "return_value"} if isinstance(s, str) else {"literal": s}] for p, s in node.mapping]
            task["mapping"] = sources
        if node.group is not None:
            task["map_group"] = min(numbers[other] for other, n in nodes.items() if n.group == node.group)
        tasks.append(task | dict(node.options))
    return {"tasks": tasks}


def register(engine: Engine, nodes: dict[str, Node], dag_id: str = "graph", **options: Any) -> None:
    """Makes the dag known, with this plan, and the engine's worker one that runs it."""
    engine.dags = (*dict.fromkeys((*engine.dags, dag_id)),)
    plan = make_plan(nodes)
    dags = [{"dag_id": dag_id, "kind": "dag", "code_version": engine.version, "plan": plan} | options]
    answer = engine.sql("select onceflow.register_worker(%s, 'host', 1, %s, 10, %s)", engine.worker, list(engine.queues), json.dumps(dags))[0][0]
    engine.lanes = answer["lanes"]


def begin_run(engine: Engine, dag_id: str = "graph") -> int:
    """A new run that has its tasks."""
    run = engine.start(dag_id)
    engine.tick()
    return run


def states(engine: Engine, run: int) -> dict[str, str]:
    """The state of each task, mapped ones as name[index]."""
    text = "select task_id || case when map_index < 0 then '' else format('[%%s]', map_index) end, state from onceflow.task_instance where run = %s order by id"
    return dict(engine.sql(text, run))


def end(engine: Engine, task: Task, state: str, output: str = "null") -> None:
    """Ends a claimed task as its worker would."""
    if state == "success":
        engine.complete(task, output, kind="external")
    else:
        engine.fail(task)
