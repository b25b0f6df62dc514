"""A worker that dies around the completion of a task that writes a dataset: data, event and consumer's run are there together, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow import Client
from tests.database import TestDatabase
from tests.processes import Workers, write_dags
from tests.proxy import Link, Proxy, When

FLOWS = """
import asyncpg
from onceflow import Dataset, dag, task

ORDERS = Dataset("s3://orders/")

@dag(schedule=None)
def etl():
    @task(outlets=[ORDERS])
    async def load(conn: asyncpg.Connection, outlet_events) -> None:
        outlet_events[ORDERS].extra["rows"] = 1
        await conn.execute("insert into written values ('load')")

    load()

@dag(schedule=None)
def outside():
    @task(outlets=[ORDERS])
    def load() -> None: ...

    load()

@dag(schedule=[ORDERS], is_paused_upon_creation=False)
def report():
    @task
    def see(triggering_dataset_events) -> int:
        return sum(len(events) for events in triggering_dataset_events.values())

    see()
"""


@pytest.fixture
def proxy(db: TestDatabase) -> Iterator[Proxy]:
    """Between the worker and its database."""
    with Proxy(db.superuser_dsn) as made:
        yield made


@pytest.mark.parametrize("dag_id", ["etl", "outside"])
@pytest.mark.parametrize("when", ["before", "answered"])
def test_the_consumer_runs_once_for_each_commit(db: TestDatabase, workers: Workers, proxy: Proxy, tmp_path: Path, dag_id: str, when: When) -> None:
    """Killed before the completion reaches the server, or after it was committed and before its reply: one effect, one event, one run that sees it."""
    with db.connect("app") as conn:
        conn.execute("create table written (what text)")
    folder = write_dags(tmp_path, "flows", FLOWS)
    first = workers.start(folder, env={"ONCEFLOW_LEASE_S": "1", "ONCEFLOW_DSN": proxy.dsn(db.worker_dsn), "ONCEFLOW_STEP_DSN": proxy.dsn(db.step_dsn)})

    def die(_: Link) -> bool:
        first.kill()
        return False

    fault = proxy.cut_next(b"complete_task", when=when, act=die)
    with Client(db.app_dsn) as client:
        run = client.trigger(dag_id)
        fault.wait()
        first.process.wait(30)
        found = db.sql(
            "select (select count(*) from onceflow.dataset_event), (select count(*) from onceflow.run where dag_id = 'report'), (select count(*) from written)"
        )
        assert found == [(0, 0, 0) if when == "before" else (1, 1, int(dag_id == "etl"))]
        workers.start(folder, env={"ONCEFLOW_LEASE_S": "1"})
        assert run.result(60) == "success"
    db.wait_for("select state = 'success' from onceflow.run where dag_id = 'report'", timeout=60)
    assert db.sql("select output from onceflow.step_ledger where dag_id = 'report' and final") == [(1,)]
    assert db.sql("select count(*) from onceflow.dataset_event") == [(1,)] and db.sql("select count(*) from written") == [(int(dag_id == "etl"),)]
    assert db.sql("select count(*) from onceflow.dataset_dag_run_queue") == [(0,)] and db.sql("select problem from onceflow.verify_ledger()") == []
