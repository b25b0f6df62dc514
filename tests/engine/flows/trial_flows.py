"""What trials run."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import asyncpg
import psycopg

from onceflow import continue_as, now, recv, sleep, step, workflow


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
def pay_in(conn: psycopg.Connection, account: int, amount: Decimal) -> list[str]:
    conn.execute("update account set balance = balance + %s where id = %s", (amount, account))
    return [str(value) for value in conn.execute("select current_database(), session_user").fetchone() or ()]


@workflow(queue="a queue of its own")
async def pay_over(source: int, target: int, amount: Decimal) -> list[str]:
    await debit(source, amount)
    return await pay_in.aio(target, amount)


@step(retries=2, retry_delay=timedelta(hours=5))
def fails_twice(before: list[str]) -> int:
    raise ValueError("no")


@workflow
async def patient() -> list[float]:
    """Hours that it believes to have waited: for a sleep, for the retries of a step."""
    moments = [await now()]
    await sleep(timedelta(days=3))
    moments.append(await now())
    try:
        await fails_twice.aio([])
    except ValueError:
        moments.append(await now())
    return [round((later - earlier).total_seconds() / 3600, 1) for earlier, later in pairwise(moments)]


@workflow
async def loops(n: int) -> int:
    if n == 0:
        return 0
    await sleep(timedelta(minutes=1))
    await continue_as(n - 1)
    raise AssertionError("unreachable")


@workflow(timeout=timedelta(hours=2))
async def out_of_time() -> None:
    await recv("never")


@workflow
async def asks() -> Any:
    return await recv("answer")


@workflow(queue="children")
async def paid_child(amount: Decimal) -> list[str]:
    return await pay_in.aio(1, amount)


@workflow
async def pays_by_child(amount: Decimal) -> list[str]:
    return list(await (await paid_child.start(amount)).result())


@step
def double(value: int) -> int:
    return 2 * value


@workflow
def threads_badly() -> str:
    caught: list[str] = []

    def work() -> None:
        try:
            double(1)
        except Exception as error:
            caught.append(type(error).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return caught[0]


@workflow
async def copies(setup: str, dsn: str = "") -> str:
    return setup + dsn


@workflow
async def today(when: datetime | None = None) -> datetime:
    return when or await now()
