"""A user's file, for type checkers: test_typing reads the comments and compares them with what mypy --strict says of each line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import reveal_type

import asyncpg
import psycopg
import sqlalchemy.ext.asyncio as sa_asyncio
from sqlalchemy.orm import Session

from onceflow import AsyncClient, Client, RetryPolicy, Trial, commit_with, gather, now, sleep, step, workflow


@step(retries=3, retry_delay=timedelta(seconds=1))
async def debit(conn: asyncpg.Connection[asyncpg.Record], account: int, amount: Decimal) -> Decimal:
    return Decimal(await conn.fetchval("select $1::numeric", amount))


@step
def credit(conn: psycopg.Connection, account: int, amount: Decimal) -> Decimal:
    return amount


@step(retry=RetryPolicy(retries=2))
async def list_orders(session: sa_asyncio.AsyncSession, limit: int = 10) -> list[str]:
    return ["x"] * limit


@step(isolation="serializable")
def count_orders(session: Session) -> int:
    return 1


@step
def fetch_rate(currency: str) -> Decimal:
    with commit_with(psycopg.Connection) as conn:
        conn.execute("select 1")
    return Decimal(1)


@step(execution_timeout=timedelta(minutes=1))
async def fetch_rate_async(currency: str) -> Decimal:
    return Decimal(1)


@workflow
async def transfer(source: int, target: int, amount: Decimal) -> str:
    reveal_type(await debit(source, amount))  # Decimal
    reveal_type(await credit.aio(target, amount))  # Decimal
    reveal_type(await list_orders())  # list[str]
    reveal_type(await count_orders.aio())  # int
    reveal_type(await fetch_rate.aio("USD"))  # Decimal
    reveal_type(await fetch_rate_async("USD"))  # Decimal
    await asyncio.gather(debit(source, amount), debit(target, amount))
    await gather(debit(source, amount), credit.aio(target, amount))
    await sleep(1)
    await debit(source)  # error: Missing positional argument "amount"
    await debit(source, "ten")  # error: incompatible type "str"; expected "Decimal"
    await debit(source, amount, conn=None)  # error: Unexpected keyword argument "conn"
    return f"{await now()}"


@workflow(retries=1, timeout=timedelta(hours=1), queue="slow")
def plain_transfer(source: int, amount: Decimal = Decimal(1)) -> Decimal:
    reveal_type(credit(source, amount))  # Decimal
    reveal_type(fetch_rate("USD"))  # Decimal
    credit(None, source, amount)  # error: Too many arguments
    return amount


def start_them(client: Client) -> None:
    reveal_type(client.using(run_id="pay-43", queue="fast").start(transfer, 1, 2, Decimal(1)).result())  # str
    reveal_type(client.using().start(plain_transfer, source=1).result(timeout_s=3))  # Decimal
    reveal_type(client.using().start(credit, 1, Decimal(1)).result())  # Decimal
    client.using().start(transfer, 1, 2)  # error: Missing positional argument "amount"
    client.using().start(transfer, 1, "2", Decimal(1))  # error: incompatible type "str"; expected "int"
    client.start(transfer, 1, 2, Decimal(1), run_id="pay-42").cancel("why not")


def try_them() -> None:
    reveal_type(transfer.test(1, 2, Decimal(1), setup="create table account (id int)"))  # str
    reveal_type(plain_transfer.test(1))  # Decimal
    with Trial() as trial:
        reveal_type(trial.run(transfer, 1, 2, Decimal(1)))  # str
        reveal_type(trial.wait(trial.client.using(deduplicate="daily").start(plain_transfer, 1)))  # Decimal
        trial.run(transfer, 1, 2)  # error: Missing positional argument "amount"
    transfer.using(deduplicate="daily").start(1, 2)  # error: Missing positional argument "amount"


async def start_them_async(client: AsyncClient) -> None:
    run = await client.using(run_id="pay-44").start(transfer, 1, 2, Decimal(1))
    reveal_type(await run.result())  # str
    await client.using().start(transfer, 1, 2)  # error: Missing positional argument "amount"


@step
def wrong_kind(conn: psycopg.Connection) -> int:
    return "one"  # error: Incompatible return value type
