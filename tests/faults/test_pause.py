"""A worker is paused past its lease, and comes back: it cannot commit what another has done meanwhile, and goes on working."""

from __future__ import annotations

from tests.faults.checker import count_entries
from tests.faults.conftest import Stage, wait_until

LEASE_S = 2.0


def test_a_worker_paused_past_its_lease_loses_the_steps_and_goes_on_working(stage: Stage) -> None:
    """SIGSTOP inside four steps, another worker finishes them, SIGCONT: LeaseLost in the log, one row each, then new work."""
    first = stage.start_worker(lease_s=LEASE_S)
    for name in ("one_payment", "one_payment_blocking", "one_late_payment"):
        stage.start(name, name, "in-step")
    stage.start_step("pay", "task", "in-step")
    stage.gates.wait_for("in-step", 4)
    first.stop()
    second = stage.start_worker(lease_s=LEASE_S)
    stage.gates.open("in-step")
    stage.check()
    assert count_entries(stage.db, "rescued") == 4
    first.resume()
    for run in stage.runs:
        wait_until(lambda name=f"{run.dag_id}/{run.run_id}/{run.dag_id}": f"LeaseLost: {name}" in first.log_text(), "LeaseLost in the log")
    assert second.terminate() == 0
    again = stage.start("one_payment", "again")
    assert stage.check() == 5
    assert stage.db.sql("select worker from onceflow.step_ledger where dag_run = %s and to_state = 'success' limit 1", again.run) == [(stage.worker_id(first),)]
    assert first.terminate() == 0


def test_a_paused_workers_open_transaction_blocks_nobody(stage: Stage) -> None:
    """A frozen process would keep its row locks for ever: rescue ends its sessions, so the next try gets the rows."""
    first = stage.start_worker(lease_s=1)
    run = stage.start("hold_row", "held", "in-step")
    stage.gates.wait_for("in-step")
    first.stop()
    stage.start_worker(lease_s=1)
    stage.gates.open("in-step")
    run.result(30)
    assert stage.db.sql("select value from counter where id = 1") == [(1,)]
    assert stage.check() == 1


def test_a_worker_paused_within_its_lease_loses_nothing(stage: Stage) -> None:
    """A pause shorter than the lease is no loss: the worker goes on where it was, no try is lost."""
    first = stage.start_worker(lease_s=6)
    stage.start("one_payment", "short", "in-step")
    stage.gates.wait_for("in-step")
    stage.start_worker(lease_s=6)
    before = stage.db.sql("select heartbeat_at from onceflow.worker where id = %s", stage.worker_id(first))[0][0]
    first.stop()
    stage.db.wait_for("select onceflow.now() > %s::timestamptz + interval '3 seconds'", before)
    stage.gates.open("in-step")
    first.resume()
    assert stage.check() == 1
    assert count_entries(stage.db, "rescued") == 0
