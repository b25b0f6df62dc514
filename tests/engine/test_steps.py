"""Every kind of step: its effect and its record commit once, over crashes, suspensions and time limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from onceflow import RunHandle
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "step_flows.py"
flows = load_flows("step_flows")


KINDS = ["asyncpg", "psycopg", "psycopg_async", "session", "async_session", "sa_connection", "sa_async_connection", "sql", "late", "late_async", "late_session"]
SYNC_KINDS = ["psycopg", "session", "sa_connection", "late", "late_session"]


def xids_of_effects_without_entry(engine: Engine, run: RunHandle[Any]) -> list[Any]:
    """Rows written by no transaction that holds a ledger entry of the run."""
    return engine.db.sql(
        "select note from effect where what = %s and not exists (select from onceflow.step_ledger l where l.xid = effect.xid and l.dag_run = %s)",
        run.run_id,
        run.run,
    )


@pytest.mark.parametrize(("flow", "kinds"), [(flows.all_kinds, KINDS), (flows.all_kinds_sync, SYNC_KINDS)])
def test_every_kind_commits_once_over_a_suspension(engine: Engine, flow: Any, kinds: list[str]) -> None:
    """Each kind's row and its ledger entry share one transaction, and a replay runs none of them again."""
    run = engine.client.start(flow, "")
    assert run.result(20) == [*kinds, "end"]
    assert engine.replays(run) == 1
    assert engine.effects(run) == [*kinds, "end"]
    assert xids_of_effects_without_entry(engine, run) == []


def test_every_kind_commits_once_over_kill_9(engine: Engine) -> None:
    """The worker is killed behind the steps; another one replays them from the ledger and goes on."""
    gate = engine.make_gate()
    victim = engine.start_worker(queues=["doomed"], env={"ONCEFLOW_LEASE_S": "1"})
    runs = {flow: engine.client.start(flow, str(gate), queue="doomed") for flow in (flows.all_kinds, flows.all_kinds_sync)}
    for name, run in zip(("hold#0", "hold_sync#0"), runs.values(), strict=True):
        engine.wait_for_entry(run, name, "started")
    victim.kill()
    gate.touch()
    heir = engine.start_worker(queues=["doomed"], env={"ONCEFLOW_LEASE_S": "1"})
    for (_, run), kinds in zip(runs.items(), (KINDS, SYNC_KINDS), strict=True):
        assert run.result(30) == [*kinds, "end"]
        assert engine.effects(run) == [*kinds, "end"]
        assert xids_of_effects_without_entry(engine, run) == []
        assert [e["try_number"] for e in run.steps() if e["step_key"].startswith("hold") and e["to_state"] in ("started", "success")] == [1, 2, 2]
    heir.end()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("late_with_error_inside", "ValueError: inside"),
        ("late_with_error_after", "ValueError: after"),
        ("late_async_with_error_after", "ValueError: after"),
        ("late_twice", "AuthoringError: .*twice"),
        ("late_swallowed", "AuthoringError: .*let the error pass"),
        ("late_swallowed_async", "AuthoringError: .*let the error pass"),
        ("late_of_other_colour", "AuthoringError: .*other colour"),
    ],
)
def test_a_late_commit_that_fails_leaves_nothing(engine: Engine, name: str, error: str) -> None:
    """An error in or after the block, a second block, a swallowed error: the step fails by name and no row is there."""
    run = engine.client.start(flows.run_late, name)
    kind, _, message = error.partition(": ")
    with pytest.raises(Exception, match=message) as raised:
        run.result(20)
    assert type(raised.value).__name__ == kind
    assert engine.effects(run) == []
    assert engine.replays(run) == 1
    assert [e["to_state"] for e in run.steps() if e["step_key"] == f"{name}#0"] == ["started", "failed"]


def test_a_commit_with_that_is_never_entered_is_refused(engine: Engine) -> None:
    """`commit_with(...)` without `with` is a mistake with a name."""
    with pytest.raises(Exception, match=r"commit_with.*with"):
        engine.run(flows.run_late, "late_unused")


def test_a_late_commit_in_a_branch_of_its_step(engine: Engine) -> None:
    """commit_with in a task that the step has begun completes the step like any other."""
    run = engine.client.start(flows.run_late, "late_in_a_branch")
    assert run.result(20) == "x"
    assert engine.effects(run) == ["x"]
    assert xids_of_effects_without_entry(engine, run) == []


def test_more_late_commits_than_threads_and_connections(engine: Engine) -> None:
    """A hundred def steps at once that commit late: none waits for a thread that another one holds."""
    assert engine.run(flows.hundred_late, timeout_s=60) == sum(range(100))


def test_a_step_in_its_own_process(engine: Engine, tmp_path: Path) -> None:
    """Result, idempotency key, error, time limit and death of an isolated step reach the body; past the limit its process is gone."""
    marker = tmp_path / "pid"
    run = engine.client.start(flows.isolated, str(marker))
    total, other_process, keyed, failed, timed_out, died = run.result(30)
    assert (total, other_process) == (6, True)
    assert keyed == f"5 isolated/{run.run_id}/in_process_async#0"
    assert failed == ("TwoArguments", (7, "seven"))
    assert timed_out[0] == "StepTimeout"
    assert died[0] == "WorkerLost" and "code 3" in died[1][0]
    assert not Path(f"/proc/{marker.read_text()}").exists() if os.path.isdir("/proc/self") else True
    assert engine.replays(run) == 1


def test_execution_timeout(engine: Engine) -> None:
    """Async, def and transactional steps of every colour fail with StepTimeout after their limit, and their writes are gone."""
    gate = engine.make_gate()
    run = engine.client.start(flows.timeouts, str(gate))
    found = run.result(30)
    gate.touch()
    assert [text.partition(":")[0] for text in found] == ["StepTimeout"] * 4
    assert all("execution_timeout of 0.2 s" in text for text in found)
    assert engine.effects(run) == []
