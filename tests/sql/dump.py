"""pg_dump and restore, with the programs that belong to the server under test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from onceflow.db.server_account import find_binaries
from tests.database import TestDatabase
from tests.servers import POSTGRES_15


@contextmanager
def dump_and_restore(db: TestDatabase) -> Iterator[TestDatabase]:
    """A new database on the same server, restored from a dump of `db`; dropped at the end."""
    folder = POSTGRES_15 if db.server.name == "15" else Path(find_binaries())
    restored = TestDatabase(db.server, f"{db.name}_restored")
    with psycopg.connect(db.server.direct_dsn("postgres", "postgres"), autocommit=True) as admin:
        admin.execute(f"create database {restored.name}".encode())
        try:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
            dump = subprocess.run([folder / "pg_dump", db.superuser_dsn], check=True, capture_output=True, env=environment).stdout
            psql = [folder / "psql", "-q", "-v", "ON_ERROR_STOP=1", restored.superuser_dsn]
            subprocess.run(psql, input=dump, check=True, capture_output=True, env=environment)
            yield restored
        finally:
            restored.close()
            admin.execute(f"drop database {restored.name} with (force)".encode())
