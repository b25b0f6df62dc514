"""Dags whose tasks wait for the run before."""

from __future__ import annotations

from datetime import datetime

import asyncpg

from onceflow import EmptyOperator, dag, task


@dag(schedule=None, default_args={"depends_on_past": True}, max_active_runs=20)
def account() -> None:
    """Each day's balance is made out of the day's before."""

    @task
    async def balance(conn: asyncpg.Connection, logical_date: datetime) -> int:
        last = await conn.fetchval("select coalesce(max(id), 9) from account")
        await conn.execute("insert into account values ($1, 0)", last + 1)
        await conn.execute("insert into effect (what, note) values ('account', $1)", f"{logical_date:%d}")
        return int(last + 1)

    balance() >> EmptyOperator("joint") >> EmptyOperator("closed", wait_for_downstream=True)


account()
