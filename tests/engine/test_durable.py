"""Durable code: branches, decisions and identities are the same on every replay, over suspensions and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "durable_flows.py"
flows = load_flows("durable_flows")


def keys_of(engine: Engine, run: Any) -> set[str]:
    """The keys of the run's recorded outcomes."""
    return {e["step_key"] for e in run.steps() if e["to_state"] in ("success", "failed")}


def test_gather(engine: Engine) -> None:
    """Results in order, nested too; exceptions as values or the first in order raised; each effect once, whatever was replayed."""
    run = engine.client.start(flows.gathering)
    first, mixed, raised, empty = run.result(20)
    assert first == ["a", "b", "c", ["d", "e"]]
    assert mixed == ["f", "Unwell('g')", 6]
    assert (raised, empty) == ("first", [])
    assert engine.replays(run) >= 2
    notes = engine.effects(run)
    assert sorted(notes) == sorted({*notes}) and set(notes) >= {"lookup a", "pay a", "lookup b", "pay b", "c", "lookup d", "pay d", "e", "f", "h", "i"}
    assert {"gather#0[0]/note#0", "gather#0[1]/note#1", "gather#0[3]/gather#0[0]/note#0"} & keys_of(engine, run)


def test_asyncio_gather_task_group_lock_and_task(engine: Engine) -> None:
    """asyncio's own means to run branches keep their keys on a replay, and their body is suspended like any other."""
    run = engine.client.start(flows.asyncio_gathering)
    assert run.result(20) == [["a", "b", "c"], ["d", "e"], ["g", "h"], "i"]
    assert engine.replays(run) >= 4
    notes = engine.effects(run)
    branches = [*(f"pay#{i}" for i in range(5)), *(f"asyncio_gathering.<locals>.one_by_one#{i}" for i in range(2))]
    assert keys_of(engine, run) == {
        "asyncio_gathering",
        "note#0",
        "note#1",
        "note#2",
        *(f"{branch}/{name}" for branch in branches for name in ("note#0", "sleep#0", "note#1")),
    }
    assert sorted(notes) == sorted(["c", "f", "j"] + [f"{what} {name}" for name in "abdeghi" for what in ("lookup", "pay")])


def test_a_branch_left_behind_ends_with_its_body(engine: Engine) -> None:
    """asyncio.gather that raised: the other branch is cancelled when the body ends, and a replay does not miss its steps."""
    run = engine.client.start(flows.left_behind)
    assert run.result(20) == "done"
    assert engine.replays(run) >= 1
    assert "pay x" not in engine.effects(run)


def test_first_of(engine: Engine) -> None:
    """(index, result) of the first; its error is raised; the decision survives replays; losers do nothing more."""
    run = engine.client.start(flows.racing)
    found = run.result(20)
    assert found[0] == (1, "hare")
    assert found[1] in [(0, "one"), (1, "two")]
    assert found[2] == "broken"
    assert found[3] == (1, None)
    assert engine.replays(run) >= 2
    assert sorted(n for n in engine.effects(run) if "starts" in n) == ["hare starts", "tortoise starts"]


def test_timeout(engine: Engine) -> None:
    """The branch's result, or WaitTimeout; for waits, running steps and branches of several steps."""
    gate = engine.make_gate()
    run = engine.client.start(flows.limited, str(gate))
    assert run.result(20) == ["in time", "WaitTimeout", "WaitTimeout", "WaitTimeout"]
    gate.touch()


@pytest.mark.parametrize("flow", [flows.decisions, flows.decisions_sync])
def test_now_random_and_uuid4_are_recorded(engine: Engine, flow: Any) -> None:
    """A replay sees the values of the first run; each call has its own."""
    run = engine.client.start(flow)
    first, again = run.result(20)
    assert engine.replays(run) == 1
    assert first == again
    assert first[0].utcoffset().total_seconds() == 0 and first[0] <= first[3]
    assert first[1] != first[4] and 0 <= first[1] < 1 and first[2].version == 4


def test_identities(engine: Engine, tmp_path: Path) -> None:
    """idempotency_key: the same over tries and replays, different for every call, branch and started task; current_run tells where."""
    run = engine.client.start(flows.identities, str(tmp_path))
    found = run.result(20)
    assert found["body"] == [run.run_id, "identities"]
    calls = [*found["direct"], *found["gathered"], *found["started"]]
    assert len({key for key, *_ in calls}) == 6
    assert all((run_id, dag_id) == (run.run_id, "identities") for _, run_id, dag_id, _ in calls)
    assert found["direct"][0][3] == "my_key#0" and found["gathered"][1][3] == "gather#0[1]/my_key#0"
    assert len(found["tries"]) == 3 and len({*found["tries"]}) == 1


def test_no_other_run_has_its_idempotency_key(engine: Engine) -> None:
    """A run whose id reads like a place in another run has keys of its own."""
    keys = [
        engine.run(flows.keyed, branched, run_id=run_id) for run_id, branched in [("month", True), ("month/gather#0[0]", False), ("month%2Fgather#0[0]", False)]
    ]
    assert len({*keys}) == 3


def test_steps_inside_an_external_step(engine: Engine, tmp_path: Path) -> None:
    """They are recorded under it; its next try reuses their successes and repeats their failures; a replay asks for none of them."""
    run = engine.client.start(flows.nesting, str(tmp_path))
    assert run.result(20) == [["inner", ["left", "right"], "needed"], "end"]
    assert sorted(engine.effects(run)) == ["end", "inner", "left", "right"]
    assert engine.replays(run) == 1
    assert {"outer#0/note#0", "outer#0"} <= keys_of(engine, run)
    assert (tmp_path / "outer-2").exists() and not (tmp_path / "outer-3").exists()


def test_an_unfinished_run_shows_what_it_waits_for(engine: Engine, tmp_path: Path) -> None:
    """While a step waits for its next try its body is forgotten: state deferred, no lease."""
    run = engine.client.start(flows.waits_for_retry, str(tmp_path))
    engine.wait_for_state(run, "deferred")
    assert engine.db.sql("select count(*) from onceflow.lease where run = %s", run.run) == [(0,)]
    assert run.result(20) == 2
    tries = [(e["try_number"], e["to_state"]) for e in run.steps() if e["step_key"] == "slowly_retried#0" and e["to_state"] != "started"]
    assert tries == [(1, "up_for_retry"), (2, "up_for_retry"), (3, "success")]


def test_a_message_that_loses_a_race_is_not_lost(engine: Engine) -> None:
    """Messages that come just when the clock wins: each is either the result, or still there for the next recv."""
    runs = [engine.client.start(flows.racing_messages, 0.02 * i) for i in range(30)]
    for run in runs:
        run.send(run.run_id, "m")
    for run in runs:
        winner, value = run.result(30)
        left = engine.db.sql("select count(*) from onceflow.message where run = %s", run.run)[0][0]
        assert (winner, value, left) in [(0, run.run_id, 0), (1, None, 1)]


def test_branches_survive_kills(idle_engine: Engine) -> None:
    """Workers are killed again and again in the midst of it: every branch's effects are there once, every result is right."""
    env = {"ONCEFLOW_LEASE_S": "1", "ONCEFLOW_MAX_RESCUES": "50"}
    runs = [idle_engine.client.start(flows.many_branches, 4, queue="killed") for _ in range(6)]
    for i in range(5):
        worker = idle_engine.start_worker(queues=["killed"], env=env)
        idle_engine.db.wait_for("select count(*) >= %s from onceflow.step_ledger where kind = 'transactional' and dag_id = 'many_branches'", 20 * (i + 1))
        worker.kill()
    worker = idle_engine.start_worker(queues=["killed"], env=env)
    for run in runs:
        expected = [[f"{letter}{i}" for i in range(4)] for letter in "abcd"]
        assert run.result(60) == [*expected, (0, "e")]
        names = [f"{letter}{i}" for letter in "abc" for i in range(4)] + ["e"]
        assert sorted(idle_engine.effects(run)) == sorted([f"{what} {n}" for n in names for what in ("lookup", "pay")] + expected[3])
    worker.end()
