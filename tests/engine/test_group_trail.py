"""Who wrote a row of a group: on a tracked table the very step, elsewhere all steps of the group by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow import Client
from tests.database import TestDatabase
from tests.processes import Workers, write_dags

FLOWS = """
    import asyncpg
    from onceflow import gather, step, workflow

    @step(group_commit=True)
    async def pay(conn: asyncpg.Connection, i: int) -> None:
        await conn.execute("insert into payments (note) values ($1)", str(i))

    @workflow
    async def pay_many(i: int) -> None:
        for _ in range(4):
            await gather(*[pay(n) for n in range(10)])
"""
GROUPS = "select count(*) from (select from onceflow.step_ledger where step_name = 'pay' group by xid having count(*) > 1) g"
WRITERS = """
    select p.id, p.note, array_agg(distinct w.how), bool_or(w.step_key is null), count(*),
        bool_or(w.step_key = any(select step_key from onceflow.step_ledger l where l.xid = w.xid and l.inputs ->> 'i' = p.note))
    from payments p, onceflow.who_wrote(p.tableoid, p.ctid) w group by 1, 2"""


@pytest.mark.parametrize("is_tracked", [True, False], ids=["tracked", "not tracked"])
def test_a_group_s_rows(db: TestDatabase, workers: Workers, tmp_path: Path, is_tracked: bool) -> None:
    """Tracked: one step for each row, and the right one. Else: the steps of the row's transaction, the right one among them."""
    with db.connect("app") as conn:
        conn.execute("create table payments (id int generated always as identity primary key, note text)")
        if is_tracked:
            conn.execute("select onceflow.track('payments')")
    workers.start(write_dags(tmp_path, "flows", FLOWS), concurrency=16)
    with Client(db.app_dsn) as client:
        for run in [client.start("pay_many", i) for i in range(4)]:
            run.result(60)
    assert db.sql(GROUPS)[0][0] > 3, "no groups; the test proves nothing"
    rows = db.sql(WRITERS)
    assert len(rows) == 160
    for _, _, hows, is_unknown, count, has_right_one in rows:
        assert has_right_one and not is_unknown
        assert hows == ["tracked"] and count == 1 if is_tracked else hows in (["group"], ["exact"])
    assert db.sql("select * from onceflow.verify_ledger()") == []
