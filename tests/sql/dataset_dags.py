"""Dags that write datasets, and dags that run by them, for the SQL tests."""

from __future__ import annotations

import json
from typing import Any

from onceflow.db import calls
from tests.sql.dag_plans import Node, make_plan
from tests.sql.engine_calls import Engine, Task

EVENTS = """
    select e.dataset_uri, e.id, array_agg(x.dag_run order by x.dag_run) filter (where x.dag_run is not null)
    from onceflow.dataset_event e left join onceflow.dagrun_dataset_event x on x.event_id = e.id and x.dag_id = %s group by e.id, e.dataset_uri order by e.id"""
RUNS = "select id from onceflow.run where dag_id = %s and run_type = 'dataset_triggered' order by id"


def register_dag(engine: Engine, dag_id: str, *, nodes: dict[str, Node] | None = None, by: Any = None, is_paused: bool = False, **plan: Any) -> None:
    """Makes a dag known that runs by a condition: a URI, a list of URIs (all), or the JSON of one."""
    nodes = nodes or {"work": Node()}
    condition = {"uri": by} if isinstance(by, str) else {"all": [{"uri": uri} for uri in by]} if isinstance(by, list) else by
    outlets = [uri for node in nodes.values() for uri in (*node.options.get("outlets", ()), *node.options.get("inlets", ()))]
    uris = dict.fromkeys(outlets + _leaves(condition))
    datasets = ({"datasets": [{"uri": uri, "extra": None} for uri in uris]} if uris or condition else {}) | ({"condition": condition} if condition else {})
    engine.dags = (*dict.fromkeys((*engine.dags, dag_id)),)
    row = {"dag_id": dag_id, "kind": "dag", "code_version": engine.version, "is_paused": is_paused, "plan": make_plan(nodes) | datasets | plan}
    dags = json.dumps([*({"dag_id": d, "code_version": engine.version} for d in engine.dags if d != dag_id and d == "flow"), row])
    engine.call(calls.register_dags(dags, True))
    known = json.dumps([{"dag_id": d, "code_version": engine.version, "kind": "dag" if d != "flow" else "workflow"} for d in engine.dags])
    engine.call(calls.register_worker(engine.worker, "host", 1, list(engine.queues), 10, known))
    engine.lanes = engine.sql("select onceflow.list_lanes(%s)", engine.worker)[0][0]


def _leaves(condition: Any) -> list[str]:
    if not condition:
        return []
    if "uri" in condition:
        return [condition["uri"]]
    return [uri for part in condition.get("all", condition.get("any", [])) for uri in _leaves(part)]


def register_producer(engine: Engine, dag_id: str, *uris: str) -> None:
    """A dag of one task that writes these."""
    register_dag(engine, dag_id, nodes={"load": Node(options={"outlets": list(uris)})})


def produce(engine: Engine, dag_id: str) -> Task:
    """A run of the producer, whose task is claimed."""
    run = engine.start(dag_id)
    engine.tick()
    (task,) = [t for t in engine.claim(100) if t.run == run]
    return task


def end(engine: Engine, task: Task) -> None:
    engine.complete(task, "null", kind="external")


def post(engine: Engine, dag_id: str) -> None:
    """A whole run of the producer: one event of each of its datasets."""
    end(engine, produce(engine, dag_id))


def runs(engine: Engine, dag_id: str) -> list[int]:
    """The runs that datasets started."""
    return [run for (run,) in engine.db.sql(RUNS, dag_id)]


def taken(engine: Engine, dag_id: str) -> list[tuple[str, list[int] | None]]:
    """Each event there is, with the runs of the dag that took it."""
    return [(uri, found) for uri, _, found in engine.db.sql(EVENTS, dag_id)]


def queue(engine: Engine, dag_id: str) -> list[str]:
    """The datasets whose events wait for a run of the dag."""
    text = "select d.uri from onceflow.dataset_dag_run_queue q join onceflow.dataset d on d.id = q.dataset_id where q.target_dag_id = %s order by 1"
    return [uri for (uri,) in engine.db.sql(text, dag_id)]
