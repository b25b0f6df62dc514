"""Parallel branches crash at every place: each pays once, and no result ends up with the other."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Stage, wait_until
from tests.processes import WorkerProcess

RUNS = 20
CRASHES = (("lookup", "kill"), ("before-insert", "exit"), ("after-insert", "kill"))


def crash_at(stage: Stage, worker: WorkerProcess, gate: str, how: str) -> None:
    """Wait until branch A of every run stands at the gate, and end the worker there."""
    stage.gates.wait_for(gate, RUNS)
    if how == "exit":
        stage.gates.make_exit(gate)
        wait_until(lambda: not worker.running, "the worker's exit")
        assert worker.process.returncode == 70
        (stage.gates.folder / f"{gate}.exit").unlink()
    else:
        worker.kill()
    stage.gates.open(gate)


@pytest.mark.parametrize("workflow", ["pay_both", "pay_both_durably"])
def test_gathered_branches_pay_once_each_over_crashes(stage: Stage, workflow: str) -> None:
    """asyncio.gather and onceflow.gather of `lookup -> pay`, B faster: 20 runs crash in A's lookup, before A's INSERT
    (os._exit) and after it; A and B are paid once each, and the results come back in their order."""
    worker = stage.start_worker(concurrency=RUNS, lease_s=1)
    runs = [stage.start(workflow, number) for number in range(RUNS)]
    for gate, how in CRASHES:
        stage.db.wait_for("select count(*) = %s from effect where key like 'B%%'", RUNS)
        crash_at(stage, worker, gate, how)
        worker = stage.start_worker(concurrency=RUNS, lease_s=1)
    for number, run in enumerate(runs):
        assert run.result(30) == [f"paid A{number}", f"paid B{number}"]
    assert stage.check() == 2 * RUNS
    assert stage.db.sql("select * from effect where note <> 'price of ' || key") == []
    # B's outcome was replayed: its steps ran in the first try of the body only.
    tries = "select distinct fence = min(fence) over (partition by ti) from onceflow.step_ledger where inputs ->> 'item' like 'B%%'"
    assert stage.db.sql(tries) == [(True,)]


def test_results_are_not_swapped_when_the_order_of_ends_changes_on_replay(stage: Stage) -> None:
    """A ended before B in the first try, B before A in the second: results stay with their branches."""
    worker = stage.start_worker(lease_s=1)
    for gate in ("lookup", "before-insert"):
        stage.gates.open(gate)
    run = stage.start("pay_swapped", 1)
    stage.gates.wait_for("slow-b")
    stage.db.wait_for("select count(*) = 1 from effect")
    worker.kill()
    stage.gates.open("slow-b")
    stage.start_worker(lease_s=1)
    assert run.result(30) == [1, 2, 3]
    assert stage.check() == 3
