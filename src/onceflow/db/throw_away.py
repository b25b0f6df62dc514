"""Throw-away databases for tests: clones of a migrated template on the bundled server, dropped afterwards.

Each belongs to a connection that is open as long as it is used, named like it: what a killed process left behind has none, and is
dropped by whoever comes next.
"""

from __future__ import annotations

import atexit
import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from onceflow.db.embedded import EmbeddedServer, Hold, grant_login_roles, start_server, stop_if_unused
from onceflow.db.migrate import migrate
from onceflow.db.sql_files import find_files
from onceflow.db.sync_runner import connect
from onceflow.errors import NoDatabase

PREFIX = "trial_"
TEMPLATE_PREFIX = "template_of_trials_"
_LOCK_KEY = 0x6F6E63657472696C  # "oncetril" in ASCII: templates and leftovers are one process' business at a time

# The one clock, with what was skipped added. Nobody but the superuser may change that.
_CLOCK = """
create table onceflow.skipped (by interval not null);
insert into onceflow.skipped values ('0');
grant select on onceflow.skipped to public;
create or replace function onceflow.now() returns timestamptz language sql volatile as 'select clock_timestamp() + by from onceflow.skipped';
"""

_holds: dict[Path, Hold] = {}
_holds_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ThrowAway:
    """One throw-away database."""

    server: EmbeddedServer
    name: str

    def dsn(self, user: str) -> str:
        return self.server.dsn(user, self.name)


@contextmanager
def throw_away(folder: str | Path) -> Iterator[ThrowAway]:
    """A migrated database of its own on the folder's bundled server, owned by login app; dropped at the end of the block, whoever is connected."""
    server = _hold_server(Path(folder).resolve())
    database = ThrowAway(server, PREFIX + secrets.token_hex(6))
    with connect(server.dsn(database="postgres"), database.name) as keeper:
        keeper.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        try:
            _drop_leftovers(keeper)
            template = _make_template(keeper, server)
            _run(keeper, "create database {} template {} owner app", database.name, template)
        finally:
            keeper.execute("select pg_advisory_unlock(%s)", (_LOCK_KEY,))
        try:
            yield database
        finally:
            _run(keeper, "drop database if exists {} with (force)", database.name)


def _hold_server(folder: Path) -> EmbeddedServer:
    """The folder's server, started, and kept until the process ends: the next test shall not wait for it."""
    with _holds_lock:
        server = start_server(folder)
        if folder not in _holds:
            _holds[folder] = server.hold()
            atexit.register(_leave, folder)
        return server


def _leave(folder: Path) -> None:
    _holds[folder].release()
    try:
        stop_if_unused(folder)
    except (OSError, NoDatabase):
        pass  # the folder was removed, or its server is somebody else's business now


def _make_template(keeper: psycopg.Connection[Any], server: EmbeddedServer) -> str:
    """The template of this release's SQL, made once. It gets its name last: there is no half-made one."""
    files = find_files()
    checksums = [file.checksum for file in (files.roles, *files.migrations, *files.functions)]
    name = TEMPLATE_PREFIX + hashlib.sha256("".join([*checksums, _CLOCK]).encode()).hexdigest()[:16]
    existing = _list_databases(keeper, TEMPLATE_PREFIX)
    if name in existing:
        return name
    for old in existing:
        _run(keeper, "drop database {} with (force)", old)
    unfinished = f"{TEMPLATE_PREFIX}unfinished"
    _run(keeper, "create database {}", unfinished)
    dsn = server.dsn(database=unfinished)
    migrate(dsn)
    grant_login_roles(dsn)
    with connect(dsn, "onceflow-trial") as conn:
        conn.execute(_CLOCK)
    _run(keeper, "alter database {} rename to {}", unfinished, name)
    return name


def _drop_leftovers(keeper: psycopg.Connection[Any]) -> None:
    owned = {name for (name,) in keeper.execute("select application_name from pg_stat_activity where datname = 'postgres'")}
    for name in _list_databases(keeper, PREFIX):
        if name not in owned:
            _run(keeper, "drop database if exists {} with (force)", name)


def _list_databases(keeper: psycopg.Connection[Any], prefix: str) -> list[str]:
    return [name for (name,) in keeper.execute("select datname from pg_database where starts_with(datname, %s)", (prefix,))]


def _run(keeper: psycopg.Connection[Any], statement: str, *names: str) -> None:
    keeper.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
