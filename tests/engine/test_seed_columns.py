"""The tables that users of the field query: every column is there, and says something true of what has really run."""

from __future__ import annotations

import csv
import getpass
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.database import TestDatabase
from tests.engine.local_worker import Engine
from tests.processes import start_process, worker_environment

COLUMNS = Path(__file__).parents[1] / "cases" / "seed_columns.csv"
DAGS = """
import asyncpg
from datetime import datetime, timedelta
from onceflow import EmptyOperator, dag, task

@dag(schedule="@daily", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 2), catchup=True, tags=["seed"], owner="ops", description="All of it",
     is_paused_upon_creation=False, params={"limit": 3})
def columns():
    @task(retries=1, retry_delay=timedelta(hours=1), execution_timeout=timedelta(minutes=5), executor_config={"note": "mine"}, queue="default")
    def extract(ti) -> list[int]:
        ti.xcom_push("count", 2)
        return [1, 2]

    @task(pool="etl_pool", pool_slots=2, priority_weight=3)
    async def load(conn: asyncpg.Connection, item: int) -> int:
        await conn.execute("select 1")
        return item

    @task(trigger_rule="all_done", retries=1, retry_delay=timedelta(hours=1))
    def fail(ti, done) -> None:
        if ti.try_number == 1:
            raise ValueError("the first try")

    fail(load.expand(item=extract()))

columns()
"""


def read_columns() -> dict[str, list[str]]:
    """What the seed and the lesson name, by table; what stands for a whole group of columns is tested where that is built."""
    found: dict[str, list[str]] = {}
    with COLUMNS.open() as file:
        for row in csv.DictReader(file):
            if row["column"] != "*":
                found.setdefault(row["table"], []).extend(row["column"].split(","))
    return found


def test_every_column_is_there(db: TestDatabase) -> None:
    """By the seed's names, in tables or views of schema onceflow."""
    columns = "select column_name::text from information_schema.columns where table_schema = 'onceflow' and table_name = %s"
    missing = {table: lacking for table, wanted in read_columns().items() if (lacking := set(wanted) - {name for (name,) in db.sql(columns, table)})}
    assert missing == {}


@pytest.fixture(scope="module")
def history(idle_engine: Engine) -> Engine:
    """A worker and a scheduler have run two days of a dag, the last task of each of which waits for its second try; a file beside it is broken."""
    folder = idle_engine.folder / "dags"
    folder.mkdir()
    (folder / "columns.py").write_text(DAGS)
    (folder / "broken.py").write_text("import nothing_of_that_name")
    command = [sys.executable, "-m", "onceflow", "scheduler", "--dags", str(folder)]
    env = worker_environment(idle_engine.db) | {"ONCEFLOW_DIRECT_DSN": idle_engine.db.direct_dsn}
    idle_engine.workers.started.append(start_process(command, env=env, log=folder.parent / "scheduler.log"))
    idle_engine.db.wait_for("select count(*) from onceflow.dag where dag_id = 'columns'")
    idle_engine.start_worker(folder)
    idle_engine.db.wait_for("select count(*) from onceflow.task_instance where state = 'up_for_retry' having count(*) = 2", timeout=40)
    return idle_engine


def rows(engine: Engine, text: str, *args: object) -> list[dict[str, Any]]:
    return [row for (row,) in engine.db.sql(f"select to_jsonb(x) from ({text}) x", *args)]


def test_the_task_instances_tell_what_happened(history: Engine) -> None:
    """No column is null that has something to tell, and each tells what is so."""
    columns = read_columns()["task_instance"]
    text = "select {0} from onceflow.task_instance where dag_id = 'columns' and task_id = %s order by run_id, map_index limit 1"
    worker = history.db.sql("select id, host, pid from onceflow.worker where code_versions ? 'columns'")[0]
    (extract,), (fail,) = ([row for row in rows(history, text.format(",".join(columns)), task)] for task in ("extract", "fail"))
    empty = {name for name in columns if extract[name] is None}
    assert empty == {"next_method", "next_kwargs", "trigger_id", "next_retry_at", "error"}  # it has neither deferred itself nor failed
    assert fail["next_retry_at"] is not None and fail["state"] == "up_for_retry" and fail["trigger_rule"] == "all_done"
    assert (extract["job_id"], extract["hostname"], extract["pid"]) == worker
    assert extract["queued_by_job_id"] == worker[0] and extract["unixname"] == getpass.getuser()
    assert (extract["execution_timeout"], extract["executor_config"], extract["operator"]) == ("00:05:00", {"note": "mine"}, "@task")
    assert extract["duration"] >= 0 and extract["queued_when"] <= extract["start_date"] <= extract["end_date"]
    (load,) = rows(history, text.format("pool, pool_slots, priority_weight, map_index, max_tries, try_number, error"), "load")
    assert load == {"pool": "etl_pool", "pool_slots": 2, "priority_weight": 4, "map_index": 0, "max_tries": 0, "try_number": 1, "error": None}


def test_the_runs_tell_what_happened(history: Engine) -> None:
    """A scheduled run tells its interval, its params and the scheduler that made it; one that has not ended has no end yet."""
    first, second = rows(history, "select * from onceflow.dag_run where dag_id = 'columns' order by logical_date")
    assert {name for name in read_columns()["dag_run"] if first[name] is None} == {"end_date"}
    assert (first["state"], first["run_type"], first["conf"]) == ("running", "scheduled", {"limit": 3})
    assert datetime.fromisoformat(first["data_interval_start"]) == datetime.fromisoformat("2026-01-01T00:00+00:00")
    assert first["data_interval_end"] == second["data_interval_start"] and first["creating_job_id"] == second["creating_job_id"] > 0


def test_the_dag_tells_of_itself(history: Engine) -> None:
    """From its file, its schedule and what the scheduler did."""
    (found,) = rows(history, "select * from onceflow.dag where dag_id = 'columns'")
    assert {name for name in read_columns()["dag"] if found[name] is None} == {"next_dagrun_create_after"}  # its last day is over
    assert (found["owners"], found["tags"], found["description"], found["schedule_interval"]) == ("ops", ["seed"], "All of it", "@daily")
    assert found["fileloc"].endswith("columns.py") and found["processor_subdir"] == str(history.folder / "dags")
    assert (found["is_paused"], found["is_active"], found["has_import_errors"], found["has_dataset_schedule"]) == (False, True, False, False)
    assert [task["task_id"] for task in found["serialized_dag"]["tasks"]] == ["extract", "load", "fail"]
    assert datetime.fromisoformat(found["last_run_logical_date"]) == datetime.fromisoformat("2026-01-02T00:00+00:00")


def test_values_pools_and_errors_tell_what_happened(history: Engine) -> None:
    """What tasks gave stands in xcom, by key and map index; the broken file in import_error; steps in step_executions."""
    text = "select task_id, key, map_index, convert_from(value, 'UTF8') as value from onceflow.xcom where run_id like 'scheduled__2026-01-01%' order by 1, 2, 3"
    assert history.db.sql(text) == [
        ("extract", "count", -1, "2"), ("extract", "return_value", -1, "[1, 2]"), ("load", "return_value", 0, "1"), ("load", "return_value", 1, "2"),
    ]  # fmt: skip
    for table, where in (("xcom", "true"), ("slot_pool", "pool_name = 'etl_pool'"), ("import_error", "true"), ("step_executions", "step_name = 'load'")):
        found = rows(history, f"select * from onceflow.{table} where {where}")
        assert found, table
        assert {name for name in read_columns()[table] if any(row[name] is None for row in found)} == set(), table
    (error,) = rows(history, "select * from onceflow.import_error")
    assert error["filename"].endswith("broken.py") and "nothing_of_that_name" in error["stacktrace"]
