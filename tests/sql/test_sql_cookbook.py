"""The queries with which people look into datasets, each file unchanged, through psql, on a prepared history: they run, and answer rightly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.db.server_account import find_binaries
from tests.database import TestDatabase
from tests.sql.dag_plans import Node
from tests.sql.dataset_dags import end, produce, queue, register_dag, runs
from tests.sql.engine_calls import Engine

COOKBOOK = Path(__file__).parent.parent / "cases" / "sql_cookbook"
ORDERS, CUSTOMERS, OLD = "s3://warehouse/orders/processed/", "s3://warehouse/customers/", "s3://warehouse/old/"
SHIFTED = """insert into onceflow.dataset_event (dataset_id, dataset_uri, extra, source_dag_id, source_task_id, source_run_id, timestamp)
    select id, uri, '{"n": 1}', 'etl_orders', 'load', 'earlier', now() - %s::interval from onceflow.dataset where uri = %s"""


@pytest.fixture
def psql(db: TestDatabase) -> Callable[..., list[list[str]]]:
    """Runs a file of the cookbook as people do; its rows, as texts."""

    def run(name: str, **variables: object) -> list[list[str]]:
        command = [str(find_binaries() / "psql"), "-X", "-A", "-t", "-F", "|", "-v", "ON_ERROR_STOP=1", "-f", str(COOKBOOK / f"{name}.sql")]
        for key, value in variables.items():
            command += ["-v", f"{key}={value}"]
        done = subprocess.run([*command, db.superuser_dsn], capture_output=True, text=True, env={**os.environ, "PGOPTIONS": "-c search_path=onceflow"})
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines() if line]

    return run


@pytest.fixture
def history(one: Engine) -> Engine:
    """One dag writes the orders, and has in this hour, once; others run by these, with the customers or without, paused or full.

    orders_aggregator runs (max_active_runs=1) while one more event waits; my_consumer_dag waits for the customers; stuck is paused, for 20 minutes already.
    """
    register_dag(one, "orders_aggregator", by=[ORDERS], max_active_runs=1)
    register_dag(one, "my_consumer_dag", by=[ORDERS, CUSTOMERS])
    register_dag(one, "stuck", by=[ORDERS], is_paused=True)
    register_dag(one, "gone", by=[OLD])
    register_dag(one, "gone")
    register_dag(one, "etl_orders", nodes={"load": Node(options={"outlets": [ORDERS]})})
    register_dag(one, "etl_customers", nodes={"load": Node(options={"outlets": [CUSTOMERS]}), "more": Node(options={"outlets": [CUSTOMERS]})})
    one.sql("select onceflow.mark_orphans()")
    for ago, uri in (("2 hours", ORDERS), ("25 hours", ORDERS), ("40 days", ORDERS), ("3 hours", CUSTOMERS)):
        one.db.sql(SHIFTED, ago, uri)
    for _ in range(2):
        end(one, produce(one, "etl_orders"))
    one.tick()
    one.db.sql("update onceflow.dataset_dag_run_queue set created_at = created_at - interval '20 minutes' where target_dag_id = 'stuck'")
    return one


def test_the_registry(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """01, 02: two datasets are in use, the third is orphaned; when was one first seen?"""
    assert psql("01") == [["2"]]
    ((uri, seen),) = psql("02")
    assert uri == ORDERS and history.db.sql("select created_at = %s::timestamptz from onceflow.dataset where uri = %s", seen, ORDERS) == [(True,)]


def test_events(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """03, 04: what was told in this hour, the latest first; who told most within a day."""
    rows = psql("03")
    ids = history.db.sql("select run_id from onceflow.run where dag_id = 'etl_orders' order by id desc")
    assert [row[1:] for row in rows] == [["etl_orders", "load", run_id, ""] for (run_id,) in ids]
    assert [row[:2] for row in psql("04")] == [[ORDERS, "3"], [CUSTOMERS, "1"]]


def test_the_fan_out_by_hand(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """05: puts the dataset into the queue of each subscriber once; the tick makes the runs of those that were waiting for it."""
    (dataset,) = history.db.sql("select id from onceflow.dataset where uri = %s", CUSTOMERS)[0]
    assert queue(history, "my_consumer_dag") == [ORDERS]
    psql("05", new_event_dataset_id=dataset)
    assert queue(history, "my_consumer_dag") == [CUSTOMERS, ORDERS]
    psql("05", new_event_dataset_id=dataset)
    history.tick()
    assert len(runs(history, "my_consumer_dag")) == 1 and queue(history, "my_consumer_dag") == []


def test_the_queue(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """06, 07, 15: what waits now, the oldest first; what has waited for ten minutes; what waits for one dag."""
    assert [row[:2] for row in psql("06")] == [[ORDERS, "stuck"], [ORDERS, "my_consumer_dag"], [ORDERS, "orders_aggregator"]]
    assert [row[:2] for row in psql("07")] == [["stuck", f"{{{ORDERS}}}"]]
    assert [[row[1], row[3]] for row in psql("15")] == [["orders_aggregator", ORDERS]]


def test_who_reads_and_who_writes(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """08, 09, 10, 11, 14: subscriptions, outlets, and both for a picture."""
    assert sorted(row[0] for row in psql("08")) == ["my_consumer_dag", "orders_aggregator", "stuck"]
    assert psql("09") == [[ORDERS]]
    assert psql("10") == [["etl_orders", "load"]]
    assert psql("11") == [
        [CUSTOMERS, "{etl_customers.load,etl_customers.more}", "{my_consumer_dag}"],
        [OLD, "{NULL}", "{NULL}"],
        [ORDERS, "{etl_orders.load}", "{my_consumer_dag,orders_aggregator,stuck}"],
    ]
    assert [row[1] for row in psql("14")] == ["orders_aggregator"]


def test_is_it_satisfied(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """12: one of two is there; when both are, the run is made and the queue is empty."""
    assert psql("12") == [["2", "1", "f"]]
    history.sql("select onceflow.emit_dataset_event(%s)", CUSTOMERS)
    history.tick()
    assert psql("12") == [["2", "0", "f"]] and len(runs(history, "my_consumer_dag")) == 1


def test_why_did_it_not_run(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """13, 16, 17: the latest events; one run keeps the aggregator from the next; the paused dag's queue."""
    rows = psql("13")
    assert len(rows) == 5 and all(row[-1] == ORDERS for row in rows)
    assert psql("16") == [["1"]]
    assert psql("17") == [["stuck", "t", "1"]]


def test_too_many_events(history: Engine, psql: Callable[..., list[list[str]]]) -> None:
    """18, 19: who has most, and how large it is; what is older than thirty days goes."""
    assert [row[:2] for row in psql("18")] == [[ORDERS, "5"], [CUSTOMERS, "1"]]
    assert all("bytes" in row[2] for row in psql("18"))
    assert psql("19") == [["DELETE 1"]]
    assert history.db.sql("select count(*) from onceflow.dataset_event where timestamp < now() - interval '30 days'") == [(0,)]
    assert [row[:2] for row in psql("18")] == [[ORDERS, "4"], [CUSTOMERS, "1"]]


def test_every_file_is_tried() -> None:
    """The folder has no query that stands in no test here."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert {path.stem for path in COOKBOOK.glob("*.sql")} == {f"{n:02}" for n in range(1, 20)}
    assert all(f'psql("{path.stem}"' in text for path in COOKBOOK.glob("*.sql"))


def test_the_names_are_those_of_the_lesson(db: TestDatabase) -> None:
    """Tables, not views, with its constraint and its indexes by name."""
    tables = ["dag_schedule_dataset_reference", "dataset", "dataset_dag_run_queue", "dataset_event", "task_outlet_dataset_reference"]
    found = db.sql("select relname, relkind in ('r', 'p') from pg_class where relnamespace = 'onceflow'::regnamespace and relname = any(%s) order by 1", tables)
    assert found == [(name, True) for name in tables]
    names = ["dataset_uri_unique", "idx_dataset_event_dataset_id", "idx_dataset_event_source", "idx_ddrq_target_dag"]
    assert db.sql("select relname from pg_class where relnamespace = 'onceflow'::regnamespace and relname = any(%s) order by 1", names) == [(n,) for n in names]
