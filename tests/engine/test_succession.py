"""Edited files: a worker serves them without a restart, and survives what is broken in them."""

from __future__ import annotations

import json
import textwrap
import time
from pathlib import Path

import pytest

from tests.database import TestDatabase
from tests.engine.test_cli_processes import children_of, wait_until
from tests.processes import WorkerProcess, Workers, write_dags

FLOW = """
import pathlib, time
from onceflow import dag, step, task, workflow

@step
def answer() -> int:
    return {number}

@workflow(code_version="any")
def asks() -> int:
    return answer()

@step
def hold(gate: str) -> int:
    while not pathlib.Path(gate).exists():
        time.sleep(0.02)
    return {number}
"""


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    return write_dags(tmp_path, "edited", FLOW.format(number=1))


def edit(dags: Path, source: str) -> None:
    (dags / ".draft").write_text(textwrap.dedent(source))
    (dags / ".draft").rename(dags / "edited.py")


def start(db: TestDatabase, name: str, *args: str) -> int:
    return int(db.sql("select (onceflow.start_run(%s, to_jsonb(%s::text[])) ->> 'run')::bigint", name, list(args))[0][0])


def output(db: TestDatabase, run: int) -> object:
    db.wait_for("select state is not null from onceflow.run where id = %s", run)
    return db.sql("select output from onceflow.dag_run where id = %s", run)[0][0]


def wait_for_successor(db: TestDatabase, worker: WorkerProcess, count: int) -> None:
    db.wait_for("select count(*) = %s from onceflow.worker", count)
    db.wait_for("select count(*) = %s from onceflow.worker where ended_at is not null", count - 1)
    assert worker.running


def test_an_edit_is_live_and_what_runs_goes_on(db: TestDatabase, workers: Workers, dags: Path) -> None:
    """The next run has the new code; the step that was running ends with the old one, long after; a second edit works as well;
    SIGTERM ends all of it."""
    worker = workers.start(dags)
    gate = dags.parent / "gate"
    held = start(db, "hold", str(gate))
    db.wait_for("select count(*) from onceflow.lease")
    assert output(db, start(db, "asks")) == 1
    edit(dags, FLOW.format(number=2))
    wait_for_answer(db, 2)
    gate.touch()
    assert output(db, held) == 1
    wait_for_successor(db, worker, 2)
    edit(dags, FLOW.format(number=3))
    wait_for_successor(db, worker, 3)
    assert output(db, start(db, "asks")) == 3
    wait_until(lambda: len(children_of(worker.pid)) == 1)
    assert worker.terminate() == 0
    assert db.sql("select count(*) from onceflow.worker where ended_at is null") == [(0,)]


def wait_for_answer(db: TestDatabase, wanted: int) -> None:
    """Until a run gives that answer."""
    deadline = time.monotonic() + 20
    while output(db, start(db, "asks")) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_broken_edit_is_survived_and_told(db: TestDatabase, workers: Workers, dags: Path) -> None:
    """The worker goes on with the code before; mended, the new code is served. A file that was broken before keeps no edit of another back."""
    (dags / "always.py").write_text("raise RuntimeError('always')")
    worker = workers.start(dags)
    edit(dags, "from onceflow import step\nraise RuntimeError('half an edit')")
    deadline = time.monotonic() + 20
    while "the edit is not served" not in worker.log_text():
        assert time.monotonic() < deadline, worker.log_text()
        time.sleep(0.02)
    assert "half an edit" in worker.log_text() and worker.running
    assert output(db, start(db, "asks")) == 1
    edit(dags, FLOW.format(number=5))
    wait_for_successor(db, worker, 2)
    assert output(db, start(db, "asks")) == 5


def test_a_task_of_newer_code_is_given_back(db: TestDatabase, workers: Workers, dags: Path) -> None:
    """A new plan may reach a worker before its files do: it does not fail the task that it lacks, its successor runs it."""
    dag = "\n@dag\ndef grows():\n    {tasks}\n\n@task\ndef one() -> int: return 1\n@task\ndef two() -> int: return 2\n"
    edit(dags, FLOW.format(number=1) + dag.format(tasks="one()"))
    workers.start(dags)
    plan = db.sql("select v.plan from onceflow.dag d join onceflow.dag_version v on v.id = d.version where d.dag_id = 'grows'")[0][0]
    plan["tasks"][0]["task_id"] = "two"

    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": "grows", "kind": "dag", "code_version": "new", "plan": plan}]))
    edit(dags, FLOW.format(number=1) + dag.format(tasks="two()"))
    run = start(db, "grows")
    db.wait_for("select state is not null from onceflow.run where id = %s", run)
    assert db.sql("select task_id, state, try_number from onceflow.task_instance where run = %s", run) == [("two", "success", 1)]
