"""What a step's SQL can see of other steps while real workers run: no token, so that no step can end or record another one's work."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from onceflow import Client
from tests.database import POLL_S, TestDatabase
from tests.processes import Workers, write_dags

FLOWS = """
    import asyncio
    import asyncpg, psycopg
    from onceflow import commit_with, gather, sql_step, step, workflow

    pay_sql = sql_step("insert into effect values ($1)", name="pay_sql")
    pay_sql_grouped = sql_step("insert into effect values ($1)", name="pay_sql_grouped", group_commit=True)

    @step
    async def pay(conn: asyncpg.Connection, i: int) -> None:
        await conn.execute("insert into effect values ($1)", i)
        await note.start(i)
        await asyncio.sleep(0.01)  # so that the statement before can be seen

    @step(group_commit=True)
    async def pay_grouped(conn: asyncpg.Connection, i: int) -> None:
        await conn.execute("insert into effect values ($1)", i)

    @step
    def pay_late(i: int) -> None:
        with commit_with(psycopg.Connection) as conn:
            conn.execute("insert into effect values (%s)", (i,))

    @step
    def note(i: int) -> None:
        pass

    @workflow
    async def pay_all(i: int) -> None:
        for n in range(5):
            await pay(i)
            await gather(pay_grouped(i), pay_grouped(i), pay_grouped(i))
            await pay_late.aio(i)
            await gather(pay_sql(i), pay_sql_grouped(i), pay_sql_grouped(i), pay_sql_grouped(i))
"""
OTHERS = "select pid, query from pg_stat_activity where usename = 'onceflow_step' and pid <> pg_backend_pid()"


class Watch(threading.Thread):
    """Collects, as a step's login, what it can read of all steps' statements."""

    def __init__(self, db: TestDatabase) -> None:
        super().__init__()
        self.conn = db.connect("step")
        self.seen: set[str] = set()
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            self.seen |= {query for _, query in self.conn.execute(OTHERS).fetchall()}
            time.sleep(POLL_S / 20)


def test_no_statement_of_a_step_holds_a_token(db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """Steps that write, steps in groups, SQL steps, late commits and outboxes: a step that watches pg_stat_activity all the time sees the statements, but no token."""
    db.sql("create table effect (i int)")
    db.sql("create table token (token text primary key)")
    db.sql("grant insert on effect to onceflow_step")
    db.sql("""create function remember() returns trigger language plpgsql as
        'begin insert into public.token values (new.token::text) on conflict do nothing; return null; end'""")
    db.sql("grant insert, select on token to public")
    db.sql("create trigger remember after insert or update on onceflow.lease for each row execute function remember()")
    workers.start(write_dags(tmp_path, "flows", FLOWS), concurrency=8)
    watch = Watch(db)
    watch.start()
    with Client(db.app_dsn) as client:
        runs = [client.start("pay_all", i) for i in range(8)]
        for run in runs:
            run.result(60)
    watch.is_over = True
    watch.join()
    watch.conn.close()
    tokens = {token for (token,) in db.sql("select token from token")}
    assert len(tokens) >= 8
    for name in ("complete_step", "start_task", "set local onceflow.step", "complete_group"):
        assert any(name in query for query in watch.seen), f"{name} was never seen; the test proves nothing"
    assert [query for query in watch.seen for token in tokens if token in query] == []
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_step_cannot_complete_itself(db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """All that a step's SQL knows of its task is a mark; with it nothing can be completed, failed or started."""
    db.sql("create table effect (i int)")
    workers.start(
        write_dags(
            tmp_path,
            "flows",
            """
        import psycopg
        from onceflow import step, workflow

        @step
        def cheat(conn: psycopg.Connection) -> str:
            ti, mark, _ = conn.execute("select current_setting('onceflow.step')").fetchone()[0].split("/")
            try:
                with conn.transaction():
                    token = f"{mark[:8]}-{mark[8:12]}-{mark[12:16]}-{mark[16:20]}-{mark[20:32]}"
                    conn.execute("select onceflow.complete_step(%s, %s, %s, 'forged#0', 'forged', 'external', 1, '{}', 'h', '1', 0)", (ti, ti, token))
            except psycopg.Error as error:
                return error.sqlstate
            return "recorded"

        @workflow
        def cheats() -> str:
            return cheat()
        """,
        )
    )
    with Client(db.app_dsn) as client:
        assert client.start("cheats").result(30) == "OF001"
    assert {row[0] for row in db.sql("select step_key from onceflow.step_ledger")} == {"cheat#0", "cheats"}
