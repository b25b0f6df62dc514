"""Dags run by real workers: order, data between tasks, mapping, outcomes."""

from __future__ import annotations

from typing import Any

from tests.engine.local_worker import Engine


def run_dag(engine: Engine, dag_id: str, timeout: float = 20) -> dict[str, Any]:
    """Starts a run and waits for its end; its state, and each task's state."""
    run = engine.db.sql("select (onceflow.start_run(%s) ->> 'run')::bigint", dag_id)[0][0]
    state = engine.db.wait_for("select state from onceflow.run where id = %s", run, timeout=timeout)
    tis = engine.db.sql(
        "select task_id || case when map_index >= 0 then '[' || map_index || ']' else '' end, state from onceflow.task_instance where run = %s order by 1", run
    )
    return {"run": run, "state": state, "tis": dict(tis)}


def outputs(engine: Engine, run: int, task_id: str) -> list[Any]:
    return [
        row[0]
        for row in engine.db.sql("select output from onceflow.step_ledger where dag_run = %s and task_id = %s and final order by map_index", run, task_id)
    ]


def test_values_flow_through_a_mapped_task(engine: Engine) -> None:
    """extract -> double for each item -> total of all."""
    found = run_dag(engine, "etl")
    assert found["state"] == "success"
    assert found["tis"] == {"extract": "success", "double[0]": "success", "double[1]": "success", "double[2]": "success", "total": "success"}
    assert outputs(engine, found["run"], "double") == [20, 40, 60] and outputs(engine, found["run"], "total") == [120]


def test_branches_meet(engine: Engine) -> None:
    """A join runs once, after both transactional branches."""
    found = run_dag(engine, "diamond")
    assert found["state"] == "success" and outputs(engine, found["run"], "join") == [["left", "right"]]


def test_a_failure_reaches_what_depends_on_it(engine: Engine) -> None:
    """all_success becomes upstream_failed, one_failed runs; the run is failed by its leaf."""
    found = run_dag(engine, "broken")
    assert found == {"run": found["run"], "state": "failed", "tis": {"fail": "failed", "after": "upstream_failed", "cleanup": "success"}}
