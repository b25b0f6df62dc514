"""What is measured: one INSERT per step, or nothing."""

import asyncpg

from onceflow import Param, chain, dag, sql_step, step, task


@step
async def insert_one(conn: asyncpg.Connection, n: int) -> int:
    await conn.execute("insert into effect(n) values ($1)", n)
    return n


@step(group_commit=True)
async def insert_grouped(conn: asyncpg.Connection, n: int) -> int:
    await conn.execute("insert into effect(n) values ($1)", n)
    return n


insert_sql = sql_step("insert into effect(n) values ($1)", name="insert_sql")
insert_sql_grouped = sql_step("insert into effect(n) values ($1)", name="insert_sql_grouped", group_commit=True)


@step
async def external(n: int) -> int:
    return n


@step
async def latency(n: int) -> int:
    return n


@task
async def make_list(params: dict[str, int]) -> list[int]:
    return list(range(params["width"]))


@task
async def item(n: int) -> int:
    return n


@task
async def join(values: list[int]) -> list[int]:
    return values


@dag(schedule=None, max_active_tasks=100_000, params={"width": Param(1_000, type="integer")})
def map_join() -> None:
    join(item.expand(n=make_list()))


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@task
def light(n: int) -> int:
    return fibonacci(n)


@task
def long(params: dict[str, int]) -> int:
    return fibonacci(params["n"])


@dag(schedule=None)
def light_40() -> None:
    chain(*[light(10) for _ in range(40)])


@dag(schedule=None, params={"n": Param(33, type="integer")})
def long_10() -> None:
    chain(*[long() for _ in range(10)])


@dag(schedule=None, max_active_runs=1_000, max_active_tasks=10_000)
def fifteen() -> None:
    """1, 6, 1, 6 and 1 tasks after one another, each with one INSERT."""
    chain(insert_one(0), [insert_one(n) for n in range(6)], insert_one(6), [insert_one(n) for n in range(6)], insert_one(12))
