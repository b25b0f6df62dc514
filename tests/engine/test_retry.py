"""What a retry of a run runs again: what its failure came from, and nothing that its body had seen and handled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import RunCancelled
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "retry_flows.py"
flows = load_flows("retry_flows")


def calls(folder: Path) -> dict[str, int]:
    """How often each step was called."""
    return {file.name: len(file.read_text()) for file in sorted(folder.iterdir()) if file.name != "repaired"}


def fail(engine: Engine, flow: Any, folder: Path, error: type[Exception] = flows.Unwell, *args: str) -> Any:
    """A run that has failed, with what it needed repaired since."""
    run = engine.client.start(flow, str(folder), *args)
    with pytest.raises(error):
        run.result(20)
    (folder / "repaired").touch()
    return run


def test_a_handled_failure_stays(engine: Engine, tmp_path: Path) -> None:
    """The body went on without it, so it goes on without it; the step that it failed by runs again."""
    run = fail(engine, flows.handling, tmp_path)
    run.retry()
    assert run.result(20) == ["no handled", "last"]
    assert calls(tmp_path) == {"handled": 1, "last": 2}
    assert engine.effects(run) == ["handled was bad"]
    assert engine.db.sql("select * from onceflow.verify_ledger(%s)", run.run) == []


def test_a_body_s_own_retry_keeps_it_too(engine: Engine, tmp_path: Path) -> None:
    """The next try of a body runs again what the last one failed by."""
    run = engine.client.start(flows.handling_twice, str(tmp_path))
    assert run.result(20) == ["no handled", "last"]
    assert calls(tmp_path) == {"handled": 1, "last": 2}


@pytest.mark.parametrize("how", ["from it", "in its handler"])
def test_what_a_failure_was_raised_from_runs_again(engine: Engine, tmp_path: Path, how: str) -> None:
    """Raised anew, `from` the step's error or in its handler: the step's failure still is what the run failed by."""
    run = fail(engine, flows.handling_from, tmp_path, flows.TooMany, how)
    run.retry()
    assert run.result(20) == ["no handled", "last"]
    assert calls(tmp_path) == {"handled": 1, "last": 2}


def test_branches_that_failed_side_by_side_run_again_together(engine: Engine, tmp_path: Path) -> None:
    """One retry repairs all branches of a gather; those whose errors the body was given stay."""
    run = fail(engine, flows.handling_in_gather, tmp_path)
    run.retry()
    assert run.result(20) == ["a", "b", "c", "d", "e"]
    assert calls(tmp_path) == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert engine.effects(run) == ["e"]


def test_a_failure_of_the_body_s_own_runs_all_again(engine: Engine, tmp_path: Path) -> None:
    """Where nothing tells what it came from, every failure is tried again."""
    run = fail(engine, flows.counting_failures, tmp_path, flows.TooMany)
    run.retry()
    assert run.result(20) == ["one", "two"]
    assert calls(tmp_path) == {"one": 2, "two": 2}


def test_a_child_whose_failure_was_handled_stays_failed(engine: Engine, tmp_path: Path) -> None:
    """Also one that had gone on as another run. The child that the parent failed by runs again, and so does one it never asked."""
    run = fail(engine, flows.handling_children, tmp_path)
    engine.db.wait_for("select count(*) = 5 from onceflow.run where parent_run = %s and state is not null", run.run)
    run.retry()
    assert run.result(20) == ["no bad", "no gone", "last", "unasked"]
    states = engine.db.sql("select conf ->> 'name', state from onceflow.run where parent_run = %s and continued_by is null order by 1", run.run)
    assert states == [("bad", "failed"), ("gone", "failed"), ("last", "success"), ("unasked", "success")]
    assert calls(tmp_path) == {"bad": 1, "gone": 1, "last": 2, "unasked": 2}


def test_a_started_task_whose_failure_was_handled_stays_failed(engine: Engine, tmp_path: Path) -> None:
    """The same for tasks of the run."""
    run = fail(engine, flows.handling_tasks, tmp_path)
    run.retry()
    assert run.result(20) == ["no bad", "last"]
    assert calls(tmp_path) == {"bad": 1, "last": 2}
    assert engine.db.sql("select * from onceflow.verify_ledger(%s)", run.run) == []


def test_a_fork_keeps_it_too(engine: Engine, tmp_path: Path) -> None:
    """A fork takes over what was handled before its step, and runs again what the run failed by."""
    run = fail(engine, flows.handling, tmp_path)
    fork = run.fork("need#1", run_id="fork-of-handling")
    assert fork.result(20) == ["no handled", "last"]
    assert calls(tmp_path) == {"handled": 1, "last": 2}
    assert engine.db.sql("select * from onceflow.verify_ledger()") == []


def test_a_cancelled_run_goes_on_where_it_was(engine: Engine, tmp_path: Path) -> None:
    """A run that was cancelled has failed by nothing: all it has seen stays."""
    folder = tmp_path / "files"
    folder.mkdir()
    gate = engine.make_gate()
    run = engine.client.start(flows.handling_then_holding, str(folder), str(gate))
    engine.wait_for_entry(run, "hold#0", "started")
    run.cancel("later")
    with pytest.raises(RunCancelled):
        run.result(20)
    (folder / "repaired").touch()
    gate.touch()
    run.retry()
    assert run.result(20) == "no handled"
    assert calls(folder) == {"handled": 1}
