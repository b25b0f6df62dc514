"""Mapped tasks and groups, run by real workers."""

from __future__ import annotations

from typing import Any

from onceflow.db.queries import read_run
from tests.engine.local_worker import Engine
from tests.engine.test_dags import outputs


def run_dag(engine: Engine, dag_id: str, timeout: float = 30, **params: Any) -> dict[str, Any]:
    run = engine.client.trigger(dag_id, params=params)
    state = engine.db.wait_for("select state from onceflow.run where id = %s", run.run, timeout=timeout)
    text = "select task_id || case when map_index >= 0 then '[' || map_index || ']' else '' end, state from onceflow.task_instance where run = %s"
    return {"run": run.run, "state": state, "tis": dict(engine.db.sql(text, run.run))}


def test_items_go_through_a_group_one_by_one(engine: Engine) -> None:
    """Inside, each task sees what its own item gave, from steps, operators, templates and nested groups; outside, the list of all in order."""
    found = run_dag(engine, "grouped_map", who="me")
    assert found["state"] == "success" and len(found["tis"]) == 1 + 1 + 5 * 3 + 5 * 2
    assert outputs(engine, found["run"], "work.double") == [{"twice": [n, n], "unit": "m", "$order": ["twice", "unit"]} for n in (3, 1, 2)]
    names = ["3-m-0", "1-m-1", "2-m-2"]
    assert outputs(engine, found["run"], "work.note") == outputs(engine, found["run"], "work.text") == names
    assert outputs(engine, found["run"], "work.inner.deep") == names and outputs(engine, found["run"], "all") == [names]
    assert [one["twice"][0] for one in outputs(engine, found["run"], "kwargs.double")] == [1, "me"]
    written = engine.db.sql("select note from effect where what = 'map' and note like '%%-m-%%' order by note")
    assert [note for (note,) in written] == sorted(names)
    inputs = engine.db.sql(
        "select inputs from onceflow.step_ledger where dag_run = %s and task_id = 'work.inner.deep' and final order by map_index", found["run"]
    )
    assert [one for (one,) in inputs] == [{"value": name} for name in names]


def test_an_item_that_fails_holds_up_no_other(engine: Engine) -> None:
    """The one_failed reporter runs for item 0 only, next for the others."""
    found = run_dag(engine, "broken_group")
    expected = {"work.fail_first[0]": "failed", "work.report[0]": "success", "work.next[0]": "upstream_failed"}
    for n in (1, 2, 3):
        expected |= {f"work.fail_first[{n}]": "success", f"work.report[{n}]": "skipped", f"work.next[{n}]": "success"}
    assert found["tis"] == expected and found["state"] == "failed"


def test_a_reducer_over_empty_maps_gets_an_empty_list(engine: Engine) -> None:
    """Chained empty maps are skipped; the all_done reducer runs once with [], the all_success one is skipped; the run succeeds."""
    found = run_dag(engine, "empty_maps")
    assert found["tis"] == {"make_list": "success", "first": "skipped", "second": "skipped", "reduce": "success", "strict": "skipped"}
    assert found["state"] == "success" and outputs(engine, found["run"], "reduce") == [[]]


def test_lists_are_made_out_of_outputs(engine: Engine) -> None:
    """map, filter, zip and concat are tasks whose output is the list; of a dict the items are pairs; of a map with skipped items what there is."""
    found = run_dag(engine, "made_lists")
    run = found["run"]
    assert outputs(engine, run, "even") == [20, 40]
    pair = [{"$tuple": ["a", 1]}, {"$tuple": ["b", 2]}]
    assert outputs(engine, run, "pairs") == [{"$tuple": [1, pair[0]]}, {"$tuple": [2, pair[1]]}]
    assert outputs(engine, run, "long")[1:3] == [{"$tuple": [pair[1], 2]}, {"$tuple": ["-", 3]}]
    assert outputs(engine, run, "both") == [1, 2, 3, 4, "x", *pair]
    assert outputs(engine, run, "squared") == [[1, 4, 9, 16]]
    assert outputs(engine, run, "lenient") == ["2", "4"] and found["tis"]["strict"] == "skipped"
    assert found["state"] == "success"


def test_instances_have_names_for_people(engine: Engine) -> None:
    """map_index_template is rendered per instance: with its item, or with what the task puts into its context; the view and the command line show it."""
    found = run_dag(engine, "named_maps")
    names = dict(engine.db.sql("select task_id || map_index, rendered_map_index from onceflow.task_instance where run = %s", found["run"]))
    day = engine.db.sql("select to_char(logical_date at time zone 'UTC', 'YYYY-MM-DD') from onceflow.run where id = %s", found["run"])[0][0]
    assert names == {
        "by_item0": f"paris of {day}",
        "by_item1": f"oslo of {day}",
        "by_context0": "PARIS",
        "by_context1": "OSLO",
        "failing0": "nobody's",
        "nameless0": None,
    }
    with engine.db.connect() as conn:
        assert f"by_item[1] oslo of {day}" in [task.label for task in read_run(conn, found["run"]).tasks]


def test_the_join_of_a_wide_map_fires_once(engine: Engine) -> None:
    """A thousand instances on three workers: one join, with a thousand inputs in order."""
    for _ in range(2):
        engine.start_worker()
    found = run_dag(engine, "wide_map", timeout=90)
    assert found["state"] == "success" and outputs(engine, found["run"], "join") == [list(range(1_000))]
    entries = engine.db.sql("select task_id, count(*) from onceflow.step_ledger where dag_run = %s and final group by 1", found["run"])
    assert dict(entries) == {"make_list": 1, "item": 1_000, "join": 1}
    assert engine.db.sql("select count(*) from onceflow.join_count where run = %s", found["run"]) == [(0,)]
