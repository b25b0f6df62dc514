"""Bodies that wait hold no slot, however many there are, and write nothing while they leave memory."""

from __future__ import annotations

from tests.faults.checker import count_entries
from tests.faults.conftest import Stage

EACH = 4


def test_waiting_workflows_do_not_starve_each_other_on_one_slot(stage: Stage) -> None:
    """16 workflows that sleep, wait for a message or for a child run, on one worker with concurrency 1: all proceed. A step
    in their `finally:` writes nothing when the body is suspended, and once when it ends."""
    stage.start_worker(concurrency=1, suspend_after_s=0.2, poll_s=0.3)
    for number in range(EACH):
        for name in ("wait_sleep", "wait_sleep_blocking", "wait_child", "wait_message"):
            stage.start(name, f"{name}-{number}")
    stage.db.wait_for("select count(*) = %s from onceflow.ti where state = 'deferred' and task_id = 'wait_message'", EACH)
    messages = [run for run in stage.runs if run.dag_id == "wait_message"]
    assert stage.db.sql("select count(*) from effect where key like 'wait_message%%'") == [(0,)], "a finally wrote on suspension"
    stage.db.wait_for("select count(*) = %s from onceflow.run where state = 'success' and dag_id <> 'child'", 3 * EACH, timeout=60)
    for run in messages:
        assert run.state == "running" or run.state == "deferred"
        run.send("now", topic="go")
    assert stage.check() == 5 * EACH
    assert count_entries(stage.db, "deferred") >= 4 * EACH
    assert stage.db.sql("select distinct try_number from onceflow.ti") == [(1,)]


def test_a_crash_while_bodies_wait_changes_nothing(stage: Stage) -> None:
    """Half of the bodies are suspended, half wait in memory, when the worker is killed: all end as if nothing had been."""
    worker = stage.start_worker(lease_s=1, suspend_after_s=0.1)
    for number in range(EACH):
        stage.start("wait_message", f"message-{number}")
    stage.db.wait_for("select count(*) = %s from onceflow.ti where state = 'deferred'", EACH)
    for number in range(EACH):
        stage.start("wait_sleep", f"sleep-{number}")
    stage.db.wait_for("select count(*) = %s from onceflow.step_ledger where step_key = 'sleep#0'", EACH)
    worker.kill()
    for run in stage.runs[:EACH]:
        run.send("now", topic="go")
    stage.start_worker(lease_s=1)
    assert stage.check() == 2 * EACH
