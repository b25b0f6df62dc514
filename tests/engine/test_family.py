"""What a run starts: steps elsewhere, child runs, itself again, the outbox; and what becomes of it on cancel, retry and fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import RunCancelled, RunFailed
from tests.engine.local_worker import FLOWS, Engine, load_flows, wait_until

DAGS = FLOWS / "family_flows.py"
flows = load_flows("family_flows")


def test_started_steps_run_in_parallel_on_two_workers(engine: Engine) -> None:
    """step.start: all at once, on any worker, retried there; result() gives the result or the error."""
    second = engine.start_worker(concurrency=2)
    gate = engine.make_gate()
    runs = [engine.client.start(flows.starting, str(gate)), engine.client.start(flows.starting, str(gate) + "b")]
    for prefix in (str(gate), str(gate) + "b"):
        wait_until(lambda prefix=prefix: all(Path(f"{prefix}-{n}").exists() for n in (1, 2, 13, 99)))
    gate.touch()
    Path(str(gate) + "b").touch()
    pids = set()
    for run in runs:
        *results, error = run.result(30)
        assert [r[0] for r in results] == [1, 2, 13]
        assert error == "work 99"
        assert len({r[2] for r in results}) == 3
        pids |= {r[1] for r in results}
        assert engine.replays(run) >= 1
    assert pids <= {w.pid for w in engine.workers.started if w.running}
    second.terminate()


def test_started_steps_in_a_def_body(engine: Engine) -> None:
    """A def body starts steps and waits for them; its thread is given back meanwhile."""
    gate = engine.make_gate()
    run = engine.client.start(flows.starting_sync, str(gate))
    engine.wait_for_state(run, "deferred")
    gate.touch()
    assert run.result(20) == [1, 2]
    assert engine.effects(run) == ["started"]


def test_child_runs(engine: Engine) -> None:
    """A child's result and failure reach the parent; a second start of the same child is another run; each runs once."""
    run = engine.client.start(flows.parent)
    first_id, again_id, ten, error, again = run.result(20)
    assert first_id != again_id
    assert (ten, error, again) == (10, "child -1", 10)
    children = engine.db.sql("select run_id, state from onceflow.run where parent_run = %s order by id", run.run)
    assert [state for _, state in children] == ["success", "failed", "success"]
    assert engine.db.sql("select note from effect where what = any(%s) order by note", [c for c, _ in children]) == [("child -1",), ("child 1",), ("child 1",)]
    assert engine.run(flows.parent_sync) == 40


def test_cancel_takes_children_along(engine: Engine) -> None:
    """Cancelling the grandparent ends the whole family, the running step of the grandchild too; later results say so."""
    gate = engine.make_gate()
    run = engine.client.start(flows.grandparent, str(gate))
    engine.db.wait_for(
        "select count(*) from onceflow.step_ledger l join onceflow.run r on r.id = l.dag_run join onceflow.run m on m.id = r.parent_run"
        " where m.parent_run = %s and l.step_key = 'hold#0'",
        run.run,
    )
    run.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        run.result(20)
    family = engine.db.sql(
        "with recursive f as (select id, state from onceflow.run where id = %s union all"
        " select r.id, r.state from onceflow.run r join f on r.parent_run = f.id) select state from f",
        run.run,
    )
    assert family == [("cancelled",)] * 3
    gate.touch()
    engine.db.wait_for("select not exists (select from onceflow.lease where run >= %s)", run.run)


def test_a_cancelled_child_is_told_to_its_parent(engine: Engine) -> None:
    """RunCancelled with the reason is the parent's error; the parent may be retried, and its child with it."""
    gate = engine.make_gate()
    run = engine.client.start(flows.grandparent, str(gate))
    find = "select m.run_id, m.dag_id from onceflow.run r join onceflow.run m on m.parent_run = r.id where r.parent_run = %s"
    engine.db.wait_for(find, run.run)
    run_id, dag_id = engine.db.sql(find, run.run)[0]
    engine.client.find(run_id, dag_id).cancel("not this one")
    with pytest.raises(RunCancelled, match="not this one"):
        run.result(20)
    assert run.state == "failed"
    gate.touch()
    run.retry()
    assert run.result(20) == 50


def test_a_retried_parent_retries_its_failed_child(engine: Engine, tmp_path: Path) -> None:
    """Once the cause is gone, one retry of the parent repairs the family; what had succeeded is reused."""
    run = engine.client.start(flows.parent_of_unlucky, str(tmp_path))
    with pytest.raises(flows.Unwell):
        run.result(20)
    (tmp_path / "repaired").touch()
    run.retry()
    assert run.result(20) == 5
    assert engine.db.sql("select count(*) from effect e join onceflow.run r on r.run_id = e.what where r.parent_run = %s", run.run) == [(1,)]


@pytest.mark.parametrize(("flow", "args", "result"), [(flows.counting, (4,), 10), (flows.counting_sync, (3,), 0)])
def test_continue_as(engine: Engine, flow: Any, args: Any, result: int) -> None:
    """Each go is a run of its own with a fresh history; result() of the first follows to the last."""
    run = engine.client.start(flow, *args, run_id=f"count-{flow.name}")
    assert run.result(20) == result
    runs = engine.db.sql("select run_id, state from onceflow.run where dag_id = %s order by id", flow.name)
    assert [state for _, state in runs] == ["success"] * (args[0] + 1)
    assert [r for r, _ in runs] == [f"count-{flow.name}", *(f"count-{flow.name}~{i}" for i in range(2, args[0] + 2))]
    assert engine.db.sql("select note from effect where what like %s order by id", f"count-{flow.name}%") == [(f"left {i}",) for i in range(args[0], -1, -1)]


def test_continue_as_beside_runs_of_like_ids(engine: Engine) -> None:
    """The run that goes on is a new one: not one that has the id already, whatever its arguments, nor that of another long id which begins alike."""
    taken = [engine.client.start(flows.counting, *args, run_id=run_id) for run_id, args in [("like~2", (0, 1)), ("other~2", (3,))]]
    assert [run.result(20) for run in taken] == [1, 6]
    long = "x" * 245
    ids = ["like", "other", f"{long}a", f"{long}b", "day~20261130123456"]
    runs = [engine.client.start(flows.counting, 1, run_id=run_id) for run_id in ids]
    assert [run.result(20) for run in runs] == [1] * 5
    went_on = engine.db.sql("select b.run_id from onceflow.run a join onceflow.run b on b.id = a.continued_by where a.run_id = any(%s)", ids)
    assert len({*went_on}) == 5 and not {("like~2",), ("other~2",)} & {*went_on} and ("day~20261130123456~2",) in went_on
    assert engine.db.sql("select count(*) from effect where note = 'left 0' and what = any(%s)", [run_id for (run_id,) in went_on]) == [(5,)]


def test_messages_and_cancel_follow_continue_as(engine: Engine) -> None:
    """Messages sent to the first run, before and after it went on, reach the run that goes on, once; a cancel of the first one too."""
    run = engine.client.start(flows.relaying, 5, run_id="relay")
    run.send("one", "m", key="k1")
    run.send("two", "m", key="k2")
    engine.db.wait_for("select count(*) from effect where what = %s", "relay~2")
    assert run.send("two again", "m", key="k2") is False
    assert run.send("three", "m", key="k3") is True
    engine.db.wait_for("select count(*) from effect where what = %s", "relay~3")
    assert engine.db.sql("select note from effect where what like 'relay%%' order by id") == [("one",), ("two",), ("three",)]
    run.cancel("enough of it")
    with pytest.raises(RunCancelled, match="enough of it"):
        run.result(20)
    assert engine.db.sql("select run_id, state from onceflow.run where dag_id = 'relaying' order by id") == [
        ("relay", "success"),
        ("relay~2", "success"),
        ("relay~3", "success"),
        ("relay~4", "cancelled"),
    ]


def test_continue_as_in_a_task_group_and_in_a_child(engine: Engine) -> None:
    """It ends the body from any branch; a parent that waits for the child gets the last one's result."""
    assert engine.run(flows.counting_in_group, 1) == 0
    assert engine.run(flows.parent_of_counting) == 6


def test_outbox(engine: Engine) -> None:
    """step.start inside a transactional step: delivered once after its commit, never after a rollback, not even of a savepoint."""
    run = engine.client.start(flows.shop)
    assert run.result(20) == "closed"
    assert sorted(engine.effects(run)) == ["delivered salt", "delivered tea", "ordered salt", "ordered tea"]
    assert engine.db.sql("select count(*) from onceflow.ti where run = %s and detached", run.run) == [(2,)]
    alone = engine.client.start(flows.order, "rice", False)
    assert alone.result(20) is None
    assert engine.effects(alone) == ["ordered rice", "delivered rice"]


def test_retry_reuses_every_success(engine: Engine, tmp_path: Path) -> None:
    """A failed run, retried after the repair: steps, branches and started tasks that had succeeded are not run again."""
    run = engine.client.start(flows.repairable, str(tmp_path))
    with pytest.raises(flows.Unwell):
        run.result(20)
    (tmp_path / "repaired").touch()
    run.retry()
    assert run.result(20) == ["first", ["left", "right"], "started", "last"]
    assert engine.effects(run) == ["first", "last"]
    assert [(tmp_path / name).read_text() for name in ("left", "right", "started")] == ["x", "x", "x"]
    with pytest.raises(Exception, match="only a failed"):
        run.retry()


def test_fork_goes_on_from_a_step(engine: Engine) -> None:
    """A fork reuses all that was recorded before that step, started tasks too, and runs the rest under its own id."""
    run = engine.client.start(flows.forkable, 7)
    original = run.result(20)
    fork = run.fork("note#2", run_id="fork-of-7")
    assert fork.result(20) == original
    assert engine.effects(fork) == ["c7"]
    late = run.fork("note#1")
    result = late.result(20)
    assert result[:3] == original[:3]
    assert engine.effects(late) == ["b7", "c7"]
    assert engine.effects(run) == ["a7", "b7", "c7"]
    with pytest.raises(Exception, match="no step nothing#0"):
        run.fork("nothing#0")


def test_a_failed_run_without_an_error_says_why(engine: Engine) -> None:
    """RunFailed with the reason, when no exception of the user's is there."""
    gate = engine.make_gate()
    run = engine.client.start(flows.grandparent, str(gate), timeout=0.3)
    with pytest.raises(RunFailed, match="exceeded its timeout"):
        run.result(20)
    gate.touch()


def test_a_cancel_in_an_open_transaction_holds_up_nobody_else(engine: Engine) -> None:
    """An application cancels a run and keeps its transaction open, while many branches of that run write: other runs go on as ever."""
    gate = engine.make_gate()
    run = engine.client.start(flows.writing_at_once, str(gate), 16)
    engine.wait_for_entry(run, "hold#0", "started")
    with engine.db.connect("app") as app, app.transaction():
        app.execute("select onceflow.cancel_run(%s, 'open')", (run.run,))
        gate.touch()
        for _ in range(3):
            assert engine.run(flows.parent, timeout_s=15)[2] == 10
        assert run.state == "running"
    with pytest.raises(RunCancelled):
        run.result(20)
