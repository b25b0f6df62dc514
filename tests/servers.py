"""The real servers tests run on: bundled Postgres 18, Debian's Postgres 15, pgbouncer 1.18 in transaction mode.

Each is started at most once in a test session, in its own temporary folder, and is gone afterwards: stopped by
pid at exit. If the session itself is killed, the kernel ends its children (Linux), and the next session removes what
is left, as the locks on the folders are free then.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onceflow.db import embedded
from onceflow.db.file_lock import open_locked
from onceflow.errors import NoDatabase
from tests.processes import die_with_parent

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
FOLDER_PREFIX = "onceflow-test-"
LOCK_NAME = "session.lock"
START_TIMEOUT_S = 60.0
NAMES = ("18", "15", "pgbouncer")

PGBOUNCER_SETTINGS = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
pool_mode = transaction
auth_type = trust
auth_file = {folder}/users.txt
auth_user = postgres
auth_query = select rolname, '' from pg_catalog.pg_roles where rolname = $1
max_client_conn = 500
default_pool_size = 20
query_wait_timeout = 30
ignore_startup_parameters = extra_float_digits
admin_users = postgres
"""

_running: dict[str, Server] = {}
_locks: dict[Path, int] = {}


class ServerMissing(Exception):
    """This machine does not have the server a test asks for; the fixture skips with this reason."""


@dataclass
class Server:
    """A running server. `dsn` may lead through pgbouncer; `direct_dsn` never does."""

    name: str
    dsn: Callable[[str, str], str]
    direct_dsn: Callable[[str, str], str]
    stop: Callable[[], None]


@dataclass
class ChildServer:
    """A server program that runs as a child of the tests, in a temporary folder, as a user that is not root."""

    folder: Path
    program: list[str]
    stop_signal: int
    account: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the running program."""
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self, probe_dsn: str) -> None:
        """Start the program and wait until it answers a connection."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **as_account(self.account),
                preexec_fn=die_with_parent(self.stop_signal),
            )
        self._wait_until_answering(probe_dsn)

    def kill(self) -> None:
        """SIGKILL, as a crash would; Postgres' own children see it and leave. `start` recovers."""
        assert self.process is not None, "not started"
        self.process.kill()
        self.process.wait(timeout=10)

    def stop(self) -> None:
        """Stop the program if it runs, and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        remove_folder(self.folder)

    def log_text(self) -> str:
        """What the server wrote up to now."""
        return (self.folder / "server.log").read_text(errors="replace")

    def _wait_until_answering(self, probe_dsn: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(probe_dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                exited = self.process is not None and self.process.poll() is not None
                if exited or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.program[0]} did not start ({error}):\n{self.log_text()}") from None
                time.sleep(0.05)


def server_account() -> int:
    """The user id that servers run as: that of `postgres` when the tests run as root, else our own."""
    return os.geteuid() or pwd.getpwnam("postgres").pw_uid


def as_account(uid: int) -> dict[str, Any]:
    """Popen's options to run as that user."""
    return {} if os.geteuid() == uid else {"user": uid, "group": pwd.getpwuid(uid).pw_gid, "extra_groups": []}


def make_folder(name: str, account: int) -> Path:
    """A temporary folder that the account owns; short, since a socket's path must stay under 108 bytes.

    This process holds its lock until `remove_folder`, so a later session knows whether it is still used.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{name}-", dir="/tmp"))
    os.chown(folder, account, -1)
    folder.chmod(0o755)  # tests connect to the socket in it
    _locks[folder] = open_locked(folder / LOCK_NAME)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder of `make_folder` and let its lock go."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


def remove_abandoned() -> None:
    """Stop the bundled servers and remove all folders of test sessions that were killed."""
    for folder in Path("/tmp").glob(f"{FOLDER_PREFIX}*"):
        try:
            lock = open_locked(folder / LOCK_NAME, wait=False) if (folder / LOCK_NAME).exists() else None
        except (PermissionError, NoDatabase):
            continue  # of another user's session
        if lock is not None:
            embedded.stop_server(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def socket_dsn(folder: Path, port: int, user: str, database: str) -> str:
    """A URL for a unix socket that asyncpg, psycopg and SQLAlchemy all read alike."""
    return f"postgresql://{quote(user)}@/{quote(database)}?host={quote(str(folder), safe='')}&port={port}"


def start_postgres_15() -> tuple[ChildServer, Callable[[str, str], str]]:
    """Start Debian's Postgres 15 in a new folder; returns it with the function that makes its DSNs."""
    if not POSTGRES_15.is_dir():
        raise ServerMissing(f"{POSTGRES_15} is not there; install the package postgresql-15")
    account = server_account()
    folder = make_folder("15", account)
    data = folder / "data"
    subprocess.run(
        [POSTGRES_15 / "initdb", "--pgdata", data, "--username=postgres", "--auth=trust", "--encoding=UTF8",
         "--no-locale", "--no-sync"],
        check=True, capture_output=True, cwd=folder, **as_account(account),
    )  # fmt: skip
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "port": "5415",
        "track_commit_timestamp": "on",
        "max_connections": "200",
        "shared_buffers": "64MB",
    }
    program = [str(POSTGRES_15 / "postgres"), "-D", str(data)]
    program += [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
    server = ChildServer(folder, program, signal.SIGINT, account)  # SIGINT: fast shutdown

    def dsn(user: str, database: str) -> str:
        return socket_dsn(folder, 5415, user, database)

    _start_or_remove(server, dsn("postgres", "postgres"))
    return server, dsn


def start_pgbouncer(direct_dsn: Callable[[str, str], str]) -> tuple[ChildServer, Callable[[str, str], str]]:
    """Start pgbouncer in transaction mode in front of the server that `direct_dsn` leads to."""
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        raise ServerMissing("pgbouncer is not installed; install the package pgbouncer")
    behind = conninfo_to_dict(direct_dsn("postgres", "postgres"))
    socket_file = Path(str(behind["host"])) / f".s.PGSQL.{behind['port']}"
    account = socket_file.stat().st_uid  # the bundled server's socket is open to its own account only
    folder = make_folder("pgbouncer", account)
    (folder / "pgbouncer.ini").write_text(PGBOUNCER_SETTINGS.format(folder=folder, **behind))
    (folder / "users.txt").write_text('"postgres" ""\n')
    server = ChildServer(folder, [program, str(folder / "pgbouncer.ini")], signal.SIGTERM, account)

    def dsn(user: str, database: str) -> str:
        return socket_dsn(folder, 6432, user, database)

    _start_or_remove(server, dsn("postgres", "postgres"))
    return server, dsn


def _start_or_remove(server: ChildServer, probe_dsn: str) -> None:
    atexit.register(server.stop)
    try:
        server.start(probe_dsn)
    except BaseException:
        server.stop()
        raise


def _start_18() -> Server:
    folder = make_folder("18", os.geteuid())
    server = embedded.start_server(folder)

    def stop() -> None:
        embedded.stop_server(folder)
        remove_folder(folder)

    atexit.register(stop)
    return Server("18", server.dsn, server.dsn, stop)


def _start_15() -> Server:
    server, dsn = start_postgres_15()
    with psycopg.connect(dsn("postgres", "postgres")) as connection:
        for login in embedded.LOGIN_ROLES:  # the bundled server has them from the start
            connection.execute(f"create role {login} login".encode())
    return Server("15", dsn, dsn, server.stop)


def _start_pgbouncer() -> Server:
    behind = start_server("18")
    server, dsn = start_pgbouncer(behind.direct_dsn)
    return Server("pgbouncer", dsn, behind.direct_dsn, server.stop)


def start_server(name: str) -> Server:
    """The server of that name (18, 15 or pgbouncer); started at the first call of the session.

    Raises ServerMissing where this machine does not have it.
    """
    if name not in NAMES:
        raise ValueError(f"ONCEFLOW_TEST_SERVER is {name!r}; it must be one of {', '.join(NAMES)}")
    if name not in _running:
        remove_abandoned()
        _running[name] = {"18": _start_18, "15": _start_15, "pgbouncer": _start_pgbouncer}[name]()
    return _running[name]


def stop_servers() -> None:
    """Stop all that were started, pgbouncer before the server behind it."""
    while _running:
        _running.popitem()[1].stop()
