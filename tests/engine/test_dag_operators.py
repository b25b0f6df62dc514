"""Operators of dags, run by real workers: what they do and what they record."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_worker import Engine, wait_until
from tests.engine.test_dags import outputs

DAGS = Path(__file__).parent / "flows" / "operator_flows.py"
INPUTS = "select inputs from onceflow.step_ledger where dag_run = %s and task_id = %s and final"


def run_dag(engine: Engine, dag_id: str, run_id: str | None = None, timeout: float = 20, **params: Any) -> dict[str, Any]:
    """Starts a run and waits for its end: its state, and each task's state."""
    handle = engine.client.trigger(dag_id, run_id=run_id, params=params)
    state = engine.db.wait_for("select state from onceflow.run where id = %s", handle.run, timeout=timeout)
    tis = engine.db.sql(
        "select task_id || case when map_index >= 0 then '[' || map_index || ']' else '' end, state from onceflow.task_instance where run = %s order by 1",
        handle.run,
    )
    return {"run": handle.run, "run_id": handle.run_id, "state": state, "tis": dict(tis)}


@pytest.fixture(scope="module")
def http_server() -> Iterator[str]:
    """A server that answers what it was sent, and 404 elsewhere; its address."""

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(200, {"got": got, "key": self.headers["Idempotency-Key"]})

        def do_GET(self) -> None:
            self._answer(404, {"error": "not here"})

        def _answer(self, status: int, value: Any) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def entries(engine: Engine, run: int, task_id: str) -> list[tuple[str, str]]:
    """Kind and state of a task's ledger entries, in their order."""
    return engine.db.sql("select kind, to_state from onceflow.step_ledger where dag_run = %s and task_id = %s order by id", run, task_id)


def test_operators_run_as_they_were_written(engine: Engine) -> None:
    """execute(context) is external, execute(conn, context) transactional; template fields are rendered, filled and recorded."""
    found = run_dag(engine, "operators", who="Ada")
    assert found["state"] == "success", found
    (greeting,) = outputs(engine, found["run"], "greet")
    assert greeting.startswith("Hello, Ada, on 20")
    assert outputs(engine, found["run"], "in_a_text") == [greeting]
    assert engine.db.sql(INPUTS, found["run"], "greet") == [({"name": "Ada"},)] and engine.db.sql(INPUTS, found["run"], "note") == [({"name": greeting},)]
    assert entries(engine, found["run"], "greet") == [("external", "started"), ("external", "success")]
    assert entries(engine, found["run"], "note") == [("transactional", "success")]
    (python,) = outputs(engine, found["run"], "python")
    assert python["sum"] == 3 and python["run_id"] == found["run_id"] and greeting.endswith(python["ds"])


def test_sql_runs_in_the_transaction_that_records_it(engine: Engine) -> None:
    """The row and the ledger entry have one transaction id; rows come back as dicts; several statements are one task."""
    found = run_dag(engine, "operators", who="Bo")
    xids = "select e.xid, l.xid from effect e, onceflow.step_ledger l where e.what = %s and e.note like 'sql %%' and l.dag_run = %s and l.task_id = 'sql' and l.final"
    ((effect, entry),) = engine.db.sql(xids, found["run_id"], found["run"])
    assert effect == entry
    assert outputs(engine, found["run"], "sql")[0][0]["note"].startswith("sql 20") and outputs(engine, found["run"], "scripts") == [[{"x": 2}, {"x": 3}]]


def test_an_operator_class_is_expanded(engine: Engine) -> None:
    """One instance for each item, made of the class; a text of the dag's file is a template, an item that came from a task is data."""
    found = run_dag(engine, "mapped")
    assert found["state"] == "success", found
    date, second = outputs(engine, found["run"], "bash")
    assert date.startswith("20") and len(date) == 8 and second == "2"
    assert outputs(engine, found["run"], "total") == [[["{{ DS }}", "B"], [[{"y": 2}], [{"y": 3}]]]]
    assert [text.split(",")[1] for text in outputs(engine, found["run"], "greet")] == [" ['{{ ds }}'", " ['{{ ds }}'"]
    assert engine.db.sql("select distinct operator from onceflow.task_instance where run = %s and task_id = 'note'", found["run"]) == [("Note",)]


def test_a_command_is_run_by_bash(engine: Engine) -> None:
    """Its last line is the output; 99 skips, another code fails; it does not see the engine's own settings."""
    found = run_dag(engine, "commands", run_id="the run")
    assert found["tis"] == {"echo": "success", "secret": "success", "skip": "skipped", "after_skip": "skipped", "fail": "failed"}
    assert outputs(engine, found["run"], "echo")[0].startswith("the run 20") and outputs(engine, found["run"], "secret") == ["dsn="]
    reason = engine.db.sql("select error from onceflow.task_instance where run = %s and task_id = 'fail'", found["run"])[0][0]
    assert reason == "the command of task fail ended with code 3; its last line: 'oh no'"


def test_a_command_past_its_limit_is_ended_with_its_children(engine: Engine, tmp_path: Path) -> None:
    """The whole process group goes, one that ignores SIGTERM too; the task fails by its time limit."""
    found = run_dag(engine, "slow_command", file=str(tmp_path / "pids"))
    assert found["tis"] == {"slow": "failed"}
    assert "exceeded its execution_timeout" in engine.db.sql("select error from onceflow.task_instance where run = %s", found["run"])[0][0]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_run_starts_another(engine: Engine) -> None:
    """In the transaction that completes the task: the other run was made by the very transaction of the ledger entry."""
    found = run_dag(engine, "starts_another", run_id="first")
    other = engine.client.find("by first", "operators")
    (output,) = outputs(engine, found["run"], "start")
    assert (output["run"], output["run_id"], output["dag_id"]) == (other.run, "by first", "operators")
    made = "select r.xmin::text::bigint = (l.xid::text::bigint %% 4294967296) from onceflow.run_key r, onceflow.step_ledger l where r.run = %s and l.dag_run = %s and l.final"
    assert engine.db.sql(made, other.run, found["run"]) == [(True,)]
    assert engine.db.wait_for("select state from onceflow.run where id = %s", other.run) == "success"
    assert outputs(engine, other.run, "greet")[0].startswith("Hello, first, on")
    assert engine.db.sql("select convert_from(value, 'UTF8') from onceflow.xcom where dag_id = 'starts_another' and key = 'trigger_run_id'") == [
        ('"by first"',)
    ]


def test_a_request_is_sent(engine: Engine, http_server: str) -> None:
    """JSON there and back, with an idempotency key; an error status fails the task and says what the server said."""
    found = run_dag(engine, "requests", url=http_server)
    assert found["tis"] == {"post": "success", "missing": "failed"}
    (answer,) = outputs(engine, found["run"], "post")
    assert answer == {"got": {"run": found["run_id"]}, "key": f"requests/{found['run_id']}/post"}
    assert "answered 404" in engine.db.sql("select error from onceflow.task_instance where run = %s and task_id = 'missing'", found["run"])[0][0]
