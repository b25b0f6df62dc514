"""The bundled PostgreSQL: one server per folder, shared by every process that names the folder.

The server belongs to nobody: it survives the death of its starter, is found again by any process, and stops when
nobody uses it (`stop_if_unused`) or when told to (`stop_server`). Who is alive is told by file locks, never by process
ids: the kernel drops a lock with its last holder, while a process id may be used again by another program.

    start.lock   held while a server is started or stopped
    server.lock  inherited by the postmaster and all its children; free means: nothing touches the data
    users.lock   shared by everybody who uses the server
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import quote

import psycopg
from psycopg import pq, sql

from onceflow.db import server_account as account
from onceflow.db.file_lock import is_locked, locked, open_locked
from onceflow.db.migrate import migrate
from onceflow.errors import NoDatabase

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 107 on Linux and 103 on macOS
START_TIMEOUT_S = 300.0  # replaying the log after a crash takes its time
STOP_TIMEOUT_S = 60.0
LOGIN_ROLES = {"app": "onceflow_operator", "worker": "onceflow_worker", "auditor": "onceflow_auditor"}
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_INITIAL_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "track_commit_timestamp": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u ",
    "log_checkpoints": "off",
}


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running bundled server. Its DSNs stay the same when it is stopped and started again; `pid` does not."""

    folder: Path
    pid: int
    socket_dir: Path

    def dsn(self, user: str = "postgres", database: str = "onceflow") -> str:
        """A URL that psycopg, asyncpg and SQLAlchemy accept. There is no password: the socket is private."""
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={PORT}"

    def bin(self, name: str) -> Path:
        """The path of one of its programs (psql, pg_dump, pgbench …); NoDatabase if there is none of that name."""
        path = account.find_binaries() / name
        if not path.exists():
            raise NoDatabase(f"The bundled PostgreSQL has no program '{name}' in {path.parent}.")
        return path

    def hold(self) -> Hold:
        """Keep the server from being stopped as unused until `release`, or the end of the `with`, or of the process.

        Starts the server again if it was stopped since this object was made.
        """
        hold = Hold(open_locked(self.folder / "users.lock", shared=True))
        try:
            start_server(self.folder)  # with the lock taken first, no stop_if_unused can come in between
        except BaseException:
            hold.release()
            raise
        return hold


class Hold:
    """A user's claim on a server; see EmbeddedServer.hold. A crash of the process gives it back too."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def ensure_database(folder: Path | str) -> EmbeddedServer:
    """A running server with the present schema and the login roles app, worker and auditor ready to use."""
    server = start_server(folder)
    migrate(server.dsn())
    grant_login_roles(server.dsn())
    return server


def start_server(folder: Path | str, *, settings: dict[str, str] | None = None) -> EmbeddedServer:
    """The running server of the folder: found, or started, or made first.

    Safe to call from any number of processes at once: one starts it, the others wait and find it. Recovers whatever
    a SIGKILL left behind. `settings` (postgresql.conf names) count only if this call starts the server, and only until
    it stops. Raises NoDatabase with the end of the server's log if it does not come up.
    """
    home = _make_home(folder)
    with locked(home.folder / "start.lock"):
        if home.is_alive() and (running := home.await_ready_or_gone()):
            return running
        home.check_data()
        home.make_data()
        home.remove_stale_files()
        return home.launch(settings or {})


def find_server(folder: Path | str) -> EmbeddedServer | None:
    """The server of the folder if it runs; None if not. Starts nothing."""
    if (home := _find_home(folder)) is None:
        return None
    with locked(home.folder / "start.lock"):
        return home.await_ready_or_gone() if home.is_alive() else None


def stop_server(folder: Path | str, mode: Literal["smart", "fast", "immediate"] = "fast") -> bool:
    """Stop the folder's server, whoever uses it, and wait until it is gone; False if it did not run.

    fast rolls open transactions back; immediate is a crash in all but name; smart waits for all clients to leave.
    """
    if (home := _find_home(folder)) is None:
        return False
    with locked(home.folder / "start.lock"):
        return home.stop(SIGNALS[mode])


def stop_if_unused(folder: Path | str) -> bool:
    """Stop the folder's server if no process holds it; True if this call stopped it. To be called at exit."""
    if (home := _find_home(folder)) is None:
        return False
    with locked(home.folder / "start.lock"):
        unused = open_locked(home.folder / "users.lock", wait=False)
        if unused is None:
            return False
        try:
            return home.stop(SIGNALS["fast"])
        finally:
            os.close(unused)


def grant_login_roles(dsn: str) -> None:
    """Give the login roles app, worker and auditor their rights; to be run as postgres after each migrate.

    app is an operator and may make tables in schema public; tables and sequences made there by app or postgres may
    be written by steps and read by auditors.
    """
    with psycopg.connect(dsn) as conn:
        for login, role in LOGIN_ROLES.items():
            conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(login)))
        conn.execute("grant usage, create on schema public to app")
        conn.execute("grant usage on schema public to onceflow_step, onceflow_auditor")
        for maker in ("app", "postgres"):
            for grant in (
                "select, insert, update, delete on tables to onceflow_step",
                "usage, select on sequences to onceflow_step",
                "select on tables to onceflow_auditor",
            ):
                made_by = sql.SQL("alter default privileges for role {} in schema public grant ")
                conn.execute(made_by.format(sql.Identifier(maker)) + sql.SQL(grant))


class _Home:
    """The folder of one server. All methods are called with start.lock held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "pgdata"
        self.log = folder / "postgres.log"
        self.server_lock = folder / "server.lock"

    def is_alive(self) -> bool:
        return is_locked(self.server_lock)

    def read_pid_file(self) -> list[str]:
        try:
            return os.fsdecode((self.data / "postmaster.pid").read_bytes()).splitlines()
        except FileNotFoundError:
            return []

    def await_ready_or_gone(self) -> EmbeddedServer | None:
        """The server once it takes connections; None once nothing of it is left, orphans of a killed one included."""
        for waited_s in _waiting(START_TIMEOUT_S):
            lines = self.read_pid_file()
            is_orphaned = bool(lines) and not account.is_postmaster(int(lines[0]), self.data)
            if not is_orphaned and len(lines) >= 8 and lines[7].strip() == "ready":
                server = EmbeddedServer(self.folder, int(lines[0]), Path(lines[4]))
                if pq.PGconn.ping(f"{server.dsn()}&connect_timeout=5".encode()) == pq.Ping.OK:
                    return server  # the answer tells it from one that was killed just now, or is shutting down
            if not self.is_alive():
                return None
            if is_orphaned and waited_s > 1.0:
                self.end_orphans(force=waited_s > 5.0)
            if is_orphaned and waited_s > 15.0:
                raise NoDatabase(
                    f"{self.server_lock} is held, but no server of this machine holds it: the folder is in use from "
                    "another container or machine, or by a program that the server started. End that one first."
                )
        raise NoDatabase(f"The server of {self.folder} was not ready after {START_TIMEOUT_S:g} s.{self.log_tail()}")

    def end_orphans(self, *, force: bool) -> None:
        """End backends that outlived a killed postmaster: one in a long query would not notice for hours."""
        for pid in account.processes_in(self.data):
            try:
                os.kill(pid, signal.SIGKILL if force else signal.SIGQUIT)
            except ProcessLookupError:
                pass

    def check_data(self) -> None:
        version = account.find_version()
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        except PermissionError:
            raise NoDatabase(f"{self.data} belongs to another user ({self.data.owner()}). Run as that user, or set embedded_dir.") from None
        if found != version:
            raise NoDatabase(
                f"{self.data} was made by PostgreSQL {found}, the bundled one is {version}. Install the release of "
                f"onceflow[embedded] that made it and pg_dump it, or move {self.folder} away to start afresh."
            )

    def make_data(self) -> None:
        """initdb, database and login roles, all in a folder that gets its name last: there is no half-made server."""
        if self.data.exists():
            return
        unfinished = self.folder / "pgdata.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        account.give(unfinished, self.folder)
        options = ["--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--no-instructions"]
        if int(account.find_version()) >= 17:
            options += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        account.run(["initdb", "-D", str(unfinished), "-U", "postgres", *options], self.folder)
        with (unfinished / "postgresql.conf").open("a") as conf:
            conf.write("\n# Onceflow\n" + "".join(f"{name} = '{value}'\n" for name, value in _INITIAL_SETTINGS.items()))
        statements = ["create database onceflow", *(f"create role {login} login" for login in LOGIN_ROLES)]
        command = ["postgres", "--single", "-D", str(unfinished), "-c", "exit_on_error=on", "postgres"]
        account.run(command, self.folder, given="\n".join(statements) + "\n")
        unfinished.rename(self.data)

    def remove_stale_files(self) -> None:
        """Remove what a killed server left; its process id may be another program's by now, which stops Postgres."""
        lines = self.read_pid_file()
        if lines and account.is_postmaster(int(lines[0]), self.data):
            raise NoDatabase(f"A server that Onceflow did not start (pid {lines[0]}) runs on {self.data}. Stop it first: pg_ctl -D {self.data} stop")
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            (self.socket_dir() / name).unlink(missing_ok=True)

    def launch(self, settings: dict[str, str]) -> EmbeddedServer:
        socket_dir = self.socket_dir()
        ours = {
            **settings,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": f'"{socket_dir}"',
            "unix_socket_permissions": "0700",
        }
        options = [part for name, value in ours.items() for part in ("-c", f"{name}={value}")]
        lock = open_locked(self.server_lock, wait=False)
        if lock is None:
            raise NoDatabase(f"{self.server_lock} is held by another program.")
        try:
            account.launch(["postgres", "-D", str(self.data), *options], self.folder, log=self.log, keep_open=lock)
        finally:
            os.close(lock)
        if running := self.await_ready_or_gone():
            return running
        raise NoDatabase(f"The bundled PostgreSQL in {self.folder} did not start.{self.log_tail()}")

    def socket_dir(self) -> Path:
        """The private folder of the socket: run/ of the server's folder, or a short and plain one elsewhere.

        Elsewhere if the path is too long, or has characters that drivers take for others (a comma separates hosts).
        """
        path = self.folder / "run"
        if len(os.fsencode(path / SOCKET_NAME)) > SOCKET_PATH_MAX or not re.fullmatch(r"(?a:[\w/.+ -]+)", str(path)):
            path = account.short_private_path(self.folder)
        account.make_private(path, self.folder)
        return path

    def stop(self, how: signal.Signals) -> bool:
        if not self.is_alive():
            return False
        if (running := self.await_ready_or_gone()) is None:
            return False
        os.kill(running.pid, how)
        for _ in _waiting(STOP_TIMEOUT_S):
            if not self.is_alive():
                if running.socket_dir.parent != self.folder:
                    shutil.rmtree(running.socket_dir, ignore_errors=True)  # the short one, in the temporary folder
                return True
        raise NoDatabase(f"The server (pid {running.pid}) did not stop within {STOP_TIMEOUT_S:g} s.{self.log_tail()}")

    def log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-8:]
        except OSError:
            return ""
        return f" The end of {self.log}:\n  " + "\n  ".join(lines) if lines else ""


def _find_home(folder: Path | str) -> _Home | None:
    home = _Home(Path(folder).resolve())
    return home if home.data.exists() else None


def _make_home(folder: Path | str) -> _Home:
    path = Path(folder).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".gitignore").exists():
            (path / ".gitignore").write_text("*\n")
    except OSError as error:
        raise NoDatabase(f"No server can be kept in {path}: {error.strerror}. Set embedded_dir to another folder.") from None
    return _Home(path)


def _waiting(timeout_s: float) -> Iterator[float]:
    """The seconds waited so far, again and again at short intervals, until the timeout."""
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < timeout_s:
        yield waited_s
        time.sleep(0.02)
