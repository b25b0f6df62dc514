"""What all other tests stand on: clones, waiting, servers and processes that end, skips that count under CI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from tests.database import Template, TestDatabase
from tests.processes import start_process, write_dags
from tests.servers import FOLDER_PREFIX, LOCK_NAME, Server, remove_abandoned

ROOT = Path(__file__).parents[2]


@pytest.mark.server("18", "15", "pgbouncer")
def test_every_login_reaches_the_clone(db: TestDatabase, server_name: str) -> None:
    """Each DSN leads to the test's own database under its own login role, on every server."""
    expected = {"postgres": db.dsn, "worker": db.worker_dsn, "onceflow_step": db.step_dsn, "app": db.app_dsn}
    expected["auditor"] = db.auditor_dsn
    assert db.server.name == server_name
    for user, dsn in expected.items():
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select current_user, current_database()").fetchone() == (user, db.name)


@pytest.mark.server("18", "15")
def test_a_clone_has_the_templates_default_privileges(db: TestDatabase) -> None:
    """A table that an application makes in a clone can be written by steps and read by auditors, no grant needed."""
    with db.connect("app") as app:
        app.execute("create table payment (id bigserial primary key, amount numeric)")
    with db.connect("step") as step:
        step.execute("insert into payment (amount) values (1)")
    with db.connect("auditor") as auditor:
        assert auditor.execute("select amount from payment").fetchall() == [(1,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            auditor.execute("delete from payment")


def test_a_function_the_owner_makes_in_a_clone_is_not_for_everybody(db: TestDatabase) -> None:
    """The owner's global default privileges are cloned too: EXECUTE is not PUBLIC's."""
    with db.connect() as owner:
        owner.execute("set role onceflow_owner")
        owner.execute("create function onceflow.secret() returns int language sql return 1")
    with db.connect("app") as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("select onceflow.secret()")


def test_an_unmarked_test_runs_on_the_sessions_server(server: Server) -> None:
    """The marker of a test before does not linger."""
    assert server.name == os.environ.get("ONCEFLOW_TEST_SERVER", "18")


def test_clones_do_not_see_each_other_and_go_while_in_use(server: Server, template: Template) -> None:
    """Two clones are two databases, and dropping one does not wait for its clients."""
    one, other = template.clone(server), template.clone(server)
    one.sql("create table mine (n int)")
    assert other.sql("select to_regclass('mine')") == [(None,)]
    with one.connect() as still_connected:
        template.drop(one)
        with pytest.raises(psycopg.OperationalError):
            still_connected.execute("select 1")
    template.drop(other)


def test_wait_for_returns_the_value_and_fails_with_what_the_engine_holds(db: TestDatabase) -> None:
    """A failed wait names the query, its last value and the rows of the engine's live tables."""
    assert db.wait_for("select %s::int", 7) == 7
    with pytest.raises(AssertionError, match=r"not true within 0\.1 s(?s:.*)last value: 0(?s:.*)lease: 0 rows"):
        db.wait_for("select 0", timeout=0.1)
    with pytest.raises(AssertionError, match="it exited"):
        db.wait_for("select 0", unless=lambda: "it exited")


def test_a_process_is_frozen_resumed_and_killed(tmp_path: Path) -> None:
    """stop, resume, kill and terminate do what their signals do, and the log holds what the process wrote."""
    source = "import time\nprint('started', flush=True)\nwhile True: time.sleep(0.01)"
    for end, code in (("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM)):
        process = start_process([sys.executable, "-c", source], env=os.environ, log=tmp_path / f"{end}.log")
        wait_until(lambda process=process: "started" in process.log_text())
        process.stop()
        wait_until(lambda process=process: state_of(process.pid) == "T")
        process.resume()
        wait_until(lambda process=process: state_of(process.pid) != "T")
        getattr(process, end)()
        assert process.process.returncode == code


def test_write_dags_dedents(tmp_path: Path) -> None:
    """A test's indented source becomes a module that can be imported."""
    folder = write_dags(tmp_path, "shop", "\n        x = 1\n        if x:\n            y = 2\n        ")
    assert (folder / "shop.py").read_text() == "x = 1\nif x:\n    y = 2\n"


@pytest.mark.parametrize("name", ["18", "15", "pgbouncer"])
def test_a_killed_session_leaves_nothing(name: str) -> None:
    """SIGKILL on a test session: its servers are gone and its folders are removed, at the latest by the next one."""
    code = f"from tests.servers import *; s = start_server('{name}'); print(s.dsn('postgres', 'postgres'), flush=True)"
    command = [sys.executable, "-c", code + "; input()"]
    session = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert session.stdout is not None
    dsn = session.stdout.readline().decode().strip()
    if not dsn:
        pytest.skip(f"server {name} is not on this machine")
    folder = psycopg.conninfo.conninfo_to_dict(dsn)["host"]
    session.kill()
    session.communicate(timeout=10)
    remove_abandoned()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    assert not Path(str(folder)).exists()


def test_another_users_session_is_let_be() -> None:
    """Sessions of several users share /tmp: a folder whose lock may not be opened is passed over, and stays."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))
    try:
        (folder / LOCK_NAME).touch(mode=0)
        folder.chmod(0o711)
        if (child := os.fork()) == 0:
            if os.geteuid() == 0:
                os.setuid(65534)  # root may open everything
            try:
                remove_abandoned()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (folder / LOCK_NAME).exists()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(("variable", "outcome"), [("", "skipped"), ("ONCEFLOW_CI", "failed"), ("CI", "failed")])
def test_under_ci_a_skip_is_a_failure(tmp_path: Path, variable: str, outcome: str) -> None:
    """A skipped test and a module that skips itself pass on a laptop and fail under CI, with their reasons."""
    (tmp_path / "test_one.py").write_text("import pytest\ndef test_it(): pytest.skip('no redis here')\n")
    (tmp_path / "test_two.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_three.py").write_text("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "ONCEFLOW_CI")}
    options = ["-rs", "--continue-on-collection-errors", "-p", "tests.conftest", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment | {variable or "X": "1"}, capture_output=True, text=True)
    assert (done.returncode == 0) == (outcome == "skipped"), done.stdout
    assert "no redis here" in done.stdout
    assert "no_such_module" in done.stdout
    assert "1 xfailed" in done.stdout


def state_of(pid: int) -> str:
    """The letter ps shows: T is stopped."""
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()[:1]


def wait_until(condition: object, timeout: float = 10) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
