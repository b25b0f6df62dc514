"""A worker dies inside a step: the other finishes it, and the lost try is in the ledger."""

from __future__ import annotations

from tests.faults.conftest import Stage, wait_until

LEASE_S = 10.0  # the default


def test_a_killed_workers_steps_are_finished_by_another_within_a_second_after_its_lease(stage: Stage) -> None:
    """SIGKILL after the INSERT, default settings: one row, both tries in the ledger, done within lease_s + 1 s of the kill."""
    first = stage.start_worker()
    body = stage.start("one_payment", "body", "in-step")
    blocking = stage.start("one_payment_blocking", "blocking", "in-step")
    late = stage.start("one_late_payment", "late", "in-step")
    stage.gates.wait_for("in-step", 3)
    second = stage.start_worker()
    first.kill()
    killed_at = stage.db.sql("select clock_timestamp()")[0][0]
    stage.gates.open("in-step")
    stage.check(timeout=LEASE_S + 5)
    took_s = float(stage.db.sql("select extract(epoch from max(at) - %s) from onceflow.step_ledger", killed_at)[0][0])
    print(f"rescue: done {took_s:.2f} s after the kill")
    assert took_s <= LEASE_S + 1
    assert [entry[:3] for entry in stage.entries(body)] == [("one_payment", "rescued", 1), ("pay#0", "success", 1), ("one_payment", "success", 2)]
    assert [entry[1] for entry in stage.entries(blocking)] == ["rescued", "success", "success"]
    assert [entry[1] for entry in stage.entries(late)] == ["started", "rescued", "started", "success", "success"]
    rescued = stage.entries(body)[0]
    assert f"worker {stage.worker_id(first)} " in rescued[3] and "no heartbeat for 10 s" in rescued[3]
    assert stage.db.sql("select distinct worker from onceflow.step_ledger where to_state = 'success'") == [(stage.worker_id(second),)]


def test_a_task_that_is_a_step_is_rescued_as_well(stage: Stage) -> None:
    """A run of a single step, killed three times: three lost tries, then one success, and no retry is used up."""
    stage.start_worker(lease_s=1)
    run = stage.start_step("pay", "alone", "in-step")
    for number in range(3):
        stage.gates.wait_for("in-step")
        worker = stage.workers.started[-1]
        worker.kill()
        stage.gates.clear("in-step")
        if number == 2:
            stage.gates.open("in-step")
        stage.start_worker(lease_s=1)
    stage.check()
    assert [entry[:3] for entry in stage.entries(run)] == [("pay", "rescued", 1), ("pay", "rescued", 2), ("pay", "rescued", 3), ("pay", "success", 4)]


def test_a_task_that_kills_its_workers_fails_as_worker_lost(stage: Stage) -> None:
    """After max_rescues the task fails with a named error instead of taking down one worker after the other."""
    stage.gates.make_exit("deadly")
    stage.start_worker(lease_s=1, max_rescues=2)
    run = stage.start("one_payment", "deadly", "deadly")
    for _ in range(2):
        wait_until(lambda: not stage.workers.started[-1].running, "the worker's death")
        assert stage.workers.started[-1].process.returncode == 70
        stage.start_worker(lease_s=1, max_rescues=2)
    wait_until(lambda: not stage.workers.started[-1].running, "the last worker's death")
    stage.start_worker(lease_s=1, max_rescues=2)
    stage.db.wait_for("select state = 'failed' from onceflow.run where id = %s", run.run)
    assert [entry[1] for entry in stage.entries(run)] == ["rescued", "rescued", "failed"]
    assert stage.db.sql("select * from effect") == []
