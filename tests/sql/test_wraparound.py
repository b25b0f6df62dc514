"""A server that has used up its 2^32 transaction ids: who_wrote must not take a row of the round before for one of this round."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from onceflow.db.embedded import LOGIN_ROLES, grant_login_roles
from onceflow.db.migrate import migrate
from tests.database import TestDatabase
from tests.servers import POSTGRES_15, Server, ServerMissing, as_account, start_postgres_15
from tests.sql.drive import Drive

OLD_ROWS = 1500


@pytest.fixture(scope="module")
def wrapped() -> Iterator[Server]:
    """A PostgreSQL 15 with frozen rows of many old transactions, whose ids then start again where those were given out, one round later."""
    try:
        server, dsn = start_postgres_15()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with psycopg.connect(dsn("postgres", "postgres"), autocommit=True) as conn:
        conn.execute("create table old_rows (id int primary key)")
        conn.execute("grant all on old_rows to public")
        first = int(conn.execute("select pg_current_xact_id()::text").fetchall()[0][0])
        for number in range(OLD_ROWS):
            conn.execute("insert into old_rows values (%s)", (number,))
        conn.execute("vacuum freeze")
    with psycopg.connect(dsn("postgres", "template1"), autocommit=True) as other:
        other.execute("vacuum freeze")
    assert server.process is not None
    server.process.send_signal(server.stop_signal)
    server.process.wait(timeout=20)
    reset = [POSTGRES_15 / "pg_resetwal", "-x", str(first), "-e", "1", server.folder / "data"]
    subprocess.run(reset, check=True, capture_output=True, cwd=server.folder, **as_account(server.account))
    server.start(dsn("postgres", "postgres"))
    with psycopg.connect(dsn("postgres", "postgres"), autocommit=True) as conn:
        for login in LOGIN_ROLES:
            conn.execute(f"create role {login} login".encode())
    yield Server("15", dsn, dsn, server.stop)
    server.stop()


def test_a_row_of_the_round_before_is_not_taken_for_the_step_s(wrapped: Server) -> None:
    """Rows of a table made since the ledger was are answered exactly; of an older table, whose frozen rows carry the very ids of today's entries, 'unknown'."""
    dsn = wrapped.direct_dsn("postgres", "postgres")
    migrate(dsn)
    grant_login_roles(dsn)
    db = TestDatabase(wrapped, "postgres")
    drive = Drive(db)
    drive.app.execute("create table payments (id int primary key)")
    task = drive.start()
    for number in range(50):
        drive.write(task, f"pay#{number}", f"insert into payments values ({number})")
    drive.write(task, "pay#50", f"insert into old_rows values ({OLD_ROWS})")
    assert [row["how"] for row in drive.who_wrote("payments")] == ["exact"] * 50
    meeting = "select count(*) from old_rows o join onceflow.step_ledger l on l.xid::xid = o.xmin and o.id < 1500"
    assert db.sql(meeting)[0][0] > 20, "what the test is about: today's steps have the ids of old rows"
    assert {row["how"] for row in drive.who_wrote("old_rows")} == {"unknown"}
    assert drive.findings() == []
    drive.seal()
    assert drive.findings() == []
    drive.db.sql("update onceflow.step_ledger set output = '7' where step_key = 'pay#7'")
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l) where step_key = 'pay#7'")
    assert drive.problems() == ["changed entry", "rewritten entry"]
    drive.close()
    db.close()
