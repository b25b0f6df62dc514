"""What nobody waits for any more: it has happened and its body knows, or it does not happen."""

from __future__ import annotations

import random

import pytest

from tests.engine.local_worker import FLOWS, Engine, load_flows

pytestmark = pytest.mark.server("18", "15", "pgbouncer")
DAGS = FLOWS / "left_behind_flows.py"
flows = load_flows("left_behind_flows")


@pytest.mark.parametrize("racer", flows.RACERS)
def test_a_step_that_commits_has_not_lost(engine: Engine, racer: str) -> None:
    """first_of cancels a step while its commit may be on its way: where it committed, it is the winner; where it lost, nothing is there."""
    moments = random.Random(racer)
    runs = [engine.client.start(flows.racing_the_clock, racer, moments.uniform(0, 0.02)) for _ in range(60)]
    told = {run.run_id: run.result(60) for run in runs}
    paid = {what for (what,) in engine.db.sql("select what from effect where note = 'paid'")}
    assert {run_id for run_id, end in told.items() if end == "paid"} == paid & told.keys()
    recorded = engine.db.sql("select run_id from onceflow.step_ledger where step_key like 'pay%%' and to_state = 'success' and run_id = any(%s)", list(told))
    assert {run_id for (run_id,) in recorded} == paid & told.keys()


@pytest.mark.parametrize("how", flows.LEAVING)
def test_nothing_commits_after_the_outcome_of_its_step(engine: Engine, how: str) -> None:
    """An external step has failed, ended or lost: a thread or a task that it left behind pays nothing, and holds no lock."""
    run = engine.client.start(flows.leaving_work, how)
    run.result(30)
    assert engine.effects(run) == ["in place of it"]
    assert not [e for e in run.steps() if "/" in e["step_key"]]
    assert engine.db.sql("select * from onceflow.verify_ledger()") == []
