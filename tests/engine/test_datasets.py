"""Datasets, end to end: tasks that write them, dags that run by them, and what each is told."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from onceflow.codec import decode
from tests.engine.local_worker import FLOWS, Engine
from tests.engine.test_dags import run_dag

DAGS = FLOWS
RUNS = "select id from onceflow.run where dag_id = %s and run_type = 'dataset_triggered' order by id"


@pytest.fixture(scope="module")
def engine(idle_engine: Engine) -> Engine:
    """One worker with all of these dags."""
    folder = idle_engine.folder / "dags"
    folder.mkdir()
    for name in ("dataset_flows.py", "seed_datasets.py"):
        (folder / name).write_bytes((FLOWS / name).read_bytes())
    idle_engine.start_worker(folder)
    return idle_engine


def last_run(engine: Engine, dag_id: str, after: int = 0) -> int:
    """The run of the dag that datasets started, once it has succeeded."""
    return int(
        engine.db.wait_for(
            "select max(id) from onceflow.run where dag_id = %s and run_type = 'dataset_triggered' and state = 'success' and id > %s", dag_id, after
        )
    )


def output(engine: Engine, run: int, task_id: str = "see") -> Any:
    return decode(
        engine.db.sql("select output::text from onceflow.step_ledger where dag_run = %s and task_id = %s and final and to_state = 'success'", run, task_id)[0][
            0
        ]
    )


def test_the_known_example_runs(engine: Engine) -> None:
    """The consumer runs once the producer has loaded the orders; that which waits for the customers too, does not."""
    engine.db.sql("update onceflow.dag set is_paused = false where dag_id in ('downstream_analytics', 'joined_analytics', 'etl_orders')")
    assert run_dag(engine, "etl_orders")["state"] == "success"
    run = last_run(engine, "downstream_analytics")
    assert engine.db.sql("select task_id, state from onceflow.task_instance where run = %s", run) == [("build_report", "success")]
    assert engine.db.sql("select dag_id, state from onceflow.dag_run where dag_id = 'joined_analytics'") == []
    engine.db.sql("select onceflow.emit_dataset_event('s3://warehouse/customers/')")
    last_run(engine, "joined_analytics")


def test_a_dag_by_datasets_is_paused_at_first(engine: Engine) -> None:
    """As one by time is, unless it says otherwise itself."""
    found = dict(engine.db.sql("select dag_id, has_dataset_schedule from onceflow.dag where schedule_interval is not null"))
    assert found == {"etl_orders": False} | dict.fromkeys(
        ("downstream_analytics", "joined_analytics", "after_sales", "after_stock_or_prices", "after_exports", "after_both_or_daily"), True
    )


def test_metadata_reaches_the_run_that_the_event_starts(engine: Engine) -> None:
    """What a task yields is its event's extra, with its types; the run sees exactly its triggering events."""
    found = run_dag(engine, "write_sales")
    assert output(engine, found["run"], "load_sales") == 3
    seen = output(engine, last_run(engine, "after_sales"))
    assert seen == {"s3://sales/": [[{"rows": 3, "sum": Decimal("7.50")}, "write_sales", "load_sales"]], "type": "dataset_triggered", "sales": 1}


def test_only_the_try_that_succeeds_is_told(engine: Engine) -> None:
    """Of a transactional task that failed first: its effect and one event, with what the second try said."""
    assert run_dag(engine, "write_stock")["state"] == "success"
    seen = output(engine, last_run(engine, "after_stock_or_prices"))
    assert seen["s3://stock/"] == [[{"try": 2}, "write_stock", "load_stock"]]
    effect = engine.db.sql("select note, xid::text from effect where what = 'stock'")
    event = engine.db.sql("select xmin::text from onceflow.dataset_event where dataset_uri = 's3://stock/' and source_dag_id = 'write_stock'")
    run = engine.db.sql("select xmin::text from onceflow.dagrun_dataset_event x where x.dag_run = %s", last_run(engine, "after_stock_or_prices"))
    assert [note for note, _ in effect] == ["try 2"] and [xid for _, xid in effect] == [row[0] for row in event] == [row[0] for row in run]


def test_a_generator_on_a_connection(engine: Engine) -> None:
    """Its writes, its metadata and its event are one transaction."""
    before = last_run(engine, "after_stock_or_prices") if engine.db.sql(RUNS, "after_stock_or_prices") else 0
    assert run_dag(engine, "write_prices")["state"] == "success"
    assert output(engine, last_run(engine, "after_stock_or_prices", before))["s3://prices/"] == [[{"rows": 1}, "write_prices", "load_prices"]]


def test_an_alias_is_resolved_while_the_task_runs(engine: Engine) -> None:
    """Its consumer runs by the datasets that the task names, from the first time on."""
    assert run_dag(engine, "write_exports")["state"] == "success"
    seen = output(engine, last_run(engine, "after_exports"))
    assert {uri: events for uri, events in seen.items() if uri.startswith("s3://export/")} == {
        "s3://export/x": [[{"name": "x"}, "write_exports", "export"]],
        "s3://export/y": [[{"name": "y"}, "write_exports", "export"]],
    }


def test_operators_have_outlets_too(engine: Engine) -> None:
    """A class, an EmptyOperator, a PythonOperator that yields."""
    found = run_dag(engine, "write_by_operators")
    assert found["state"] == "success"
    rows = engine.db.sql("select dataset_uri, extra from onceflow.dataset_event where source_dag_id = 'write_by_operators' order by id")
    assert rows == [("s3://sales/", {"by": "operator"}), ("s3://stock/", None), ("s3://prices/", {"by": "python"})]
    assert output(engine, found["run"], "call") == "called"


def test_what_is_no_outlet_is_refused_by_name(engine: Engine) -> None:
    """Metadata of another dataset, and a yield of anything else, fail the task and tell of nothing."""
    assert run_dag(engine, "write_wrongly")["state"] == "failed"
    errors = dict(engine.db.sql("select task_id, error ->> 'message' from onceflow.step_ledger where dag_id = 'write_wrongly' and final"))
    assert "task other has no outlet Dataset('s3://stock/')" in errors["other"] and "task number yielded 7 (int)" in errors["number"]
    assert engine.db.sql("select count(*) from onceflow.dataset_event where source_dag_id = 'write_wrongly'") == [(0,)]


def test_by_datasets_or_by_time(engine: Engine) -> None:
    """It has both: a next run by the clock, and a condition on datasets, by which it has run."""
    row = engine.db.sql("select schedule ->> 'timetable', has_dataset_schedule, timetable_description from onceflow.dag where dag_id = 'after_both_or_daily'")
    assert row[0][:2] == ("CronInterval", True) and row[0][2].startswith("after Dataset('s3://sales/') & Dataset('s3://stock/'); or ")
    run_dag(engine, "write_sales")
    run_dag(engine, "write_stock")
    assert set(output(engine, last_run(engine, "after_both_or_daily"))) >= {"s3://sales/", "s3://stock/"}


def test_what_was_declared_is_kept(engine: Engine) -> None:
    """A dataset's own extra, and which tasks write it."""
    assert engine.db.sql("select extra from onceflow.dataset where uri = 's3://sales/'") == [({"owner": "shop"},)]
    rows = engine.db.sql("""select r.dag_id, r.task_id from onceflow.task_outlet_dataset_reference r join onceflow.dataset d on d.id = r.dataset_id
        where d.uri = 's3://sales/' order by 1, 2""")
    assert rows == [("write_by_operators", "load"), ("write_sales", "load_sales"), ("write_wrongly", "number"), ("write_wrongly", "other")]
