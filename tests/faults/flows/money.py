"""Money: whatever happens, the sum stays the same and every transfer is booked once."""

from __future__ import annotations

import asyncpg
import psycopg
from payments import fetch

import onceflow
from onceflow import step, workflow


@step
async def debit(conn: asyncpg.Connection, key: str, account: int, amount: int) -> int:
    await conn.execute("insert into effect (step, key, note) values ('debit', $1, $2)", key, str(-amount))
    balance: int = await conn.fetchval("update counter set value = value - $2 where id = $1 returning value", account, amount)
    return balance


@step
def credit(conn: psycopg.Connection, key: str, account: int, amount: int) -> int:
    conn.execute("insert into effect (step, key, note) values ('credit', %s, %s)", (key, str(amount)))
    row = conn.execute("update counter set value = value + %s where id = %s returning value", (amount, account)).fetchone()
    assert row is not None
    return int(row[0])


@workflow
async def transfer(key: str, source: int, target: int, amount: int) -> str:
    """All forms on the way: an external step, a durable pause, a step as a task of its own, parallel branches."""
    await fetch(key)
    if amount % 3 == 0:
        await onceflow.sleep(0.3)
    if amount % 4 == 0:
        handle = await debit.start(key, source, amount)
        await handle.result()
        await credit.aio(key, target, amount)
    else:
        await onceflow.gather(debit(key, source, amount), credit.aio(key, target, amount))
    return key
