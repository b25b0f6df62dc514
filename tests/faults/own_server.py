"""A Postgres that one test has for itself, so that it may stop, freeze and crash it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from onceflow.db import embedded
from onceflow.db.migrate import migrate
from onceflow.db.server_account import processes_in
from tests.database import TestDatabase
from tests.servers import Server, make_folder, remove_folder


@dataclass
class OwnServer:
    """A server of this test alone, so that it may be stopped, frozen and started again."""

    folder: Path

    def start(self) -> embedded.EmbeddedServer:
        return embedded.start_server(self.folder)

    def crash(self) -> None:
        """Immediate stop: what was not on disk is gone, and the next start recovers from the log."""
        embedded.stop_server(self.folder, mode="immediate")

    def restart(self) -> None:
        self.crash()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP the postmaster and all its children, until none is left running."""
        for _ in range(2):  # one may have been forked meanwhile
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in processes_in(self.folder / "pgdata"):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def run_own_server() -> Iterator[OwnServer]:
    """A running server in a folder of its own; both are gone afterwards."""
    folder = make_folder("own", os.geteuid())
    server = OwnServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.thaw()
        embedded.stop_server(folder, mode="immediate")
        remove_folder(folder)


def make_database(server: OwnServer, name: str, root: Path | None = None) -> TestDatabase:
    """A new migrated database on that server; `root` holds sql/ and migrations/ in place of the shipped ones."""
    dsn = server.start().dsn
    with psycopg.connect(dsn("postgres", "postgres"), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    migrate(dsn("postgres", name), root=root)
    embedded.grant_login_roles(dsn("postgres", name))
    return TestDatabase(Server("18", dsn, dsn, server.crash), name)
