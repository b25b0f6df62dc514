"""Bring a database to the schema of this release, in one transaction; nothing is changed if anything fails.

Source of the files: migrations/ (each run once, append-only) and sql/ (re-applied when changed); see house.md.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from onceflow.db.sql_files import SqlFile, SqlFiles, find_files, find_folders, line_of, split_statements
from onceflow.db.sync_runner import connect
from onceflow.errors import MigrationError, NoDatabase, OnceflowError, VersionSkew
from onceflow.settings import mask_dsn

OLDEST_POSTGRES = 150000
OWNER = "onceflow_owner"
ROLES = (OWNER, "onceflow_worker", "onceflow_step", "onceflow_auditor", "onceflow_operator")
_LOCK_KEY = 0x6F6E6365666C6F77  # "onceflow" in ASCII
_ATTEMPTS = 5
# Roles are shared by all databases of a cluster and no lock spans databases: two first migrations in two databases may
# collide on the catalog rows. The loser starts again and finds the roles made.
_COLLISIONS = (psycopg.errors.InternalError_, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)
_TRANSACTION_END = re.compile(r"(?:commit|end|rollback|abort|begin|start\s+transaction|prepare\s+transaction)\b", re.IGNORECASE)

_BOOTSTRAP = """
create table if not exists onceflow.schema_migration (
    name text primary key, checksum text not null, applied_at timestamptz not null default pg_catalog.now());
create table if not exists onceflow.schema_function (
    name text primary key, checksum text not null, applied_at timestamptz not null default pg_catalog.now());
grant usage on schema onceflow to onceflow_worker, onceflow_step, onceflow_auditor, onceflow_operator;
grant select on onceflow.schema_migration, onceflow.schema_function
    to onceflow_worker, onceflow_step, onceflow_auditor, onceflow_operator;
"""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What one `migrate` did: names of files, in the order they ran; all empty if there was nothing to do."""

    version: int
    migrations: tuple[str, ...]
    functions: tuple[str, ...]
    dropped_views: tuple[str, ...]
    duration_s: float

    @property
    def is_changed(self) -> bool:
        return bool(self.migrations or self.functions)

    def __str__(self) -> str:
        if not self.is_changed:
            return f"schema version {self.version} is up to date; nothing to do"
        functions = [f"{len(self.functions)} functions and views"] if self.functions else []
        applied = ", ".join([*self.migrations, *functions])
        return f"schema version {self.version}: applied {applied} in {self.duration_s:.1f} s"


def migrate(dsn: str, *, root: Path | None = None) -> MigrationReport:
    """Bring the database to this release's schema; a second call is a no-op and says so in the report.

    One transaction under an advisory lock: concurrent calls wait for each other, a failure leaves nothing. The login
    is a superuser, or a role that owns the database and has CREATEROLE, or a member of an existing onceflow_owner.
    Raises MigrationError (naming file and line, or the rights that lack), VersionSkew if the database is of a later
    release, NoDatabase if it cannot be reached. `root` holds migrations/ and sql/ in place of the shipped ones.
    """
    files = find_files(root)
    started = time.monotonic()
    with _connect(dsn) as conn:
        refuse_old_server(conn.info.server_version)
        refuse_other_encoding(conn.info.parameter_status("server_encoding"))
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with conn.transaction():
                    return _Migration(conn, files).run(started)
            except _RolesCollided as collided:
                if attempt == _ATTEMPTS:
                    raise MigrationError(f"{collided}. Run `onceflow db migrate` once more.") from collided
    raise AssertionError("unreachable")


def check_schema(dsn: str, *, root: Path | None = None) -> None:
    """Return if this code can work on the database's schema; raise VersionSkew, saying what to do, if not.

    A schema with other texts of the same functions is accepted: so it is in the middle of a rolling deploy.
    """
    files = find_files(root)
    with _connect(dsn) as conn:
        refuse_other_encoding(conn.info.parameter_status("server_encoding"))
        try:
            if conn.execute("select pg_catalog.to_regclass('onceflow.schema_migration')").fetchone() == (None,):
                raise VersionSkew("The database has no Onceflow schema. Run `onceflow db migrate`.")
            applied = _read_checksums(conn, "schema_migration")
            functions = _read_checksums(conn, "schema_function")
        except psycopg.errors.InsufficientPrivilege as error:
            raise VersionSkew(
                f"Login '{conn.info.user}' may not read schema onceflow ({error.diag.message_primary}). "
                f'Let an administrator run: grant onceflow_worker to "{conn.info.user}"'
            ) from None
    _refuse_newer(applied, files)
    missing = [file.name for file in files.migrations if file.name not in applied]
    missing += [file.name for file in files.functions if file.name not in functions]
    if missing:
        raise VersionSkew(
            f"The database's schema is of version {_version(applied)}, this code needs version {files.version}; it "
            f"lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}. Run `onceflow db migrate`."
        )


def schema_version(root: Path | None = None) -> int:
    """The schema version of this code: the highest number of its migrations."""
    return max((int(path.name[:4]) for path in find_folders(root)[0].glob("[0-9][0-9][0-9][0-9]_*.sql")), default=0)


class _RolesCollided(Exception):
    """The migrate of another database of the same cluster changed the roles at the same time."""


class _Migration:
    """One attempt, inside the caller's transaction; its methods run in the order in which they stand here."""

    def __init__(self, conn: psycopg.Connection[Any], files: SqlFiles) -> None:
        self.conn = conn
        self.files = files
        self.dropped_views: list[str] = []

    def run(self, started: float) -> MigrationReport:
        self.conn.execute("select pg_catalog.pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        # The files mean the same whatever the login's own settings are; only qualified names are found.
        self.conn.execute("set local search_path = pg_catalog, pg_temp")
        self.conn.execute("set local statement_timeout = 0")
        self.conn.execute("set local timezone = 'UTC'")
        self.check_rights()
        self.make_roles()
        self.become_owner()
        migrations = self.apply_migrations()
        functions = self.apply_functions(everything=bool(migrations))
        if "make_partitions" in functions:  # a new database has none yet; afterwards the tick makes them
            self.conn.execute("select onceflow.make_partitions()")
        duration_s = time.monotonic() - started
        return MigrationReport(self.files.version, migrations, functions, tuple(self.dropped_views), duration_s)

    def check_rights(self) -> None:
        """Ask for all rights that lack at once, before anything runs."""
        row = self.conn.execute(
            """select r.rolname, current_database(), r.rolsuper, r.rolcreaterole,
                      array(select unnest(%s::text[]) except select rolname::text from pg_roles order by 1),
                      to_regnamespace('onceflow') is null, has_database_privilege(current_database(), 'CREATE')
               from pg_roles r where r.rolname = current_user""",
            (list(ROLES),),
        ).fetchone()
        assert row is not None
        user, database, is_super, may_create_roles, missing_roles, lacks_schema, may_create = row
        lacking = []
        if missing_roles and not (is_super or may_create_roles):
            lacking.append(f'alter role "{user}" createrole   -- to make {", ".join(missing_roles)}')
        if lacks_schema and not may_create:
            lacking.append(f'grant create on database "{database}" to "{user}"')
        is_16 = self.conn.info.server_version >= 160000
        may_grant_itself = may_create_roles and not is_16
        if not (is_super or may_grant_itself or OWNER in missing_roles or self.can_become_owner()):
            lacking.append(f'grant {OWNER} to "{user}"{" with set true" if is_16 else ""}')
        if lacking:
            raise MigrationError(
                f"Login '{user}' lacks rights to migrate database '{database}'. Let an administrator run:\n  "
                + ";\n  ".join(lacking)
                + f";\nor migrate once as an administrator (for the roles alone, run {self.files.roles.path})."
            )

    def can_become_owner(self) -> bool:
        how = "SET" if self.conn.info.server_version >= 160000 else "MEMBER"
        may_grant = "MEMBER WITH ADMIN OPTION"
        row = self.conn.execute("select pg_has_role(%s, %s) or pg_has_role(%s, %s)", (OWNER, how, OWNER, may_grant)).fetchone()
        return row is not None and bool(row[0])

    def make_roles(self) -> None:
        try:
            self.run_file(self.files.roles)
        except MigrationError as error:
            if isinstance(error.__cause__, _COLLISIONS):
                raise _RolesCollided(str(error).removesuffix(" Nothing was changed.")) from error
            raise

    def become_owner(self) -> None:
        row = self.conn.execute("select nspowner::regrole::text from pg_namespace where nspname = 'onceflow'").fetchone()
        if row is None:
            self.conn.execute("create schema onceflow authorization onceflow_owner")
            self.conn.execute("create schema if not exists onceflow_archive authorization onceflow_owner")
            self.conn.execute("grant usage on schema onceflow_archive to onceflow_auditor, onceflow_operator")
        elif row[0] != OWNER:
            raise MigrationError(
                f"Schema onceflow belongs to {row[0]}, so it is not of this engine's making. "
                f"Drop or rename it, or, if it is: alter schema onceflow owner to {OWNER}"
            )
        self.conn.execute("set local role onceflow_owner")
        self.conn.execute(_BOOTSTRAP.encode())

    def apply_migrations(self) -> tuple[str, ...]:
        applied = _read_checksums(self.conn, "schema_migration")
        _refuse_newer(applied, self.files)
        known = {file.name for file in self.files.migrations}
        if gone := sorted(applied.keys() - known):
            raise MigrationError(
                f"Migration {gone[0]} was applied to this database, but its file is gone. Migrations are append-only: restore the file under its name."
            )
        done = []
        for file in self.files.migrations:
            if file.name not in applied:
                self.run_file(file)
                self.record("schema_migration", file)
                done.append(file.name)
            elif applied[file.name] != file.checksum:
                raise MigrationError(
                    f"{file.path} was changed after it was applied to this database. Migrations are append-only: "
                    "restore its text and put the change into a new file."
                )
        return tuple(done)

    def apply_functions(self, *, everything: bool) -> tuple[str, ...]:
        applied = _read_checksums(self.conn, "schema_function")
        changed = []
        # First without a look into the bodies, so that functions may call each other in any order; then once more with.
        self.conn.execute("set local check_function_bodies = off")
        for file in self.files.functions:
            # A migration or a dropped view may have taken dependent views and functions along: then all are made again.
            if everything or self.dropped_views or applied.get(file.name) != file.checksum:
                self.run_file(file)
                changed.append(file)
        self.conn.execute("set local check_function_bodies = on")
        for file in changed:
            self.run_file(file)
            self.record("schema_function", file)
        names = [file.name for file in self.files.functions]
        self.conn.execute("delete from onceflow.schema_function where name <> all(%s::text[])", (names,))
        return tuple(file.name for file in changed)

    def run_file(self, file: SqlFile) -> None:
        for offset, statement in split_statements(file.text):
            if ending := _TRANSACTION_END.match(statement):
                raise MigrationError(
                    f"{file.path}, line {line_of(file.text, offset)}: {ending.group()} is not allowed: all files "
                    "commit in one transaction. Remove it. Nothing was changed."
                )
            try:
                if view := re.match(r"create\s+or\s+replace\s+view\s+([\w.\"]+)", statement, re.IGNORECASE):
                    self.replace_view(file, view.group(1), statement)
                else:
                    self.conn.execute(statement.encode())
            except psycopg.Error as error:
                raise _located(file, offset, error) from error

    def replace_view(self, file: SqlFile, view: str, statement: str) -> None:
        """Replace a view; if its columns changed, drop it with our objects that need it, but never with a user's."""
        try:
            with self.conn.transaction():
                self.conn.execute(statement.encode())
        except psycopg.errors.InvalidTableDefinition:
            before = self.foreign_objects()
            self.conn.execute(f"drop view {view} cascade".encode())
            if lost := sorted(before - self.foreign_objects()):
                raise MigrationError(
                    f"{file.path}: the columns of view {view} change, and these objects outside of schema onceflow "
                    f"depend on it: {', '.join(lost)}. Drop them, migrate, and make them again. Nothing was changed."
                ) from None
            self.dropped_views.append(view)
            self.conn.execute(statement.encode())

    def foreign_objects(self) -> set[str]:
        rows = self.conn.execute(
            """select 'view ' || c.oid::regclass::text from pg_class c
               where c.relkind in ('v', 'm') and c.relnamespace <> 'onceflow'::regnamespace and c.oid >= 16384
               union all
               select 'function ' || p.oid::regprocedure::text from pg_proc p
               where p.pronamespace <> 'onceflow'::regnamespace and p.oid >= 16384"""
        ).fetchall()
        return {row[0] for row in rows}

    def record(self, table: str, file: SqlFile) -> None:
        self.conn.execute(
            sql.SQL(
                """insert into onceflow.{} (name, checksum) values (%s, %s)
                   on conflict (name) do update set checksum = excluded.checksum, applied_at = excluded.applied_at"""
            ).format(sql.Identifier(table)),
            (file.name, file.checksum),
        )


def _connect(dsn: str) -> psycopg.Connection[Any]:
    try:
        return connect(dsn, "onceflow-migrate")
    except psycopg.Error as error:
        raise NoDatabase(f"Cannot connect to {mask_dsn(dsn)}: {str(error).strip().partition(chr(10))[0]}. Is the server up, and the DSN right?") from None


def refuse_other_encoding(encoding: str | None) -> None:
    """Raise MigrationError for a database that could not hold every text: names, arguments and results are UTF-8."""
    if encoding is not None and encoding != "UTF8":
        raise MigrationError(
            f"This database has the encoding {encoding}; Onceflow needs UTF8, for a database of another one refuses texts when it is too late. "
            "Make a new one: create database NAME encoding 'UTF8' template template0"
        )


def refuse_old_server(version: int) -> None:
    """Raise MigrationError for a server older than PostgreSQL 15. The version is a server_version_num, as 140009."""
    if version < OLDEST_POSTGRES:
        name = f"{version // 10000}.{version % 10000}"
        raise MigrationError(f"This is PostgreSQL {name}; Onceflow needs PostgreSQL 15 or later. Upgrade the server.")


def _read_checksums(conn: psycopg.Connection[Any], table: str) -> dict[str, str]:
    rows = conn.execute(sql.SQL("select name, checksum from onceflow.{}").format(sql.Identifier(table)))
    return dict(rows.fetchall())


def _version(applied: dict[str, str]) -> int:
    return max((int(name.split("_")[0]) for name in applied), default=0)


def _refuse_newer(applied: dict[str, str], files: SqlFiles) -> None:
    if _version(applied) > files.version:
        raise VersionSkew(
            f"The database's schema is of version {_version(applied)}, this code knows only version {files.version}. "
            "Upgrade the package `onceflow` to the release that migrated the database."
        )


def _located(file: SqlFile, offset: int, error: psycopg.Error) -> OnceflowError:
    position = error.diag.statement_position
    line = line_of(file.text, offset + (int(position) - 1 if position else 0))
    said = [error.diag.message_primary or str(error).strip(), error.diag.message_detail, error.diag.message_hint]
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and "pg_catalog" in str(error):
        said.append("is it a name without its schema? Write onceflow.name")
    why = "; ".join(part.rstrip(".") for part in said if part)
    return MigrationError(f"{file.path}, line {line}: {why}. Nothing was changed.")


SCHEMA_VERSION = schema_version()
