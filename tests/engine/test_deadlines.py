"""Deadlines by real workers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.local_worker import FLOWS, Engine, wait_until

DAGS = FLOWS / "deadline_flows.py"


def test_a_missed_deadline_calls_even_when_the_worker_died(idle_engine: Engine, tmp_path: Path) -> None:
    """The worker is killed while the task runs; the next one calls, once, and the run goes on to its end. The deadline that is kept calls nobody."""
    file = tmp_path / "rung"
    worker = idle_engine.start_worker()
    (run,) = idle_engine.db.sql("select (onceflow.start_run('too_slow', %s, 'r1') ->> 'run')::bigint", json.dumps({"file": str(file)}))[0]
    idle_engine.db.wait_for("select count(*) from onceflow.lease where run = %s", run)
    worker.kill()
    idle_engine.start_worker()
    wait_until(lambda: file.exists() and idle_engine.db.sql("select count(*) from onceflow.callback") == [(0,)])
    assert file.read_text() == "r1 deadline running 1.0\n"
    (tmp_path / "rung.go").touch()
    idle_engine.db.wait_for("select count(*) from onceflow.run where id = %s and state = 'success'", run, timeout=60)
    assert idle_engine.db.sql("select count(*) from onceflow.timer") == [(0,)]
    assert file.read_text() == "r1 deadline running 1.0\n"
