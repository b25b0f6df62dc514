"""What many instances gave is read page by page, in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

from tests.engine.local_worker import FLOWS, Engine
from tests.engine.test_dags import outputs, run_dag

DAGS = Path(FLOWS / "paged_flows.py")


def test_a_reducer_over_many_instances_reads_page_by_page(engine: Engine) -> None:
    """1,200 instances, one of them skipped: a def task gets a sequence that is no copy; `list`, async def and few values get a list."""
    found = run_dag(engine, "many_values", timeout=120)
    assert found["state"] == "success"
    values = [i for i in range(1200) if i != 3]
    (plain,) = outputs(engine, found["run"], "plain")
    assert plain.pop("$order") and plain == {"kind": "PagedList", "count": 1199, "sum": sum(values), "first": [0, 1, 2, 4, 5], "last": 1199, "all": values}
    assert outputs(engine, found["run"], "as_list") == [["list", 1199]]
    assert outputs(engine, found["run"], "in_async") == [["list", "list", 1199]]
    assert outputs(engine, found["run"], "pulling") == [["PagedList", 1199, 1199**2, 7]]
    shown = engine.db.sql("select inputs from onceflow.step_ledger where dag_run = %s and task_id = 'plain' and final", found["run"])
    assert shown == [({"values": {"values_of": "task number", "count": 1199, "$order": ["values_of", "count"]}},)]


def test_an_annotation_asks_for_it(engine: Engine) -> None:
    """Sequence and Iterable are read page by page however few there are; without an annotation few are a list."""
    found = run_dag(engine, "few_values")
    assert outputs(engine, found["run"], "few") == ["list"]
    assert outputs(engine, found["run"], "chosen") == [["PagedList", [5, 6], [5, 6]]]
