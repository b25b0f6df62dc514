"""Dags for the tests of graphs."""

from __future__ import annotations

from typing import Any

import asyncpg

from onceflow import EmptyOperator, dag, task


@task
def give(value: Any) -> Any:
    return value


@task
async def write(conn: asyncpg.Connection[Any], note: str) -> str:
    await conn.execute("insert into effect (what, note) values ('dag', $1)", note)
    return note


@dag(schedule=None)
def etl() -> None:
    @task()
    def extract() -> list[int]:
        return [1, 2, 3]

    @task
    def double(x: int, times: int = 1) -> int:
        return 2 * x * times

    @task
    def total(xs: list[int]) -> int:
        return sum(xs)

    total(double.partial(times=10).expand(x=extract()))


@dag(schedule=None)
def diamond() -> None:
    """Two transactional branches that meet."""
    begin = EmptyOperator("begin")
    left, right = write.override(task_id="left")("left"), write.override(task_id="right")("right")
    begin >> [left, right]
    give.override(task_id="join")([left, right])


@dag(schedule=None)
def broken() -> None:
    @task
    def fail() -> None:
        raise ValueError("no")

    failed = fail()
    give.override(task_id="after")(failed)
    give.override(task_id="cleanup", trigger_rule="one_failed")("cleaned") << failed


@dag(schedule=None, max_active_tasks=32)
def crowd() -> None:
    """Many tasks of one small pool."""
    give.partial().override(task_id="one", pool="api_pool").expand(value=list(range(40))) >> EmptyOperator("end")
