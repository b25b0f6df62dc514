"""What one member of a group commit does to the transaction that it shares, and what the others feel of it: nothing but a second call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "group_flows.py"
flows = load_flows("group_flows")

ENDS = {
    "commit": ["commit"],
    "commit and begin": ["commit; begin"],
    "rollback": ["rollback"],
    "rollback and begin": ["rollback; begin"],
    "in two members": ["rollback; begin", "commit"],
    "all in one": ["rollback; begin; commit"],
    "close all": ["close all"],
}


@pytest.mark.parametrize("hows", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("driver", flows.GOOD)
def test_a_member_that_ends_the_shared_transaction_harms_no_other(engine: Engine, tmp_path: Path, driver: str, hows: list[str]) -> None:
    """A COMMIT past the guard commits nobody's writes without their record: each other member is called again, alone, and leaves one row."""
    good = [f"g{i}{j}" for i in range(len(hows) + 1) for j in range(3)]
    for attempt in range(10):  # who meets whom in a group is up to the moment
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run = engine.client.start(flows.mixed_group, driver, str(folder), hows)
        answers: list[Any] = run.result(30)
        assert [answer for i, answer in enumerate(answers) if i % 4 != 3] == good
        assert sorted(engine.effects(run)) == good
        assert answers[3::4] == ["StepSplit"] * len(hows)
        if max(len((folder / name).read_text()) for name in good) == 2:
            break
    else:
        raise AssertionError("no good member met a bad one; the test proves nothing")
    assert engine.db.sql("select * from onceflow.verify_ledger()") == []


DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


def test_groups_that_deadlock_end_at_their_first_try(idle_engine: Engine, tmp_path: Path) -> None:
    """Two workers' groups touch the same rows in opposite order: whoever PostgreSQL ends runs again, one by one, and no try is burnt."""
    engine, db = idle_engine, idle_engine.db
    for queue in ("there", "back"):
        engine.start_worker(queues=[queue])
    sums = "select sum(balance)::int from account"
    for attempt in range(1, 11):
        (before,) = db.sql(sums)[0]
        gates = [str(tmp_path / f"{attempt}{queue}") for queue in ("there", "back")]
        there = engine.client.start(flows.cross, [1] * 4 + [2] * 4, gates[0], gates[1], queue="there")
        back = engine.client.start(flows.cross, [2] * 4 + [1] * 4, gates[1], gates[0], queue="back")
        for run in (there, back):
            run.result(30)
            assert {e["to_state"] for e in run.steps()} == {"success"}
            assert {e["try_number"] for e in run.steps()} == {1}
        assert db.sql(sums) == [(before + 16,)]
        db.sql("select pg_stat_force_next_flush()")
        if db.sql(DEADLOCKS)[0][0]:
            break
    else:
        raise AssertionError("no deadlock came about; the test proves nothing")
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_member_of_a_group_starts_what_comes_after(engine: Engine, tmp_path: Path) -> None:
    """step.start inside a grouped step: begun once with the group's commit, without leaving the group."""
    run = engine.client.start(flows.outbox_in_group, str(tmp_path))
    run.result(20)
    engine.db.wait_for("select count(*) = 6 from effect where what = %s", run.run_id)
    assert sorted(engine.effects(run)) == ["after o0", "after o1", "after o2", "o0", "o1", "o2"]
    assert {(tmp_path / f"o{i}").read_text() for i in range(3)} == {"x"}
