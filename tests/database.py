"""A test's own database: a clone of the migrated template, with one DSN for each login role."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.servers import Server

DUMPED = ("lease", "ready", "timer", "wait", "wake_up", "worker")
POLL_S = 0.02
LOGINS = {"worker": "worker", "step": "onceflow_step", "app": "app", "auditor": "auditor"}


@dataclass
class TestDatabase:
    """One database on the server under test. `dsn` is the superuser's; tests of rights use the others."""

    __test__ = False  # not a test class, for pytest

    server: Server
    name: str
    _connection: psycopg.Connection[Any] | None = field(default=None, repr=False)

    @property
    def dsn(self) -> str:
        """As superuser, through pgbouncer where the session runs behind one."""
        return self.server.dsn("postgres", self.name)

    @property
    def worker_dsn(self) -> str:
        """As the login role of the engine's own connections."""
        return self.server.dsn(LOGINS["worker"], self.name)

    @property
    def step_dsn(self) -> str:
        """As `onceflow_step`, the login role of steps' connections."""
        return self.server.dsn(LOGINS["step"], self.name)

    @property
    def app_dsn(self) -> str:
        """As an application that starts runs in its own transactions."""
        return self.server.dsn(LOGINS["app"], self.name)

    @property
    def auditor_dsn(self) -> str:
        """As somebody who may read the ledger and change nothing."""
        return self.server.dsn(LOGINS["auditor"], self.name)

    @property
    def direct_dsn(self) -> str:
        """As the engine's login role, past any pgbouncer: for LISTEN."""
        return self.server.direct_dsn(LOGINS["worker"], self.name)

    @property
    def superuser_dsn(self) -> str:
        """As superuser, straight to Postgres, whatever stands in front of it."""
        return self.server.direct_dsn("postgres", self.name)

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        """A new autocommit connection, always straight to Postgres; the caller closes it.

        `user` is a login role's name or one of worker, step, app, auditor.
        """
        return psycopg.connect(self.server.direct_dsn(LOGINS.get(user, user), self.name), autocommit=True)

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run one statement as superuser and return its rows (none for a statement without a result)."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        cursor = self._connection.execute(text.encode(), args or None)
        return cursor.fetchall() if cursor.description else []

    def wait_for(self, sql: str, *args: object, timeout: float = 20, unless: Callable[[], str | None] | None = None) -> Any:
        """Poll until the first column of the first row is truthy, and return it.

        Fails after `timeout` seconds, or as soon as `unless` gives a reason, with the last value and what the
        engine's small tables hold.
        """
        deadline = time.monotonic() + timeout
        while True:
            rows = self.sql(sql, *args)
            value = rows[0][0] if rows else None
            if value:
                return value
            reason = unless() if unless else None
            if reason is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
                continue
            reason = reason or f"not true within {timeout} s"
            raise AssertionError(f"{reason}\nquery: {sql} {args or ''}\nlast value: {value!r}\n{self.dump()}")

    def dump(self) -> str:
        """What the engine's live tables hold, for failure messages."""
        return "\n".join(self._dump_table(table) for table in DUMPED)

    def _dump_table(self, table: str) -> str:
        try:
            rows = self.sql(f"select to_jsonb(t)::text from onceflow.{table} t limit 20")
        except psycopg.Error as error:
            return f"{table}: {type(error).__name__} {error}"
        return "\n".join([f"{table}: {len(rows)} rows", *(f"  {row[0]}" for row in rows)])

    def close(self) -> None:
        """Close the connection behind `sql`."""
        if self._connection is not None:
            self._connection.close()


@dataclass
class Template:
    """The migrated database every test's database is a clone of."""

    server: Server
    name: str = "onceflow_template"
    clones: int = 0

    def create(self, migrate: Callable[[str], object], grant_login_roles: Callable[[str], object]) -> Template:
        """Create and migrate it, once for each server."""
        self._run(f"create database {self.name}")
        dsn = self.server.direct_dsn("postgres", self.name)
        migrate(dsn)
        grant_login_roles(dsn)
        return self

    def clone(self, server: Server) -> TestDatabase:
        """A new database with the template's tables, functions, grants and default privileges.

        `server` is how the test reaches it: this Postgres itself, or a pgbouncer in front of it.
        """
        self.clones += 1
        name = f"t_{self.clones}"
        self._run(f"create database {name} template {self.name}")
        return TestDatabase(server, name)

    def drop(self, db: TestDatabase) -> None:
        """Drop a clone, whoever is still connected to it."""
        db.close()
        self._run(f"drop database if exists {db.name} with (force)")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.server.direct_dsn("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())
