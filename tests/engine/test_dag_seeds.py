"""The dags that people bring along run with nothing changed but their imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.local_worker import Engine
from tests.engine.test_dag_operators import run_dag
from tests.engine.test_dags import outputs

DAGS = Path(__file__).parent / "flows" / "seed_dags.py"
LAST = [
    ("daily_etl_pipeline", "transform", [{"id": 1, "customer": "Ada"}], 4),
    ("process_files", "aggregate", ["file1", "file2", "file3"], 5),
    ("process_tables", "sync_products", "synced products", 3),
    ("sync_tables", "sync_table", "synced users", 3),
]


@pytest.mark.parametrize(("dag_id", "task_id", "value", "count"), LAST)
def test_a_known_dag_runs(engine: Engine, dag_id: str, task_id: str, value: object, count: int) -> None:
    """All its tasks succeed, and the values went through them."""
    engine.db.sql("update onceflow.dag set is_paused = false where dag_id = %s", dag_id)
    found = run_dag(engine, dag_id)
    assert found["state"] == "success" and len(found["tis"]) == count
    output = outputs(engine, found["run"], task_id)[0]
    assert value in (
        output,
        [{key: row[key] for key in ("id", "customer")} for row in output] if isinstance(value, list) and isinstance(output[0], dict) else None,
    )


def test_their_options_are_kept(engine: Engine) -> None:
    """default_args of the dag reach its tasks."""
    row = engine.db.sql(
        "select distinct k.retries, k.pool from onceflow.dag_task k join onceflow.dag d on d.version = k.version where d.dag_id = 'daily_etl_pipeline'"
    )
    assert row == [(2, "etl_pool")]
