"""What clients start."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg

from onceflow import AsyncClient, Client, current_run, recv, sleep, step, workflow


class Overdrawn(Exception):
    def __init__(self, account: int, missing: Decimal) -> None:
        super().__init__(account, missing)
        self.account, self.missing = account, missing


@step
async def debit(conn: asyncpg.Connection[Any], account: int, amount: Decimal) -> Decimal:
    left = await conn.fetchval("update account set balance = balance - $2 where id = $1 returning balance", account, amount)
    if left < 0:
        raise Overdrawn(account, -left)
    return Decimal(left)


@step
def credit(conn: psycopg.Connection, account: int, amount: Decimal) -> Decimal:
    row = conn.execute("update account set balance = balance + %s where id = %s returning balance", (amount, account)).fetchone()
    assert row is not None
    return Decimal(row[0])


@workflow
async def transfer(source: int, target: int, amount: Decimal) -> str:
    await debit(source, amount)
    await credit.aio(target, amount)
    return f"moved {amount}"


@workflow
async def describe(first: Any, second: int = 2, *, third: str = "3") -> list[Any]:
    return [first, second, third]


@workflow
async def held(topic: str = "") -> Any:
    return await recv(topic)


@workflow
async def dozing(seconds: float) -> None:
    await sleep(seconds)


@workflow(retries=1, timeout=timedelta(seconds=30), queue="slow")
async def declared() -> list[Any]:
    if current_run().try_number == 1:
        raise ValueError("first")
    return ["second"]


@step
def starts_from_step(conn: psycopg.Connection, dsn: str, fails: bool) -> str:
    """A start inside the step's own transaction commits with it."""
    with Client(dsn) as client:
        run_id = f"from-step-{fails}"
        client.start("describe", 1, conn=conn, run_id=run_id)
    if fails:
        raise ValueError("rolled back")
    return run_id


@step
async def starts_from_async_step(conn: asyncpg.Connection[Any], dsn: str) -> str:
    async with AsyncClient(dsn) as client:
        return (await client.start("describe", 1, conn=conn, run_id="from-async-step")).run_id


@workflow
async def starter(dsn: str) -> list[Any]:
    found = [await starts_from_step.aio(dsn, False), await starts_from_async_step(dsn)]
    try:
        await starts_from_step.aio(dsn, True)
    except ValueError as error:
        found.append(str(error))
    return found


@workflow
async def typed_date(when: datetime) -> datetime:
    return when
