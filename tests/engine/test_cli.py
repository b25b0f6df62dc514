"""The command line against a real database: what it answers, how it fails, and that nothing of it stays behind."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from onceflow.cli.app import app
from tests.database import TestDatabase
from tests.processes import Workers, write_dags

FLOWS = """
    from decimal import Decimal
    import psycopg
    from onceflow import recv, step, workflow

    @step
    def pay(conn: psycopg.Connection, account: int, amount: Decimal) -> Decimal:
        conn.execute("insert into payment values (%s, %s)", (account, amount))
        return amount

    @workflow
    def transfer(account: int, amount: Decimal) -> str:
        '''Moves money.'''
        return f"paid {pay(account, amount)}"

    @workflow
    def fails(name: str) -> None:
        raise RuntimeError(f"{name} cannot be done")

    @workflow
    def waits() -> str:
        return recv("go")
"""
Cli = Callable[..., Result]


@pytest.fixture
def cli(db: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs `onceflow …` in an empty folder, on the test's database as an application's login."""
    for name in [name for name in os.environ if name.startswith("ONCEFLOW_")]:
        monkeypatch.delenv(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    def run(*args: object, dsn: str | None = db.app_dsn, code: int | None = 0, typed: str | None = None) -> Result:
        handlers = logging.getLogger().handlers[:]
        result = CliRunner().invoke(app, [str(arg) for arg in args], typed, env={"ONCEFLOW_DSN": dsn})
        logging.getLogger().handlers[:] = handlers  # a command may log to a stderr that is closed now
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert code is None or result.exit_code == code, (result.exit_code, result.output)
        assert "Traceback" not in result.stderr
        return result

    return run


@pytest.fixture
def worker(db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """One worker with FLOWS, and the table that they write."""
    with db.connect("app") as conn:
        conn.execute("create table payment (account int, amount numeric)")
    workers.start(write_dags(tmp_path, "flows", FLOWS), env={"ONCEFLOW_SUSPEND_AFTER_S": "0.05"})


def answer(result: Result) -> Any:
    """The one JSON document on stdout."""
    return json.loads(result.stdout)


def register(db: TestDatabase, *names: str) -> None:
    """Make workflows known without any worker."""
    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": name, "code_version": "1"} for name in names]))


@pytest.mark.usefixtures("worker")
def test_start_waits_for_the_result_and_tells_success_from_failure(cli: Cli) -> None:
    """With --wait the result is on stdout and the code is 0; a failed run is one line on stderr and code 1, in JSON too."""
    assert answer(cli("runs", "start", "transfer", "--args", '[1, "10.00"]', "--wait")) == "paid 10.00"
    assert answer(cli("runs", "start", "transfer", "--args", '{"account": 1, "amount": "5"}', "--wait", "--json"))["output"] == "paid 5"
    failed = cli("runs", "start", "fails", "--params", '{"name": "it"}', "--wait", "--run-id", "f1", code=1)
    assert failed.stdout == "" and failed.stderr.startswith("RunFailed: run fails/f1 is failed: RuntimeError: it cannot be done.")
    assert len(failed.stderr.splitlines()) == 1
    assert re.search(r'\nfails failed: RuntimeError: it cannot be done\n  File ".*", line \d+, in fails\n', cli("runs", "show", "f1").stdout)
    shown = answer(cli("runs", "start", "fails", "--params", '{"name": "it"}', "--wait", "--run-id", "f1", "--json", code=1))
    assert (shown["state"], shown["created"], shown["error"]["message"]) == ("failed", False, "it cannot be done")
    assert cli("runs", "start", "waits", "--wait", "--timeout", "0.2", code=2).stderr.startswith("WaitTimeout: run ")


def test_a_run_id_is_an_idempotency_key(cli: Cli, db: TestDatabase) -> None:
    """The same id and arguments give the same run; other arguments are the user's mistake."""
    register(db, "pay")
    first = answer(cli("runs", "start", "pay", "--args", "[1]", "--run-id", "p/1", "--queue", "fast", "--json"))
    again = answer(cli("runs", "start", "pay", "--args", "[1]", "--run-id", "p/1", "--json"))
    assert (first["created"], again["created"], again["run"]) == (True, False, first["run"])
    assert cli("runs", "start", "pay", "--args", "[2]", "--run-id", "p/1", code=2).stderr.startswith("RunConflict: ")
    assert answer(cli("runs", "show", "pay/p/1", "--json"))["queue"] == "fast"


def test_a_run_is_found_by_id_by_dag_and_id_and_by_number(cli: Cli, db: TestDatabase) -> None:
    """RUN may be each of the three; an id that several dags have is an error that lists them, and so is none."""
    register(db, "a", "b")
    number = answer(cli("runs", "start", "a", "--run-id", "same", "--json"))["run"]
    assert cli("runs", "show", "same").stdout.startswith("run           a/same\n")
    cli("runs", "start", "b", "--run-id", "same")
    assert "a/same, b/same. Name one as DAG/RUN_ID" in cli("runs", "show", "same", code=2).stderr
    assert [answer(cli("runs", "show", name, "--json"))["dag_id"] for name in ("a/same", "b/same", number)] == ["a", "b", "a"]
    assert "there is no run 'gone'" in cli("ledger", "show", "gone", code=2).stderr


def test_listing_filters_by_state_and_dag(cli: Cli, db: TestDatabase) -> None:
    """runs list gives the newest first, of one state or dag, at most --limit; in a pipe each run is one line."""
    register(db, "a", "b")
    for dag, run_id in (("a", "1"), ("a", "2"), ("b", "3")):
        cli("runs", "start", dag, "--run-id", run_id)
    cli("runs", "cancel", "2", "--reason", "not needed")
    listed = {
        args: [run["run_id"] for run in answer(cli("runs", "list", *args, "--json"))]
        for args in ((), ("--dag", "a"), ("--state", "queued"), ("--state", "cancelled"), ("--state", "failed"), ("--limit", "1"))
    }
    assert list(listed.values()) == [["3", "2", "1"], ["2", "1"], ["3", "1"], ["2"], [], ["3"]]
    assert [line.split()[:3] for line in cli("runs", "list").stdout.splitlines()[1:]] == [["b", "3", "queued"], ["a", "2", "cancelled"], ["a", "1", "queued"]]


@pytest.mark.usefixtures("worker")
def test_steering_names_the_person_in_the_ledger(cli: Cli, db: TestDatabase) -> None:
    """cancel, retry and fork do what they say, refuse what cannot be, and the ledger keeps who did it."""
    cli("runs", "start", "transfer", "--args", "[7, 1]", "--run-id", "t1", "--wait")
    forked = answer(cli("runs", "fork", "t1", "--from-step", "pay#0", "--run-id", "t2", "--json"))
    assert (forked["dag_id"], forked["run_id"]) == ("transfer", "t2")
    db.wait_for("select count(*) = 2 from payment where account = 7")
    assert "only a failed, cancelled or stopped run" in cli("runs", "retry", "t1", code=2).stderr
    assert "has no step nope" in cli("runs", "fork", "t1", "--from-step", "nope", code=2).stderr
    cli("runs", "start", "waits", "--run-id", "w1")
    db.wait_for("select count(*) from onceflow.wait")
    waits = answer(cli("runs", "show", "w1", "--json"))["waits"]
    assert [(wait["kind"], wait["target"]) for wait in waits] == [("message", "go")]
    cli("runs", "cancel", "w1", "--reason", "enough")
    assert cli("runs", "retry", "w1").stdout == "waits/w1  queued\n"
    acts = [entry for entry in answer(cli("ledger", "show", "w1", "--json")) if entry["kind"] == "human"]
    assert [act["to_state"] for act in acts] == ["cancelled", "retried"]
    assert all("@" in act["actor"] for act in acts)


@pytest.mark.usefixtures("worker")
def test_the_ledger_is_shown_exported_and_verified(cli: Cli, db: TestDatabase, tmp_path: Path) -> None:
    """show and export have every entry; verify answers 0 for a clean ledger and 1 once an owner changed it."""
    cli("runs", "start", "transfer", "--args", "[1, 2]", "--run-id", "t1", "--wait")
    entries = answer(cli("ledger", "show", "t1", "--json"))
    assert [(entry["step_key"], entry["to_state"]) for entry in entries] == [("pay#0", "success"), ("transfer", "success")]
    assert cli("ledger", "verify", dsn=db.auditor_dsn).stdout.startswith("the ledger is clean")
    file = tmp_path / "ledger.jsonl"
    cli("ledger", "export", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["record"] == "export"
    assert [line["hash"] for line in lines if line["record"] == "entry" and line["run_id"] == "t1"] == [entry["hash"] for entry in entries]
    assert "exists already" in cli("ledger", "export", file, code=2).stderr
    assert cli("ledger", "export", "-").stdout.splitlines()[1:3] == file.read_text().splitlines()[1:3]
    db.sql("update onceflow.step_ledger set output = '3' where step_key = 'pay#0'")
    assert answer(cli("ledger", "verify", "--json", dsn=db.auditor_dsn, code=1))[0]["step_key"] == "pay#0"
    assert "pay#0" in cli("ledger", "verify", dsn=db.auditor_dsn, code=1).stdout


@pytest.mark.usefixtures("worker")
def test_who_wrote_names_the_entry_and_cannot_write(cli: Cli, db: TestDatabase) -> None:
    """A row is traced to the step that wrote it; a wrong name or condition is the user's mistake, and nothing can be changed through it."""
    cli("runs", "start", "transfer", "--args", "[1, 2]", "--run-id", "t1", "--wait")
    rows = answer(cli("ledger", "who-wrote", "payment", "--where", "account = 1 -- %", "--json"))
    assert len(rows) == 1 and rows[0]["run_id"] == "t1"
    for table, where in (("nothing", "true"), ("payment", "acount = 1"), ("payment", "true) limit 0; delete from payment; select (1")):
        assert cli("ledger", "who-wrote", table, "--where", where, code=2).stderr.startswith("InvalidArgument: who-wrote ")
    assert db.sql("select count(*) from payment") == [(1,)]


def test_workers_and_dags_are_listed(cli: Cli, db: TestDatabase, workers: Workers, worker: None) -> None:
    """A worker is alive, then silent once its lease went by without a heartbeat, and ended when it said so; dags tell how many workers have them."""
    assert [one["state"] for one in answer(cli("workers", "list", "--json"))] == ["alive"]
    dags = {dag["dag_id"]: dag for dag in answer(cli("dags", "list", "--json"))}
    assert (dags["transfer"]["workers"], dags["transfer"]["description"], dags["pay"]["kind"]) == (1, "Moves money.", "step")
    workers.started[0].kill()
    db.sql("update onceflow.worker set heartbeat_at = heartbeat_at - interval '1 hour'")
    assert " silent " in cli("workers", "list").stdout
    db.sql("update onceflow.worker set ended_at = now()")
    assert "no worker is there" in cli("workers", "list").stderr
    assert [one["state"] for one in answer(cli("workers", "list", "--all", "--json"))] == ["ended"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["runs", "start", "nope"], "NotFound: there is no workflow or dag named nope"),
        (["runs", "start", "pay", "--args", "[1"], "is not JSON"),
        (["runs", "start", "pay", "--params", "[1]"], "must be a JSON object"),
        (["runs", "start", "pay", "--args", "[1]", "--params", "{}"], "not both"),
        (["runs", "start", "pay", "--args", "[NaN]"], "EncodingError: "),
        (["runs", "list", "--state", "pending"], "is not a state of runs"),
        (["db", "clean", "--table", "step_ledger"], "never cleaned"),
        (["ledger", "export", "no/such/folder/x"], "cannot be written"),
        (["worker"], "needs the folder of your workflows"),
        (["worker", "--dags", ".", "--embedded"], "Both --embedded and a DSN"),
        (["db", "migrate", "--embedded"], "Both --embedded and a DSN"),
        (["nope"], "No such command"),
    ],
)
def test_a_mistake_is_one_message_and_code_2(cli: Cli, db: TestDatabase, args: list[str], said: str) -> None:
    """What the user got wrong is told without a traceback, with exit code 2."""
    register(db, "pay")
    assert said in " ".join(cli(*args, code=2).stderr.replace("│", " ").split())


@pytest.mark.parametrize("args", [["runs", "list"], ["runs", "start", "a"], ["doctor"], ["db", "migrate"], ["db", "archive"], ["worker", "--dags", "."]])
def test_an_unreachable_database_is_code_3_without_its_password(cli: Cli, args: list[str]) -> None:
    """Nobody listens there: one line, exit code 3, the password masked."""
    failed = cli(*args, dsn="postgresql://me:hidden@127.0.0.1:9/none", code=3)
    assert failed.stderr.startswith("NoDatabase: ") and "me:***@" in failed.stderr and "hidden" not in failed.stderr


@pytest.mark.parametrize(
    "args", [["runs", "list"], ["ledger", "verify"], ["doctor"], ["db", "migrate"], ["worker", "--dags", "."], ["scheduler", "--dags", "."]]
)
def test_without_any_database_it_says_what_to_set(cli: Cli, args: list[str]) -> None:
    """No DSN and no bundled server in this folder: exit code 2, and nothing is made."""
    assert "ONCEFLOW_DSN" in cli(*args, dsn=None, code=2).stderr
    assert list(Path().iterdir()) == []


def test_a_login_without_rights_is_told_the_role(cli: Cli, db: TestDatabase) -> None:
    """An auditor may read and may not steer: the message names the role that may."""
    register(db, "a")
    cli("runs", "start", "a", "--run-id", "1")
    cli("runs", "show", "1", dsn=db.auditor_dsn)
    assert "role onceflow_operator" in cli("runs", "cancel", "1", dsn=db.auditor_dsn, code=2).stderr


def test_a_database_without_schema_is_told_apart(cli: Cli, db: TestDatabase) -> None:
    """check and doctor answer no, reads and workers refuse, and migrate mends it."""
    db.sql("drop schema onceflow cascade")
    assert "onceflow db migrate" in cli("db", "check", dsn=db.dsn, code=1).stdout
    assert answer(cli("doctor", "--json", dsn=db.dsn, code=1))["cause"]["code"] == "schema_skew"
    for args in (["runs", "list"], ["runs", "start", "a"], ["worker", "--dags", "."]):
        assert cli(*args, dsn=db.dsn, code=2).stderr.startswith("VersionSkew: ")
    assert "applied 0001_core" in cli("db", "migrate", dsn=db.dsn).stdout
    assert answer(cli("db", "migrate", "--json", dsn=db.dsn))["migrations"] == []
    assert answer(cli("db", "check", "--json", dsn=db.dsn))["ok"] is True


def test_help_and_version_load_no_engine() -> None:
    """The root's help works without the worker, the bundled server or the tables of rich: it is there at once."""
    code = (
        "import sys; from onceflow.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print([name for name in ('onceflow.engine.worker', 'onceflow.db.embedded', 'uvloop', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("onceflow ")
