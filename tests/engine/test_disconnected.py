"""Sessions that end, and sessions that ought to: a step that ends its own is told so, and what a stopped process has locked becomes free."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow import Client, StepDisconnected
from onceflow.db import calls, link
from onceflow.db.driver_errors import is_connection_lost
from tests.database import TestDatabase
from tests.processes import write_dags
from tests.proxy import Proxy

FLOWS = """
import asyncpg
from onceflow import step

@step
async def cut(conn: asyncpg.Connection) -> None:
    await conn.execute("insert into effect values (1)")
    await conn.execute("select pg_terminate_backend(pg_backend_pid())")
"""


def test_a_step_that_ends_its_session_fails_by_name(db: TestDatabase, workers, tmp_path: Path) -> None:
    """After a bounded number of losses the task fails with StepDisconnected, and no row is left."""
    db.sql("create table effect(n int)")
    db.sql("grant all on effect to onceflow_step")
    workers.start(write_dags(tmp_path, "flows", FLOWS))
    with Client(db.app_dsn) as client, pytest.raises(StepDisconnected, match="lost its connection 13 times"):
        client.start("cut", run_id="r1").result(timeout_s=60)
    assert db.sql("select count(*) from effect") == [(0,)]


@pytest.mark.server("pgbouncer")
async def test_a_process_stopped_between_a_call_and_its_commit_lets_go_of_its_locks(db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler a call of the engine's is a transaction of three messages: when the last does not come, the server ends it."""
    monkeypatch.setattr(link, "STOPPED_S", 4)
    with Proxy(db.worker_dsn) as proxy:
        engine = link.Link(proxy.dsn(db.worker_dsn))
        await engine.open()
        assert engine.pooled
        fault = proxy.cut_next(b"commit", when="held", skip=1)  # the first is BEGIN's READ COMMITTED
        with pytest.raises(Exception) as lost:
            await engine.call(calls.register_worker(7, "h", 1, ["default"], 10, "[]"))
        assert is_connection_lost(lost.value)
        fault.wait()
        with db.connect() as other, other.transaction():
            other.execute("set local statement_timeout = '20s'")
            other.execute("lock table onceflow.worker")
        await engine.close()
