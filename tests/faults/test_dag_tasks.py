"""Tasks of dags over a worker that dies: effect, pushed values, decision and record are all there once, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import Client
from tests.database import TestDatabase
from tests.processes import Workers, write_dags

FLOWS = """
import os, signal
import asyncpg
from onceflow import BaseOperator, EmptyOperator, SQLOperator, current_context, dag, task

def die_once():
    if current_context()["try_number"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)

class Write(BaseOperator):
    async def execute(self, conn: asyncpg.Connection, context):
        context["ti"].xcom_push("pushed", self.task_id)
        await conn.execute("insert into written values ($1)", self.task_id)
        die_once()

@dag(schedule=None)
def dying():
    @task.branch
    async def choose(conn: asyncpg.Connection, ti) -> str:
        ti.xcom_push("why", "asked")
        await conn.execute("insert into written values ('choose')")
        die_once()
        return "taken"

    @task
    def outside(ti) -> str:
        ti.xcom_push("pushed", 1)
        die_once()
        return "done"

    written = Write("write")
    taken = SQLOperator("taken", sql="insert into written values ('taken')")
    written >> choose() >> [taken, EmptyOperator("not_taken")]
    taken >> outside()
"""


@pytest.fixture
def folder(db: TestDatabase, tmp_path: Path) -> Path:
    with db.connect("app") as conn:
        conn.execute("create table written (what text)")
    return write_dags(tmp_path, "flows", FLOWS)


def test_tasks_survive_their_workers(db: TestDatabase, workers: Workers, folder: Path) -> None:
    """Three workers die, each in the midst of a task that has written, pushed or decided; the fourth ends the run, and everything is there once."""
    workers.start(folder, env={"ONCEFLOW_LEASE_S": "1"})
    with Client(db.app_dsn) as client:
        run = client.trigger("dying")
        for alive in range(3):
            workers.started[alive].process.wait(30)
            workers.start(folder, env={"ONCEFLOW_LEASE_S": "1"})
        assert run.result(60) == "success"
    assert sorted(what for (what,) in db.sql("select what from written")) == ["choose", "taken", "write"]
    tis: dict[str, Any] = {task: (state, tries) for task, state, tries in db.sql("select task_id, state, try_number from onceflow.task_instance")}
    assert tis == {"write": ("success", 2), "choose": ("success", 2), "taken": ("success", 1), "not_taken": ("skipped", 0), "outside": ("success", 2)}
    pushed = db.sql("select t.task_id, p.key from onceflow.pushed p join onceflow.ti t on t.run = p.run and t.id = p.ti order by 1")
    assert pushed == [("choose", "why"), ("outside", "pushed"), ("write", "pushed")]
    assert db.sql("select problem from onceflow.verify_ledger()") == []
