"""The commands that run on: worker, scheduler, dev. They start, log, obey signals and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow import Client
from onceflow.db.embedded import find_server, stop_server
from tests.database import TestDatabase
from tests.processes import WorkerProcess, start_process, worker_environment, write_dags

FLOWS = """
    import psycopg
    from onceflow import step, workflow

    @step
    def look(conn: psycopg.Connection) -> list[str]:
        return list(conn.execute("select current_user::text, session_user::text").fetchone())

    @workflow
    def whoami() -> list[str]:
        return look()
"""


def wait_until(condition: Callable[[], Any], what: Callable[[], str] = lambda: "", timeout: float = 60) -> None:
    """Poll until it is true; fails with what there is to see."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout} s\n{what()}"
        time.sleep(0.02)


@pytest.fixture
def start(db: TestDatabase, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts `onceflow …` on the test's database, in tmp_path; ended with the test."""
    started: list[WorkerProcess] = []

    def run(*args: str, env: dict[str, str] | None = None) -> WorkerProcess:
        log = tmp_path / f"process-{len(started)}.log"
        one = start_process([sys.executable, "-m", "onceflow", *args], env={**worker_environment(db), **(env or {})}, log=log)
        started.append(one)
        return one

    yield run
    for one in started:
        one.end()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with flows and no database, that the bundled server's account may enter; its server is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="of-"))
    folder.chmod(0o755)
    write_dags(folder, "flows", FLOWS)
    for name in [name for name in os.environ if name.startswith("ONCEFLOW_")]:
        monkeypatch.delenv(name)
    yield folder
    stop_server(folder / ".onceflow", "immediate")
    shutil.rmtree(folder)


def onceflow(home: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run one command in the folder."""
    done = subprocess.run([sys.executable, "-m", "onceflow", *args], cwd=home, capture_output=True, text=True, timeout=90)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def is_up(dev: WorkerProcess) -> bool:
    """Do both processes of `onceflow dev` say that they are ready?"""
    return all(f"{name} ready" in dev.log_text() for name in ("worker", "scheduler", "triggerer"))


def children_of(pid: int) -> list[int]:
    """The living child processes."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    """Has the process ended (a zombie has)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_worker_serves_its_queues_logs_and_drains(db: TestDatabase, start: Callable[..., WorkerProcess], tmp_path: Path) -> None:
    """--queues and --concurrency count; with --json each line of the log is an object; SIGTERM drains with exit code 0; no password is logged."""
    dags = write_dags(tmp_path, "flows", FLOWS)
    with_password = db.worker_dsn.replace("//worker@", "//worker:hidden@")
    worker = start("worker", "--dags", str(dags), "--queues", "fast,slow", "--concurrency", "2", "--json", env={"ONCEFLOW_DSN": with_password})
    worker.wait_ready(db)
    assert db.sql("select queues from onceflow.worker") == [(["fast", "slow"],)]
    db.sql("select onceflow.start_run('whoami', run_id => 'r1', queue => 'slow')")
    db.wait_for("select output = '[\"onceflow_step\", \"onceflow_step\"]' from onceflow.dag_run where run_id = 'r1'")
    assert worker.terminate() == 0
    lines = [json.loads(line) for line in worker.log_text().splitlines()]
    assert [line["event"] for line in lines] == ["worker ready", "task ended", "worker draining", "worker ended"]
    assert (lines[1]["task"], lines[1]["state"]) == ("whoami/r1/whoami", "success")
    assert "hidden" not in worker.log_text()
    assert db.sql("select ended_at is not null from onceflow.worker") == [(True,)]


def test_a_worker_refuses_another_schema_before_it_starts(db: TestDatabase, start: Callable[..., WorkerProcess], tmp_path: Path) -> None:
    """With a schema that lacks a function, no worker appears: one line and exit code 2."""
    db.sql("delete from onceflow.schema_function where name = 'claim_tasks'")
    worker = start("worker", "--dags", str(write_dags(tmp_path, "flows", FLOWS)))
    assert worker.process.wait(timeout=60) == 2
    assert worker.log_text().startswith("VersionSkew: ") and len(worker.log_text().splitlines()) == 1
    assert db.sql("select count(*) from onceflow.worker") == [(0,)]


def test_a_folder_of_nothing_but_a_mistake_ends_the_worker(start: Callable[..., WorkerProcess], tmp_path: Path) -> None:
    """It is one line that names the file, and exit code 2. (A scheduler tells of it as an import error, and goes on.)"""
    process = start("worker", "--dags", str(write_dags(tmp_path, "broken", "import nothing_of_that_name")))
    assert process.process.wait(timeout=60) == 2
    assert "broken.py cannot be imported: ModuleNotFoundError" in process.log_text()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduler_ticks_and_claims_nothing(db: TestDatabase, start: Callable[..., WorkerProcess], tmp_path: Path, signal_number: int) -> None:
    """It makes the dags known, readies what is due, leaves it to workers, and ends with exit code 0 when told."""
    scheduler = start("scheduler", "--dags", str(write_dags(tmp_path, "flows", FLOWS)))
    db.wait_for("select count(*) = 2 from onceflow.dag", unless=lambda: None if scheduler.running else scheduler.log_text())
    db.sql("select onceflow.start_run('whoami', run_id => 'r1', delay_s => 0.5)")
    db.wait_for("select count(*) from onceflow.ready")
    assert db.sql("select count(*) from onceflow.lease") == db.sql("select count(*) from onceflow.worker") == [(0,)]
    scheduler.process.send_signal(signal_number)
    assert scheduler.process.wait(timeout=30) == 0
    assert "scheduler ended" in scheduler.log_text()


def test_dev_runs_everything_and_ctrl_c_stops_everything(home: Path) -> None:
    """Without a DSN it makes, migrates and uses the bundled server, with the roles kept apart; SIGINT ends all processes and the unused server."""
    dev = start_process([sys.executable, "-m", "onceflow", "dev"], env=os.environ, log=home / "dev.log")
    try:
        wait_until(lambda: is_up(dev) or not dev.running, dev.log_text)
        children = children_of(dev.pid)
        assert len(children) == 3, dev.log_text()
        assert json.loads(onceflow(home, "runs", "start", "whoami", "--wait").stdout) == ["onceflow_step", "onceflow_step"]
        assert onceflow(home, "doctor").stdout.startswith("there is no living run")
        assert json.loads(onceflow(home, "ledger", "verify", "--json").stdout) == []
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(timeout=60) == 0
    finally:
        dev.end()
    assert all(is_gone(child) for child in children)
    assert find_server(home / ".onceflow") is None
    assert "Traceback" not in dev.log_text() and dev.log_text().count("ended  ") >= 3
    assert "whoami" in onceflow(home, "runs", "list").stdout, "the database is there again for whoever asks"
    assert find_server(home / ".onceflow") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's SIGKILL")
def test_the_children_of_a_killed_dev_end(db: TestDatabase, home: Path) -> None:
    """SIGKILL for dev leaves no worker behind; on a given database nothing bundled is made."""
    env = {**os.environ, "ONCEFLOW_DSN": db.dsn}
    dev = start_process([sys.executable, "-m", "onceflow", "dev", "dags"], env=env, log=home / "dev.log")
    try:
        wait_until(lambda: is_up(dev) or not dev.running, dev.log_text)
        children = children_of(dev.pid)
    finally:
        dev.kill()
    wait_until(lambda: len(children) == 3 and all(is_gone(child) for child in children), dev.log_text)
    assert not (home / ".onceflow").exists()


def test_dev_ends_when_a_child_ends(db: TestDatabase, home: Path) -> None:
    """If its worker dies, dev stops the rest and says so by its exit code."""
    dev = start_process([sys.executable, "-m", "onceflow", "dev"], env={**os.environ, "ONCEFLOW_DSN": db.dsn}, log=home / "dev.log")
    try:
        pid = db.wait_for("select max(pid) from onceflow.worker", timeout=60)
        children = children_of(dev.pid)
        os.kill(pid, signal.SIGKILL)
        assert dev.process.wait(timeout=60) == 70
    finally:
        dev.end()
    assert pid in children and all(is_gone(child) for child in children)
    assert f"worker (pid {pid}) ended with code -9; stopping the rest" in dev.log_text()


def test_dev_tells_a_mistake_once_and_starts_nothing(home: Path) -> None:
    """A file that cannot be imported: one line, exit code 2, no database made."""
    write_dags(home, "broken", "1 / 0")
    failed = onceflow(home, "dev", code=2)
    assert len(failed.stderr.splitlines()) == 1 and "broken.py cannot be imported: ZeroDivisionError" in failed.stderr
    assert not (home / ".onceflow").exists()


def test_the_schema_and_its_upkeep_on_the_bundled_server(home: Path) -> None:
    """--embedded: migrate makes it where there is none, check, archive and clean do not; once it is there, it need not be named."""
    assert "no bundled server" in onceflow(home, "db", "check", "--embedded", code=2).stderr
    assert not (home / ".onceflow").exists()
    assert "applied 0001_core" in onceflow(home, "db", "migrate", "--embedded").stdout
    assert "fit" in onceflow(home, "db", "check", "--embedded").stdout
    assert "no month is older" in onceflow(home, "db", "archive", "--embedded").stderr
    assert "message: 0 deleted" in onceflow(home, "db", "clean", "--embedded").stdout
    assert "fit" in onceflow(home, "db", "check").stdout
    assert onceflow(home, "db", "shell", "--", "-At", "-c", "set role app; select count(*) from onceflow.dag_run").stdout.split() == ["SET", "0"]
    assert find_server(home / ".onceflow") is None


def test_the_bundled_server_serves_a_worker_and_the_shell(home: Path) -> None:
    """--embedded makes and migrates it; db shell, check and migrate find it; db stop ends it."""
    worker = start_process([sys.executable, "-m", "onceflow", "worker", "--dags", "dags", "--embedded"], env=os.environ, log=home / "worker.log")
    try:
        wait_until(lambda: "worker ready" in worker.log_text() or not worker.running, worker.log_text)
        shown = onceflow(home, "db", "shell", "--", "-At", "-c", "select login from onceflow.worker").stdout
        assert shown.strip() == "worker"
        assert "fit" in onceflow(home, "db", "check").stdout
        assert "up to date" in onceflow(home, "db", "migrate").stdout
        assert worker.terminate() == 0
    finally:
        worker.end()
    assert "did not run" in onceflow(home, "db", "stop").stdout


def test_a_worker_whose_log_nobody_reads_any_more_works_on(db: TestDatabase, tmp_path: Path) -> None:
    """`onceflow worker 2>&1 | head -1`: it runs what comes, and ends in order with code 0."""
    command = [sys.executable, "-m", "onceflow", "worker", "--dags", str(write_dags(tmp_path, "flows", FLOWS))]
    with subprocess.Popen(command, env=worker_environment(db), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        try:
            assert b"worker ready" in worker.stderr.readline()
            worker.stderr.close()
            with Client(db.app_dsn) as client:
                assert client.start("whoami").result(20)
            worker.terminate()
            assert worker.wait(20) == 0
        finally:
            worker.kill()
