"""Failed steps and runs: tried again as declared, stopped in time, and unable to end their own transaction or their worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import RunFailed, StepSplit
from tests.engine.local_worker import FLOWS, Engine, load_flows, wait_until

DAGS = FLOWS / "failing_flows.py"
flows = load_flows("failing_flows")


def test_retries(engine: Engine, tmp_path: Path) -> None:
    """Counts, classes, predicates, backoff with a cap and jitter; a failed try leaves no row; the key is stable over tries."""
    run = engine.client.start(flows.retrying, str(tmp_path))
    found = run.result(30)
    assert found["flaky"] == 3 and found["backing_off"] == 4
    assert found["exhausted"] == "Transient(try 3)"
    assert found["permanent"] == "Permanent(no)"
    assert found["first"] == "Transient(try 2)"
    assert found["external"] == f"retrying/{run.run_id}/flaky_external#0"
    assert engine.effects(run) == ["try 3", "try 4"]
    entries = run.steps()
    states = {key: [e["to_state"] for e in entries if e["step_key"] == key] for key in ("flaky#0", "flaky#1", "only_transient#0", "only_first#0")}
    assert states == {
        "flaky#0": ["up_for_retry", "up_for_retry", "success"],
        "flaky#1": ["up_for_retry", "up_for_retry", "failed"],
        "only_transient#0": ["failed"],
        "only_first#0": ["up_for_retry", "failed"],
    }
    waits = engine.db.sql(
        "select extract(epoch from started_at - lag(at) over (order by id))::float8 from onceflow.step_ledger where dag_run = %s and step_key = 'backing_off#0'",
        run.run,
    )
    assert all(0.08 < seconds < 1.5 for (seconds,) in waits[1:]), waits


def test_an_os_error_of_the_users_own_is_no_lost_connection(engine: Engine, tmp_path: Path) -> None:
    """A missing file in a transactional step fails it at once: only a lost connection is worth a silent replay."""
    with pytest.raises(FileNotFoundError):
        engine.run(flows.os_error, str(tmp_path))
    assert (tmp_path / "calls").read_text() == "x"


@pytest.mark.parametrize("by_name", [False, True])
def test_workflow_retries_reuse_successes(engine: Engine, tmp_path: Path, by_name: bool) -> None:
    """A failed body runs again: what failed in it runs again, what succeeded does not; also when it was started by its name."""
    run = engine.client.start("retried_workflow" if by_name else flows.retried_workflow, str(tmp_path))
    assert run.result(20) == "try 3"
    assert engine.effects(run) == ["once"]


def test_a_run_past_its_timeout_fails(engine: Engine) -> None:
    """The whole run is limited, while a step runs and while the body sleeps; the reason is told."""
    gate = engine.make_gate()
    for run in (engine.client.start(flows.timed_out_run, str(gate)), engine.client.start(flows.asleep, 60, timeout=0.5)):
        with pytest.raises(RunFailed, match="timeout"):
            run.result(20)
        assert run.state == "failed"
    gate.touch()


def test_a_delayed_run_starts_later(engine: Engine) -> None:
    """`delay` holds a run back for that long."""
    run = engine.client.start(flows.asleep, 0, delay=0.5)
    assert run.state == "queued"
    assert run.result(20) == "woke"
    waited = engine.db.sql("select extract(epoch from start_date - created_at)::float8 from onceflow.dag_run where id = %s", run.run)[0][0]
    assert waited >= 0.5


def test_a_steps_leftovers_do_not_reach_the_next_step(engine: Engine) -> None:
    """SET, search_path, temp tables, prepared statements, LISTEN and advisory locks end with their step, on either driver."""
    plan = "" if engine.db.server.name == "pgbouncer" else "prepare left_plan as select 1; listen left_channel;"  # refused there
    before, after = engine.run(flows.leftovers, plan)
    assert after == before


@pytest.mark.parametrize("name", list(flows.COMMITTING))
def test_a_commit_inside_a_step_is_refused(engine: Engine, name: str) -> None:
    """COMMIT in any spelling, on every driver: the step fails with StepSplit, and nothing of it is there."""
    run = engine.client.start(flows.committing, name)
    with pytest.raises(StepSplit):
        run.result(20)
    assert engine.effects(run) == []


@pytest.mark.parametrize(
    ("flow", "how"),
    [
        (flows.leaving, "body"),
        (flows.leaving, "async"),
        (flows.leaving, "def"),
        (flows.leaving_sync, "exit"),
        (flows.leaving, "stop"),
        (flows.leaving_sync, "stop"),
    ],
)
def test_sys_exit_and_stop_iteration_fail_the_run_not_the_worker(engine: Engine, flow: Any, how: str) -> None:
    """What would end a worker or hang a future is the run's failure, with its name."""
    run = engine.client.start(flow, how)
    with pytest.raises(Exception, match="StopIteration" if how == "stop" else "SystemExit"):
        run.result(10)
    assert run.state == "failed"
    assert engine.workers.started[0].running
    wait_until(lambda: engine.run(flows.asleep, 0) == "woke")
