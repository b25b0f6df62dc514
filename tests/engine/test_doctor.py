"""`onceflow doctor`: each thing that can stand in the way is named first, with what to do, on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from onceflow.cli import doctor as command
from onceflow.cli.app import app
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, make_plan

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(db: TestDatabase, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs `onceflow doctor` and gives its JSON; checks that the exit code says whether there is a cause."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "LOOK_AGAIN_S", 0.1)

    settings = {"ONCEFLOW_STEP_DSN": db.step_dsn, "ONCEFLOW_DIRECT_DSN": db.direct_dsn}

    def run(*args: str, dsn: str = db.app_dsn, **env: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["doctor", *args, "--json"], env={**settings, "ONCEFLOW_DSN": dsn, **env})
        assert result.stdout, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == (1 if found["cause"] else 0), result.output
        return found

    return run


class Engine:
    """A database as workers would leave it, made by the engine's own functions."""

    def __init__(self, db: TestDatabase) -> None:
        self.db = db

    def add_worker(self, *dags: str, version: str = "v1", queue: str = "default") -> int:
        """A worker that has just sent its heartbeat; an empty list of dags is one with other files."""
        rows = json.dumps([{"dag_id": dag, "code_version": version} for dag in dags or ("other",)])
        with self.db.connect("worker") as conn:
            number = 1000 + len(self.db.sql("select id from onceflow.worker"))
            conn.execute("select onceflow.register_worker(%s, 'host', %s, %s, 10, %s)", (number, number, [queue], rows))
            conn.execute("select onceflow.run_tick()")
        return number

    def start(self, dag: str, **options: Any) -> None:
        """A run of a dag that is known already."""
        named = "".join(f", {name} => %s" for name in options)
        self.db.sql(f"select onceflow.start_run(%s{named})", dag, *options.values())

    def claim(self, worker: int) -> dict[str, Any]:
        """The one task ready, claimed by that worker."""
        lanes = [row[0] for row in self.db.sql("select id from onceflow.lane")]
        (claimed,) = self.db.sql("select onceflow.claim_tasks(%s, 1, %s, 1)", worker, lanes)[0][0]
        return dict(claimed)


@pytest.fixture
def state(db: TestDatabase) -> Engine:
    """The engine on the test's database."""
    return Engine(db)


def test_at_rest_there_is_nothing_to_do(doctor: Doctor, state: Engine) -> None:
    """A living worker and no run: no cause, exit code 0."""
    state.add_worker("pay")
    found = doctor("pay")
    assert (found["cause"], [one["code"] for one in found["findings"]]) == (None, ["nothing_to_do"])


def test_an_unknown_dag_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """A name that nobody registered is told as such."""
    state.add_worker("pay")
    assert doctor("pya")["cause"]["code"] == "dag_unknown"


@pytest.mark.parametrize(
    ("column", "code"), [("is_paused = true", "dag_paused"), ("is_active = false", "dag_inactive"), ("has_import_errors = true", "import_error")]
)
def test_a_dag_that_cannot_run_is_the_cause(doctor: Doctor, state: Engine, column: str, code: str) -> None:
    """Paused, gone, or not importable: that comes first."""
    state.add_worker("pay")
    state.db.sql(f"update onceflow.dag set {column} where dag_id = 'pay'")
    assert doctor("pay")["cause"]["code"] == code


def test_no_worker_is_the_cause_when_there_is_work(doctor: Doctor, state: Engine) -> None:
    """Nobody is alive: the cause, with the last sign of life there was."""
    state.add_worker("pay")
    state.start("pay")
    state.db.sql("update onceflow.worker set heartbeat_at = heartbeat_at - interval '1 minute'")
    cause = doctor()["cause"]
    assert cause["code"] == "no_worker" and "host pid 1000" in cause["what"]
    state.db.sql("update onceflow.worker set ended_at = now()")
    assert doctor("pay")["cause"]["code"] == "no_worker"


def test_a_task_that_no_worker_may_take_names_what_is_missing(doctor: Doctor, state: Engine) -> None:
    """The queue, the dag's file, or the code version: whichever no living worker has."""
    state.add_worker("pay")
    state.start("pay", queue="fast")
    assert doctor()["cause"]["code"] == "no_worker_for_queue"
    state.add_worker(queue="fast")
    assert doctor()["cause"]["code"] == "no_worker_for_dag"
    state.add_worker("pay", queue="fast")
    assert doctor()["cause"]["code"] == "workers_busy"
    state.db.sql("update onceflow.worker set heartbeat_at = heartbeat_at - interval '1 hour' where code_versions ? 'pay' and 'fast' = any(queues)")
    assert doctor()["cause"]["code"] == "worker_silent"


def test_a_version_nobody_has_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """A run pinned to another code version, or stopped for lack of it, names the version."""
    worker = state.add_worker("pay", version="v2")
    state.start("pay", code_version="v1")
    assert (doctor("pay")["cause"]["code"], "v1" in doctor("pay")["cause"]["what"]) == ("needs_code", True)
    state.db.sql("select onceflow.cancel_run(id) from onceflow.run")
    state.start("pay")
    claimed = state.claim(worker)
    error = json.dumps({"$error": "x:Y", "message": "another path"})
    state.db.sql("select onceflow.stop_run(%s, %s, %s, 'v0', %s)", claimed["run"], claimed["ti"], claimed["token"], error)
    cause = doctor("pay")["cause"]
    assert cause["code"] == "needs_code" and "v0" in cause["what"]
    assert "needs_code" in [one["code"] for one in doctor()["findings"]]


def test_a_task_that_moves_is_no_cause(doctor: Doctor, state: Engine) -> None:
    """Busy workers are the cause only if the same task is still the first after a second look."""
    worker = state.add_worker("pay")
    state.start("pay")
    busy = doctor()["cause"]
    assert busy["code"] == "workers_busy" and "hold 0 others" in busy["what"]
    state.claim(worker)
    assert [one["code"] for one in doctor()["findings"]] == ["running"]


def test_waiting_is_explained_and_no_fault(doctor: Doctor, state: Engine) -> None:
    """Everything waits for a time or a message: told as it is, exit code 0; a timer that is overdue is a cause."""
    worker = state.add_worker("pay")
    state.start("pay", delay_s=3600.0)
    found = doctor("pay")["findings"]
    assert [one["code"] for one in found] == ["all_wait"] and "delayed start" in found[0]["what"]
    state.start("pay", run_id="w1")
    claimed = state.claim(worker)
    waits = json.dumps([{"kind": "message", "target_run": claimed["run"], "target": "go"}])
    state.db.sql("select onceflow.defer_task(%s, %s, %s, %s)", claimed["run"], claimed["ti"], claimed["token"], waits)
    assert "1 bodies of pay wait for a message on topic 'go', such as pay/w1" in [one["what"] for one in doctor()["findings"]]
    state.db.sql("update onceflow.timer set due_at = now() - interval '1 minute'")
    assert doctor("pay")["cause"]["code"] == "timer_overdue"


def test_nobody_ticking_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """A heartbeat without ticks: timers and rescues stand still."""
    state.add_worker("pay")
    state.db.sql("update onceflow.engine set last_tick_at = now() - interval '1 minute'")
    assert doctor()["cause"]["code"] == "no_tick"


def test_warnings_do_not_change_the_exit_code(doctor: Doctor, state: Engine) -> None:
    """Mixed roles, seals that lag and a missing partition are told, and are no cause."""
    state.add_worker("pay")
    state.db.sql("update onceflow.worker set login = 'postgres'")
    state.start("pay")
    state.db.sql("select onceflow.cancel_run(id) from onceflow.run")
    state.db.sql("alter table onceflow.step_ledger disable trigger user")
    state.db.sql("update onceflow.step_ledger set at = at - interval '1 hour'")
    state.db.sql("delete from onceflow.ledger_seal")
    month = state.db.sql("select to_char(now() at time zone 'UTC', 'YYYYMM')")[0][0]
    state.db.sql(f"alter table onceflow.run_{month} rename to run_elsewhere")
    codes = [one["code"] for one in doctor(ONCEFLOW_STEP_DSN="")["findings"] if one["severity"] == "warning"]
    assert codes == ["roles_not_separated", "seal_lag", "no_partition", "roles_not_separated"]


def test_seals_are_shown_and_who_holds_them_back(doctor: Doctor, state: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far the seals are behind is always told; where it is much, with the open transaction that they wait for."""
    state.add_worker("pay")
    assert doctor()["seal_lag"]["unsealed"] == 0
    assert "Seals: every ledger entry is sealed." in CliRunner().invoke(app, ["doctor"], env={"ONCEFLOW_DSN": state.db.app_dsn}).stdout
    monkeypatch.setattr("onceflow.cli.diagnosis.SEAL_LATE_S", 0.0)
    with state.db.connect("app") as app_conn, app_conn.transaction():
        app_conn.execute("select onceflow.start_run('pay')")
        state.start("pay")
        state.db.sql("select onceflow.cancel_run(max(id)) from onceflow.run")
        state.db.sql("select onceflow.seal_ledger(0)")
        found = doctor()
        (warning,) = (one for one in found["findings"] if one["code"] == "seal_lag")
        assert found["seal_lag"]["unsealed"] == 1 and warning["what"].startswith("1 ledger entries are not sealed yet")
        assert f"pid {app_conn.info.backend_pid} (login app" in warning["do"]


@pytest.mark.server("pgbouncer")
def test_a_pooler_without_a_direct_dsn_is_a_warning(doctor: Doctor, state: Engine) -> None:
    """Behind pgbouncer LISTEN does not work; with ONCEFLOW_DIRECT_DSN set there is nothing to warn of."""
    state.add_worker("pay")
    assert "pooler_without_direct_dsn" in [one["code"] for one in doctor(ONCEFLOW_DIRECT_DSN="")["findings"]]
    assert "pooler_without_direct_dsn" not in [one["code"] for one in doctor()["findings"]]


def test_people_read_the_cause_first(doctor: Doctor, state: Engine, db: TestDatabase) -> None:
    """Without --json the first line is the cause, the next one the remedy."""
    state.add_worker("other")
    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": "pay"}]))
    state.start("pay")
    shown = CliRunner().invoke(app, ["doctor"], env={"ONCEFLOW_DSN": db.app_dsn, "ONCEFLOW_STEP_DSN": db.step_dsn})
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("The cause: 1 tasks of pay are ready on queue default, but no living worker") and lines[1].startswith("    Put its file")


def test_a_task_that_waits_for_the_run_before_is_explained(doctor: Doctor, state: Engine) -> None:
    """depends_on_past: the first run that holds others up is named."""
    worker = state.add_worker("daily")
    plan = make_plan({"a": Node(options={"depends_on_past": True})})
    rows = json.dumps([{"dag_id": "daily", "kind": "dag", "code_version": "v1", "plan": plan}])
    state.db.sql("select onceflow.register_worker(%s, 'host', 1, '{default}', 10, %s)", worker, rows)
    for day in (1, 2, 3):
        state.start("daily", run_id=f"d{day}", logical_date=f"2026-01-0{day}T00:00Z")
    state.db.sql("select onceflow.run_tick()")
    task = state.claim(worker)
    state.db.sql("select onceflow.fail_task(%s, %s, %s, 'a', 'external', '{}', 'h', '{}', false, 0, 0)", task["run"], task["ti"], task["token"])
    (found,) = [one["what"] for one in doctor("daily")["findings"] if one["code"] == "all_wait"]
    assert found == "2 tasks of daily wait for the run before (depends_on_past), the first of them for daily/d1"


def add_consumer(state: Engine, **plan: Any) -> int:
    """A dag that runs by two datasets, and a worker that has it."""
    plan = {
        **make_plan({"a": Node()}),
        "datasets": [{"uri": "s3://a/"}, {"uri": "s3://b/"}],
        "condition": {"all": [{"uri": "s3://a/"}, {"uri": "s3://b/"}]},
        "max_active_runs": 1,
        **plan,
    }
    worker = state.add_worker("report")
    rows = json.dumps([{"dag_id": "report", "kind": "dag", "code_version": "v1", "is_paused": False, "plan": plan}])
    state.db.sql("select onceflow.register_worker(%s, 'host', 1, '{default}', 10, %s)", worker, rows)
    return worker


def tell(state: Engine, *names: str) -> None:
    for name in names:
        state.db.sql("select onceflow.emit_dataset_event(%s)", f"s3://{name}/")
    state.db.sql("select onceflow.run_tick()")


def test_a_missing_dataset_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """One of two was told of: the other is named."""
    add_consumer(state)
    assert "waits for s3://a/, s3://b/" in next(f for f in doctor("report")["findings"] if f["code"] == "dataset_missing")["what"]
    tell(state, "a")
    cause = doctor("report")["cause"]
    assert cause["code"] == "dataset_missing"
    assert cause["what"] == "1 events of s3://a/ wait for dag report, which still waits for s3://b/"
    assert cause["do"].endswith("onceflow datasets show s3://b/")
    assert doctor()["cause"] is None


def test_a_paused_consumer_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """Its queue stays, and is told with it."""
    add_consumer(state)
    state.db.sql("select onceflow.pause_dag('report', true)")
    tell(state, "a", "b", "b")
    found = doctor("report")
    assert found["cause"]["code"] == "dag_paused"
    assert [f["what"] for f in found["findings"] if f["code"] == "datasets_wait_paused"] == [
        "3 events of s3://a/, s3://b/ wait for dag report, which is paused"
    ]
    state.db.sql("update onceflow.dataset_dag_run_queue set created_at = created_at - interval '2 hours'")
    assert [f["severity"] for f in doctor()["findings"] if f["code"] == "datasets_wait_paused"] == ["warning"]


def test_max_active_runs_is_the_cause(doctor: Doctor, state: Engine) -> None:
    """One run of at most one is there: what gathers waits for its end, and it is said so even while it runs."""
    worker = add_consumer(state)
    tell(state, "a", "b")
    state.claim(worker)
    tell(state, "a", "b")
    cause = doctor("report")["cause"]
    assert cause["code"] == "datasets_wait_full" and "which has 1 of at most 1 runs (max_active_runs)" in cause["what"]


TO_TRIGGER = """
    with t as (delete from onceflow.timer returning run, ti)
    insert into onceflow.trigger (classpath, kwargs, created_date, is_manual, run, ti, pool, pool_slots) select 'm:T', '{}', onceflow.now(), %s, run, ti, 'default_pool', 1 from t"""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("update onceflow.timer set kind = 'retry'", "1 tasks of pay wait for their next try; the next is due at "),
        ("update onceflow.timer set kind = 'wait'", "1 tasks of pay wait for a time "),
        ("update onceflow.timer set kind = 'reschedule'", "1 tasks of pay wait for their next look; the next is due at "),
        (TO_TRIGGER % "false", "1 tasks of pay wait for their triggers (onceflow triggers list), such as pay/d1"),
        (TO_TRIGGER % "true", "1 tasks of pay wait for a person's answer (onceflow approvals list), such as pay/d1"),
    ],
)
def test_whatever_a_task_waits_for_is_told(doctor: Doctor, state: Engine, change: str, told: str) -> None:
    """Every kind of timer has its words; what waits for a trigger or a person is told without a time limit too."""
    state.add_worker("pay")
    state.start("pay", run_id="d1", delay_s=3600.0)
    state.db.sql(change)
    (found,) = doctor("pay")["findings"]
    assert found["code"] == "all_wait" and found["what"].startswith(told)
