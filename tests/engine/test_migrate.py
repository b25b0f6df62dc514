"""migrate: one transaction, each thing once, on PostgreSQL 15 and 18, as superuser and as a plain owner."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceflow.db import embedded
from onceflow.db.migrate import ROLES, SCHEMA_VERSION, check_schema, migrate, refuse_old_server
from onceflow.db.sql_files import find_files
from onceflow.errors import MigrationError, NoDatabase, VersionSkew
from tests.servers import ServerMissing, make_folder, remove_folder, start_postgres_15

LOGINS = ("plain", "stranger", *embedded.LOGIN_ROLES)
_numbers = itertools.count(1)


class Cluster:
    """A server of this module alone: its tests drop and make the roles, which all databases share."""

    def __init__(self, dsn: Any) -> None:
        self.dsn = dsn

    def sql(self, *statements: str, user: str = "postgres", database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(user, database), autocommit=True) as conn:
            for statement in statements:
                cursor = conn.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def forget_all(self) -> None:
        for (name,) in self.sql("select datname from pg_database where datname like 'mig%'"):
            self.sql(f"drop database {name} with (force)")
        self.sql(*(f"drop role if exists {role}" for role in (*ROLES, *LOGINS)))
        self.sql(*(f"create role {login} login" for login in LOGINS), "alter role plain createrole")

    def new_database(self, owner: str = "postgres") -> str:
        name = f"mig{next(_numbers)}"
        self.sql(f"create database {name} owner {owner}")
        return name


@pytest.fixture(scope="module", params=["18", "15"])
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "18":
        folder = make_folder("migrate", 0 if (uid := Path("/proc/self").stat().st_uid) == 0 else uid)
        yield Cluster(embedded.start_server(folder).dsn)
        embedded.stop_server(folder, "immediate")
        remove_folder(folder)
        return
    try:
        child, dsn = start_postgres_15()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield Cluster(dsn)
    child.stop()


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    """The server without any role or database of Onceflow; logins: postgres, plain (with CREATEROLE), stranger."""
    server.forget_all()
    return server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small release: one table, two SQL functions of which the first calls the second, a view on each other."""
    write(
        tmp_path,
        {
            "migrations/0001_core": "create table onceflow.thing (id bigint primary key, note text);",
            "sql/add": "create or replace function onceflow.add(a int) returns int language sql return a + 1;",
            "sql/one": "create or replace function onceflow.one() returns int language sql as 'select onceflow.zero()';",
            "sql/view_a": "-- After: view_b\ncreate or replace view onceflow.a as select id, note from onceflow.b;",
            "sql/view_b": "create or replace view onceflow.b as select id, note from onceflow.thing;",
            "sql/zero": "create or replace function onceflow.zero() returns int language sql as 'select 0';",
        },
    )
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / f"{name}.sql"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")


def test_the_second_time_there_is_nothing_to_do(cluster: Cluster, root: Path) -> None:
    """The first migrate applies everything in order and as onceflow_owner; the second does nothing and says so."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    first = migrate(dsn, root=root)
    assert first.migrations == ("0001_core",)
    assert first.functions == ("add", "one", "view_b", "view_a", "zero")
    assert first.is_changed and "applied 0001_core, 5 functions and views" in str(first)
    stamps = cluster.sql("select * from onceflow.schema_function order by 1", database=name)
    second = migrate(dsn, root=root)
    assert not second.is_changed and "nothing to do" in str(second) and second.version == 1
    assert cluster.sql("select * from onceflow.schema_function order by 1", database=name) == stamps
    owners = "select distinct relowner::regrole::text from pg_class where relnamespace = 'onceflow'::regnamespace"
    assert cluster.sql(owners, database=name) == [("onceflow_owner",)]
    check_schema(dsn, root=root)


@pytest.mark.parametrize("owner", ["postgres", "plain"])
def test_the_shipped_schema_migrates(cluster: Cluster, owner: str) -> None:
    """The real files apply on this server, as superuser and as a plain owner, and a second time do nothing."""
    dsn = cluster.dsn(owner, cluster.new_database(owner))
    assert migrate(dsn).version == SCHEMA_VERSION == find_files().version
    assert not migrate(dsn).is_changed
    check_schema(dsn)


def test_a_plain_owner_with_createrole_may_migrate(cluster: Cluster, root: Path) -> None:
    """A login that owns the database and has CREATEROLE needs no superuser, neither for the first nor the next time."""
    name = cluster.new_database("plain")
    dsn = cluster.dsn("plain", name)
    assert migrate(dsn, root=root).is_changed
    write(root, {"migrations/0002_more": "alter table onceflow.thing add more int;"})
    assert migrate(dsn, root=root).migrations == ("0002_more",)
    assert cluster.sql("select pg_has_role('onceflow_owner', 'pg_signal_backend', 'MEMBER')") in ([(True,)], [(False,)])


def test_a_superuser_gives_the_owner_its_helpers(cluster: Cluster, root: Path) -> None:
    """Migrated by a superuser, onceflow_owner may end lost sessions and see what they do; onceflow_step may log in."""
    migrate(cluster.dsn("postgres", cluster.new_database()), root=root)
    for role in ("pg_signal_backend", "pg_read_all_stats"):
        assert cluster.sql(f"select pg_has_role('onceflow_owner', '{role}', 'MEMBER')") == [(True,)]
    logins = cluster.sql("select rolname from pg_roles where rolname like 'onceflow%' and rolcanlogin")
    assert logins == [("onceflow_step",)]


@pytest.mark.parametrize("roles_exist", [False, True])
def test_missing_rights_are_listed_and_suffice(cluster: Cluster, root: Path, roles_exist: bool) -> None:
    """A login without rights gets the list of statements it needs; with exactly these run, it can migrate."""
    if roles_exist:
        migrate(cluster.dsn("postgres", cluster.new_database()), root=root)
    name = cluster.new_database()
    dsn = cluster.dsn("stranger", name)
    with pytest.raises(MigrationError, match="Login 'stranger' lacks rights to migrate database") as caught:
        migrate(dsn, root=root)
    listed = re.findall(r"^  ((?:grant|alter)[^;]*?)\s*(?:--.*)?;$", str(caught.value), re.MULTILINE)
    assert len(listed) == 2
    assert [statement.startswith("grant onceflow_owner") for statement in listed] == [False, roles_exist]
    for left_out in listed:
        assert cluster.sql(f"select to_regnamespace('onceflow') is null -- {left_out}", database=name) == [(True,)]
    cluster.sql(*listed)
    assert migrate(dsn, root=root).is_changed


def test_functions_are_closed_to_the_public(cluster: Cluster, root: Path) -> None:
    """Nobody may call a new function unless it is granted: the owner's default privileges say so globally."""
    name = cluster.new_database()
    migrate(cluster.dsn("postgres", name), root=root)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        cluster.sql("select onceflow.zero()", user="onceflow_step", database=name)


def test_a_changed_migration_is_refused(cluster: Cluster, root: Path) -> None:
    """A migration edited or removed after it ran is an error that names the file; nothing is applied."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    write(
        root,
        {
            "migrations/0001_core": "create table onceflow.thing (id int);",
            "sql/new": "create view onceflow.n as select 1;",
        },
    )
    with pytest.raises(MigrationError, match=r"0001_core\.sql was changed after it was applied"):
        migrate(dsn, root=root)
    (root / "migrations/0001_core.sql").rename(root / "migrations/0001_kernel.sql")
    with pytest.raises(MigrationError, match="0001_core was applied to this database, but its file is gone"):
        migrate(dsn, root=root)
    assert cluster.sql("select to_regclass('onceflow.n')", database=name) == [(None,)]


def test_only_changed_functions_are_applied(cluster: Cluster, root: Path) -> None:
    """A changed function file is applied alone; one that is gone is forgotten, its function left for old workers."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    write(root, {"sql/zero": "create or replace function onceflow.zero() returns int language sql as 'select 00';"})
    (root / "sql/add.sql").unlink()
    assert migrate(dsn, root=root).functions == ("zero",)
    assert cluster.sql("select onceflow.add(1)", database=name) == [(2,)]
    assert not migrate(dsn, root=root).is_changed


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("-- one\n\nselect\n  nonsense;", 4, "nonsense"),
        (
            "create or replace function onceflow.f() returns int language plpgsql as $$\nbegin\n  retrun 1;\nend $$;",
            3,
            "retrun",
        ),
        (
            "create or replace function onceflow.f() returns int language sql as $$\n  select x\n$$;",
            2,
            '"x" does not exist',
        ),
        (
            "select 1;\n\ncreate or replace function onceflow.zero() returns text language sql as 'select 1';",
            3,
            "change return type",
        ),
        ("select 1;\ncreate table unqualified (x int);", 2, "Write onceflow.name"),
        ("select 1;\nselect 'open", 2, "unterminated"),
        ("select 1;\ncommit;\nselect 1;", 2, "COMMIT is not allowed"),
    ],
)
def test_an_error_names_file_and_line(cluster: Cluster, root: Path, text: str, line: int, said: str) -> None:
    """Whatever fails in a file, the error says the file, the line and the reason, and nothing is changed."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    write(root, {"migrations/0002_more": "create table onceflow.more (x int);", "sql/zz": text})
    with pytest.raises(MigrationError) as caught:
        migrate(dsn, root=root)
    assert f"sql/zz.sql, line {line}: " in str(caught.value)
    assert said.lower() in str(caught.value).lower() and "Nothing was changed" in str(caught.value)
    assert cluster.sql("select to_regclass('onceflow.more')", database=name) == [(None,)]


def test_a_view_with_other_columns_is_made_again_with_all_that_need_it(cluster: Cluster, root: Path) -> None:
    """A view that cannot be replaced is dropped; it and every view on it are there afterwards, in the new form."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    write(root, {"sql/view_b": "create or replace view onceflow.b as select note, id from onceflow.thing;"})
    report = migrate(dsn, root=root)
    assert report.dropped_views == ("onceflow.b",) and {"view_a", "view_b"} <= set(report.functions)
    columns = "select attname from pg_attribute where attrelid = 'onceflow.b'::regclass and attnum > 0 order by attnum"
    assert cluster.sql(columns, database=name) == [("note",), ("id",)]
    assert cluster.sql("select * from onceflow.a", database=name) == []


def test_a_users_view_is_never_dropped(cluster: Cluster, root: Path) -> None:
    """If a user's own view would go with ours, migrate refuses and names it."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    cluster.sql("create view public.dashboard as select note from onceflow.a", database=name)
    write(root, {"sql/view_b": "create or replace view onceflow.b as select note, id from onceflow.thing;"})
    with pytest.raises(MigrationError, match=r"outside of schema onceflow depend on it: view (public.)?dashboard"):
        migrate(dsn, root=root)
    assert cluster.sql("select * from public.dashboard", database=name) == []


def test_views_that_a_migration_dropped_come_back(cluster: Cluster, root: Path) -> None:
    """After a migration all functions and views are applied again, so one that took a view along does no harm."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    migrate(dsn, root=root)
    write(
        root,
        {"migrations/0002_wide": "drop view onceflow.b cascade; alter table onceflow.thing alter note type varchar(9)"},
    )
    assert migrate(dsn, root=root).migrations == ("0002_wide",)
    assert cluster.sql("select * from onceflow.a", database=name) == []


def test_version_skew_is_told_in_both_directions(cluster: Cluster, root: Path) -> None:
    """check_schema passes on the same version and on newer function texts only; else it says which side to bring on."""
    name = cluster.new_database()
    dsn = cluster.dsn("postgres", name)
    with pytest.raises(VersionSkew, match=r"has no Onceflow schema. Run `onceflow db migrate`"):
        check_schema(dsn, root=root)
    migrate(dsn, root=root)
    write(root, {"sql/zero": "create or replace function onceflow.zero() returns int language sql as 'select 000';"})
    check_schema(dsn, root=root)
    write(root, {"sql/zero_v2": "create or replace function onceflow.zero_v2() returns int language sql as 'select 0';"})
    with pytest.raises(VersionSkew, match=r"lacks zero_v2. Run `onceflow db migrate`"):
        check_schema(dsn, root=root)
    write(root, {"migrations/0002_more": "create table onceflow.more (x int);"})
    with pytest.raises(VersionSkew, match="version 1, this code needs version 2; it lacks 0002_more, zero_v2"):
        check_schema(dsn, root=root)
    migrate(dsn, root=root)
    (root / "migrations/0002_more.sql").unlink()
    for call in (check_schema, migrate):
        with pytest.raises(VersionSkew, match=r"version 2, this code knows only version 1. Upgrade the package"):
            call(dsn, root=root)


def test_the_engines_login_may_check_and_a_stranger_is_told_how(cluster: Cluster, root: Path) -> None:
    """Members of the engine's roles may check the schema; another login is told which role to ask for."""
    name = cluster.new_database()
    migrate(cluster.dsn("postgres", name), root=root)
    embedded.grant_login_roles(cluster.dsn("postgres", name))
    for login in ("worker", "app", "auditor", "onceflow_step"):
        check_schema(cluster.dsn(login, name), root=root)
    with pytest.raises(VersionSkew, match='grant onceflow_worker to "stranger"'):
        check_schema(cluster.dsn("stranger", name), root=root)


@pytest.mark.parametrize("one_database", [True, False])
def test_migrations_at_the_same_time(cluster: Cluster, root: Path, one_database: bool) -> None:
    """Four first migrations at once, of one database or of four with the same roles, all succeed; each applies once."""
    names = [cluster.new_database() for _ in range(1 if one_database else 4)]
    reports: list[Any] = []

    def run(name: str) -> None:
        try:
            reports.append(migrate(cluster.dsn("postgres", name), root=root))
        except Exception as error:
            reports.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in (names * 4)[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report for report in reports if isinstance(report, Exception)] == []
    assert sum(report.is_changed for report in reports) == len(names)


def test_a_foreign_schema_of_that_name_is_not_touched(cluster: Cluster, root: Path) -> None:
    """A schema onceflow that somebody else made is left alone, with an error that says whose it is."""
    name = cluster.new_database()
    cluster.sql("create schema onceflow authorization stranger", database=name)
    with pytest.raises(MigrationError, match="Schema onceflow belongs to stranger"):
        migrate(cluster.dsn("postgres", name), root=root)


def test_old_servers_are_refused_by_name() -> None:
    """PostgreSQL 14 is named and refused; 15 is not."""
    with pytest.raises(MigrationError, match=r"This is PostgreSQL 14\.9; Onceflow needs PostgreSQL 15 or later"):
        refuse_old_server(140009)
    refuse_old_server(150000)


def test_an_unreachable_server_is_named_without_its_password(tmp_path: Path, root: Path) -> None:
    """NoDatabase names the server and never shows the password."""
    dsn = f"postgresql://ann:s3cret@/shop?host={tmp_path}"
    for call in (migrate, check_schema):
        with pytest.raises(NoDatabase, match="Cannot connect to postgresql://ann:") as caught:
            call(dsn, root=root)
        assert "s3cret" not in str(caught.value)
