"""Steps in another database: exactly once there too, over a crash between the effect there and the record here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onceflow import AuthoringError, Client, RunFailed
from onceflow.db.outpost import install_outpost
from tests.database import TestDatabase
from tests.engine.local_worker import wait_until
from tests.processes import write_dags

FLOWS = """
import psycopg
from onceflow import SQLOperator, current_run, dag, send, step, task, workflow

@step(database="books")
def mirror(conn: psycopg.Connection, n: int) -> int:
    conn.execute("insert into mirrored values (%s)", (n,))
    return n * 10

@step(database="books", retries=2)
def mirror_third_time(conn: psycopg.Connection, n: int) -> int:
    conn.execute("insert into mirrored values (%s)", (n,))
    conn.execute("create table if not exists tried(x int)")
    if len(conn.execute("select 1 from attempts_seen").fetchall()) < 2:
        other = psycopg.connect(DSN, autocommit=True)
        other.execute("insert into attempts_seen values (1)")
        other.close()
        raise ValueError("not yet")
    return n

@step(database="books")
def mirror_and_tell(conn: psycopg.Connection, n: int) -> None:
    conn.execute("insert into mirrored values (%s)", (n,))
    send(current_run(), n)

@step(database="books")
def mirror_and_start(conn: psycopg.Connection, n: int) -> None:
    conn.execute("insert into mirrored values (%s)", (n,))
    lost.start()

@step(database="nowhere")
def lost(conn: psycopg.Connection) -> None: ...

@workflow
def copy_over(n: int) -> int:
    return mirror(n)

@workflow
def copy_stubborn(n: int) -> int:
    return mirror_third_time(n)

@workflow
def copy_and_tell(n: int) -> None:
    mirror_and_tell(n)

@workflow
def copy_and_start(n: int) -> None:
    mirror_and_start(n)

@workflow
def copy_lost() -> None:
    lost()

@dag(schedule=None)
def copies():
    @task(database="books", multiple_outputs=True)
    def several(conn: psycopg.Connection) -> dict:
        conn.execute("insert into mirrored values (1)")
        return {"left": 41}

    @task(database="books")
    def push(conn: psycopg.Connection, ti) -> None:
        ti.xcom_push("key", 1)

    push() << SQLOperator("write", sql="insert into mirrored values (%s) returning n", parameters=[several()["left"]], database="books")
"""


def until(conn: psycopg.Connection, query: str, timeout_s: float = 30) -> None:
    """Asks until the answer is true."""
    deadline = time.monotonic() + timeout_s
    while not conn.execute(query).fetchone()[0]:
        assert time.monotonic() < deadline, query


def dsn_of(dsn: str, database: str) -> str:
    """The same server and login, another database, as a URL."""
    assert dsn.startswith("postgresql://")
    head, _, tail = dsn.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{database}?{tail}"


@pytest.fixture
def books(db: TestDatabase) -> Iterator[tuple[str, str]]:
    """A second database with an outpost: (superuser DSN, step DSN)."""
    name = f"{db.name}_books"
    with db.connect() as conn:
        conn.execute(f"create database {name}")
    admin, step = dsn_of(db.superuser_dsn, name), dsn_of(db.step_dsn, name)
    try:
        install_outpost(admin, step)
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(
                "create table mirrored(n int); create table attempts_seen(x int); grant all on all tables in schema public to public; grant create on schema public to public"
            )
        yield admin, step
    finally:
        with db.connect() as conn:
            conn.execute(f"drop database if exists {name} with (force)")


def test_effect_there_and_record_here_survive_a_crash_between_them(db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str]) -> None:
    """The worker dies after the commit there and before the record here: the next one records what is there, and writes nothing again."""
    admin, step = books
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin))))
    environment = {"ONCEFLOW_DATABASE_BOOKS": step, "ONCEFLOW_LEASE_S": "2"}
    first = workers.start(dags, env=environment)
    client = Client(db.app_dsn)
    with db.connect() as here, psycopg.connect(admin) as there:
        there.execute("lock table mirrored in access exclusive mode")
        run = client.start("copy_over", 7, run_id="r1")
        with psycopg.connect(admin, autocommit=True) as look:
            until(look, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')")
            # The step waits for its table. Before it may go on, the record here is made to wait for its lease.
            here.autocommit = False
            here.execute("select from onceflow.lease for update")
            there.rollback()
            until(look, "select exists (select from onceflow_outpost.step where done_at is not null)")
        first.kill()
        assert db.sql("select 1 from onceflow.step_ledger where step_name = 'mirror' and to_state = 'success'") == []
        here.rollback()
    workers.start(dags, env=environment)
    assert run.result(timeout_s=30) == 70
    with psycopg.connect(admin, autocommit=True) as there:
        assert there.execute("select n from mirrored").fetchall() == [(7,)]
        assert there.execute("select output, done_at is not null from onceflow_outpost.step").fetchall() == [("70", True)]
    client.close()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "under way"])
def test_a_run_that_is_cancelled_in_between_and_tried_again_writes_once(
    db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str], committed: bool
) -> None:
    """Before the record here, the worker stops for a while and the run is cancelled. The retry takes what was committed there; what was still
    under way cannot land any more when the worker goes on."""
    admin, step = books
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin))))
    environment = {"ONCEFLOW_DATABASE_BOOKS": step}
    first = workers.start(dags, env=environment)
    with Client(db.app_dsn) as client, db.connect() as here, psycopg.connect(admin) as there, psycopg.connect(admin, autocommit=True) as look:
        there.execute("lock table mirrored in access exclusive mode")
        run = client.start("copy_over", 7)
        until(look, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')")
        if committed:
            here.autocommit = False
            here.execute("select from onceflow.lease for update")
            there.rollback()
            until(look, "select exists (select from onceflow_outpost.step where done_at is not null)")
            first.kill()
            here.rollback()
        else:
            first.stop()
        run.cancel()
        run.retry()
        there.rollback()
        workers.start(dags, env=environment)
        assert run.result(timeout_s=30) == 70
        if not committed:
            first.resume()
            until(look, "select not exists (select from pg_stat_activity where datname = current_database() and state like 'idle in transaction%')")
            assert first.terminate() == 0
        assert look.execute("select n from mirrored").fetchall() == [(7,)]
        assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_lost_commit_is_no_failure(db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str]) -> None:
    """The connection dies as the commit there is sent, and the database refuses another one for a while: nothing is recorded until it has told."""
    admin, step = books
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin))))
    with psycopg.connect(admin, autocommit=True) as look:
        look.execute(
            "create function nap() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return null; end $$;"
            "create constraint trigger nap after insert on mirrored deferrable initially deferred for each row when (new.n = 7) execute function nap()"
        )
        worker = workers.start(dags, env={"ONCEFLOW_DATABASE_BOOKS": step})
        with Client(db.app_dsn) as client:
            run = client.start("copy_over", 7)
            until(look, "select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')")
            look.execute(f"revoke connect on database {look.info.dbname} from public")
            look.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'")
            wait_until(lambda: "permission denied for database" in worker.log_text() or db.server.name == "pgbouncer")  # which keeps trying in our place
            look.execute("drop trigger nap on mirrored")
            look.execute(f"grant connect on database {look.info.dbname} to public")
            assert run.result(timeout_s=30) == 70
            assert [e["to_state"] for e in run.steps() if e["step_name"] == "mirror"] == ["started", "success"]
        assert look.execute("select n from mirrored").fetchall() == [(7,)]


def test_failed_tries_leave_nothing_there(db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str]) -> None:
    """A step that writes there and raises twice leaves one row, from its third try."""
    admin, step = books
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin))))
    workers.start(dags, env={"ONCEFLOW_DATABASE_BOOKS": step})
    with Client(db.app_dsn) as client:
        run = client.start("copy_stubborn", 5)
        assert run.result(timeout_s=30) == 5
        states = [e["to_state"] for e in run.steps() if e["step_name"] == "mirror_third_time"]
    assert states == ["started", "up_for_retry", "started", "up_for_retry", "started", "success"]
    with psycopg.connect(admin, autocommit=True) as there:
        assert there.execute("select n from mirrored").fetchall() == [(5,)]


@pytest.mark.parametrize("name", ["copy_and_tell", "copy_and_start"])
def test_what_cannot_commit_with_the_other_database_is_refused(db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str], name: str) -> None:
    """A message or a start would commit here and not there: the step fails by name and leaves nothing in either."""
    admin, step = books
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin))))
    workers.start(dags, env={"ONCEFLOW_DATABASE_BOOKS": step})
    with Client(db.app_dsn) as client, pytest.raises(AuthoringError, match=r"whose transaction is in database 'books'.*in the workflow's body"):
        client.start(name, 5).result(timeout_s=30)
    assert db.sql("select count(*) from onceflow.message") == [(0,)]
    with psycopg.connect(admin, autocommit=True) as there:
        assert there.execute("select n from mirrored").fetchall() == []


def test_unknown_database_is_named(db: TestDatabase, workers, tmp_path: Path) -> None:
    """A step of a database this worker has no DSN for fails with the name and the setting that is missing."""
    dags = write_dags(tmp_path, "flows", FLOWS.replace("DSN", "''"))
    workers.start(dags)
    with Client(db.app_dsn) as client, pytest.raises(Exception, match="ONCEFLOW_DATABASE_NOWHERE"):
        client.start("copy_lost").result(timeout_s=30)


def test_a_task_of_a_dag_writes_there(db: TestDatabase, workers, tmp_path: Path, books: tuple[str, str]) -> None:
    """SQLOperator(database=…) and @task(database=…) are steps of the outpost; what is pushed could be lost, so it is refused by name."""
    admin, step = books
    workers.start(write_dags(tmp_path, "flows", FLOWS.replace("DSN", repr(make_conninfo(admin)))), env={"ONCEFLOW_DATABASE_BOOKS": step})
    with Client(db.app_dsn) as client, pytest.raises(RunFailed, match="task push failed: xcom_push in task push, whose transaction is in another database"):
        client.trigger("copies").result(30)
    with psycopg.connect(admin, autocommit=True) as there:
        assert there.execute("select n from mirrored order by n").fetchall() == [(1,), (41,)]
    assert db.sql("select distinct kind from onceflow.step_ledger where task_id in ('write', 'several')") == [("outpost",)]
