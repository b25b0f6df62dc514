"""Branches, short circuits, skips and teardowns of dags, run by real workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onceflow import RunFailed
from tests.engine.local_worker import Engine
from tests.engine.test_dag_operators import run_dag
from tests.engine.test_dags import outputs

DAGS = Path(__file__).parent / "flows" / "branch_flows.py"
BRANCHES = ("left", "below_left", "right", "shortcut", "group.first", "group.second", "join")
REASON = "select error ->> 'message' from onceflow.step_ledger where dag_run = %s and task_id = %s and final"


@pytest.mark.parametrize(
    ("to", "go_on"),
    [
        ("left", {"left", "below_left", "join"}),
        (["right"], {"right", "join"}),
        (["left", "shortcut"], {"left", "below_left", "join", "shortcut"}),
        ("group", {"group.first", "group.second"}),
        ("join", {"join"}),
        ([], set()),
        (None, set()),
    ],
)
def test_a_branch_goes_where_it_says(engine: Engine, to: Any, go_on: set[str]) -> None:
    """What is directly downstream and not chosen is skipped, unless a way leads to it from what is; the rest follows from the rules."""
    found = run_dag(engine, "branches", to=to)
    assert found["state"] == "success"
    assert {name for name in BRANCHES if found["tis"][name] == "success"} == go_on
    assert {found["tis"][name] for name in BRANCHES if name not in go_on} <= {"skipped"}


def test_a_decision_stands_in_the_ledger(engine: Engine) -> None:
    """A branch's output is what it chose, a group as its first tasks: from there the database knows, at any later time, which way was not taken."""
    left, group = run_dag(engine, "branches", to="left"), run_dag(engine, "branches", to="group")
    assert outputs(engine, left["run"], "choose") == ["left"] and outputs(engine, group["run"], "choose") == ["group.first"]
    barred = """
        select array_agg(d.task_id order by d.task_id) from onceflow.run r join onceflow.dag_task k on k.version = r.version and k.task_id = 'choose',
        onceflow.list_barred(r.id, k, -1) b(list) join onceflow.dag_task d on d.ix = any(b.list) where d.version = r.version and r.id = %s"""
    assert engine.db.sql(barred, left["run"])[0][0] == ["group.first", "right", "shortcut"]


def test_clearing_wakes_no_path_that_was_not_taken(engine: Engine) -> None:
    """A task that a branch did not choose stays skipped when it is cleared; one that it chose runs again."""
    found = run_dag(engine, "branches", to="left")
    clear = "select cleared_run_id from onceflow.clear_tasks('branches', run_id => %s, task_regex => '^(right|left|group.first)$', downstream => true)"
    assert len(engine.db.sql(clear, found["run_id"])) >= 5
    engine.db.wait_for("select state = 'success' from onceflow.run where id = %s", found["run"])
    states = dict(engine.db.sql("select task_id, state from onceflow.task_instance where run = %s", found["run"]))
    assert states == found["tis"]
    tries = dict(engine.db.sql("select task_id, try_number from onceflow.task_instance where run = %s", found["run"]))
    assert (tries["left"], tries["right"], tries["choose"]) == (2, 0, 1)


def test_a_short_circuit_cuts_off_what_waits_further_down(engine: Engine) -> None:
    """At once: maps that are not expanded, joins that wait for others too; what runs already is left alone, and no end counts twice."""
    gate = engine.make_gate()
    run = engine.client.trigger("cut_wide", params={"go": False, "gate": str(gate)})
    states = "select jsonb_object_agg(task_id, state) from onceflow.task_instance where run = %s having count(*) filter (where state in ('queued', 'running', 'no_status')) = 1"
    held = engine.db.wait_for(states, run.run)
    expected = {**dict.fromkeys(("check", "before", "items", "early"), "success"), **dict.fromkeys(("mapped", "joined", "end"), "skipped"), "hold": "running"}
    assert held == expected
    gate.touch()
    assert run.result(20) == "success"
    gone_on = run_dag(engine, "cut_wide", go=True, gate=str(gate))
    assert set(gone_on["tis"].values()) == {"success"} and len(gone_on["tis"]) == 9


def test_a_branch_leads_to_maps(engine: Engine) -> None:
    """The chosen one is expanded, the other one skipped as a whole."""
    assert run_dag(engine, "branch_to_a_map", to="two")["tis"] == {
        "_answer": "success",
        "choose": "success",
        "one": "skipped",
        "two[0]": "success",
        "two[1]": "success",
    }


def test_a_branch_to_nowhere_fails_by_name(engine: Engine) -> None:
    """An id that is not directly downstream is the branch's failure, and says which are."""
    found = run_dag(engine, "branches", to="lfet")
    assert found["state"] == "failed" and found["tis"]["choose"] == "failed" and found["tis"]["left"] == "upstream_failed"
    assert (
        "answered 'lfet', which is not directly downstream of it; those are ['group.first', 'join', 'left'"
        in engine.db.sql(REASON, found["run"], "choose")[0][0]
    )


def test_the_operator_branches_as_the_decorator_does(engine: Engine) -> None:
    """BranchPythonOperator gets the context by parameter name, and decides by what its function answers."""
    assert run_dag(engine, "classic_branch", to="b")["tis"] == {"branch": "success", "a": "skipped", "b": "success"}


@pytest.mark.parametrize(
    ("dag_id", "states"),
    [("cut_all", {"a": "skipped", "last": "skipped", "clean": "success"}), ("cut_direct", {"a": "skipped", "last": "success", "clean": "success"})],
)
def test_a_short_circuit_skips_what_follows(engine: Engine, dag_id: str, states: dict[str, str]) -> None:
    """All of it whatever its rules, or only what is directly downstream; teardowns run in any case."""
    assert run_dag(engine, dag_id, go=0)["tis"] == {"check": "success", **states}
    gone_on = run_dag(engine, dag_id, go=1)
    assert set(gone_on["tis"].values()) == {"success"} and outputs(engine, gone_on["run"], "check") == [True]


def test_a_short_circuit_by_decorator(engine: Engine) -> None:
    """@task.short_circuit skips what follows when its function answers something false."""
    assert run_dag(engine, "cut_by_decorator", go=[])["tis"] == {"is_wanted": "success", "after": "skipped"}
    assert run_dag(engine, "cut_by_decorator", go=[0])["tis"] == {"is_wanted": "success", "after": "success"}


def test_a_task_skips_itself_or_fails_for_good(engine: Engine) -> None:
    """SkipTask ends a task as skipped, FailTask as failed; neither is tried again, and the reason is recorded."""
    run = engine.client.trigger("skips_and_fails")
    with pytest.raises(RunFailed, match="task fail failed: the account is closed; 1 did not run for it"):
        run.result(20)
    tis = engine.db.sql("select task_id, state, try_number from onceflow.task_instance where run = %s order by 1", run.run)
    assert tis == [("after_fail", "upstream_failed", 0), ("after_skip", "skipped", 0), ("fail", "failed", 1), ("skip", "skipped", 1)]
    assert engine.db.sql(REASON, run.run, "skip") == [("no rates on a Sunday",)]


def test_only_the_latest_run_goes_on(engine: Engine) -> None:
    """Of scheduled runs the one whose successor is not due yet; one by hand always."""
    states = []
    engine.db.sql("update onceflow.dag set is_paused = false where dag_id = 'latest'")
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for days, run_type in ((9, "scheduled"), (1, "scheduled"), (8, "manual")):
        date = today - timedelta(days=days)
        with engine.db.connect() as conn, conn.transaction():
            start = "select (onceflow.start_run('latest', logical_date => %s, run_type => %s) ->> 'run')::bigint"
            (run,) = conn.execute(start, [date, run_type]).fetchone() or ()
            conn.execute("update onceflow.run set data_interval_start = %s, data_interval_end = %s where id = %s", [date, date + timedelta(days=1), run])
        engine.db.wait_for("select state from onceflow.run where id = %s", run)
        states.append(engine.db.sql("select state from onceflow.task_instance where run = %s and task_id = 'after'", run)[0][0])
    assert states == ["skipped", "success", "success"]


@pytest.mark.parametrize(
    ("dag_id", "state", "tis"),
    [
        ("cleaning_after_success", "success", {"make": "success", "work": "success", "clean": "success"}),
        ("cleaning_after_failure", "failed", {"make": "success", "work": "failed", "clean": "success"}),
        ("cleaning_without_setup", "failed", {"make": "failed", "work": "upstream_failed", "clean": "upstream_failed"}),
        ("cleaning_after_skipped_setup", "success", {"make": "skipped", "work": "skipped", "clean": "skipped"}),
        ("cleaning_that_fails", "success", {"make": "success", "work": "success", "clean": "failed"}),
        ("cleaning_that_must_not_fail", "failed", {"make": "success", "work": "success", "clean": "failed"}),
        ("cleaning_around_a_block", "success", {"make": "success", "one": "success", "two": "success", "alone": "success", "clean": "success"}),
    ],
)
def test_a_teardown_runs_if_its_setup_succeeded(engine: Engine, dag_id: str, state: str, tis: dict[str, str]) -> None:
    """However the work ended; and the run's state is that of the work, unless the teardown says otherwise."""
    found = run_dag(engine, dag_id)
    assert (found["state"], found["tis"]) == (state, tis)


def test_the_ledger_is_whole(engine: Engine) -> None:
    """Whatever was skipped, decided and torn down above left a ledger in which nothing is missing."""
    assert engine.db.sql("select problem, run_id, step_key, detail from onceflow.verify_ledger()") == []
