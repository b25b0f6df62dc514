"""Payments: a transactional step here writes one row of `effect`, so rows and ledger successes must match one to one."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
from gates import pass_gate, pass_gate_blocking

import onceflow
from onceflow import commit_with, sql_step, step, workflow

pay_sql = sql_step("insert into effect (step, key) values ('pay', $1) returning id", name="pay_sql")
pay_sql_in_group = sql_step("insert into effect (step, key) values ('pay', $1) returning id", name="pay_sql_in_group", group_commit=True)


@step
async def pay(conn: asyncpg.Connection, key: str, gate: str = "") -> int:
    """One row, then the gate."""
    number: int = await conn.fetchval("insert into effect (step, key) values ('pay', $1) returning id", key)
    await pass_gate(gate, key)
    return number


@step
def pay_blocking(conn: psycopg.Connection, key: str, gate: str = "") -> int:
    """The same in a thread."""
    row = conn.execute("insert into effect (step, key) values ('pay', %s) returning id", (key,)).fetchone()
    assert row is not None
    pass_gate_blocking(gate, key)
    return int(row[0])


@step
async def fetch(key: str, gate: str = "") -> str:
    """An external step."""
    await pass_gate(gate, key)
    return f"fetched {key}"


@step
def pay_late(key: str, gate: str = "") -> int:
    """An external step whose effect commits with its record."""
    with commit_with(psycopg.Connection) as conn:
        row = conn.execute("insert into effect (step, key) values ('pay_late', %s) returning id", (key,)).fetchone()
    pass_gate_blocking(gate, key)
    return int(row[0])


@workflow
async def one_payment(key: str, gate: str = "") -> int:
    return await pay(key, gate)


@workflow
def one_payment_blocking(key: str, gate: str = "") -> int:
    return pay_blocking(key, gate)


@workflow
def one_late_payment(key: str, gate: str = "") -> int:
    return pay_late(key, gate)


@workflow
async def long_external(key: str, gate: str = "") -> str:
    return await fetch(key, gate)


@workflow
async def three_payments(key: str) -> str:
    """Three steps, of the kinds that commit in different ways."""
    await pay(f"{key}/1")
    await pay_blocking.aio(f"{key}/2")
    await pay(f"{key}/3")
    return key


@workflow
async def mixed_payments(key: str) -> str:
    """External and transactional steps, side by side and one after the other."""
    first, number = await onceflow.gather(fetch(f"{key}/a"), pay(f"{key}/b"))
    await pay_late.aio(f"{key}/c")
    return f"{first} {number > 0}"


@workflow
async def twenty_payments(key: str) -> int:
    """Twenty at once, each of which stands at three gates, so that it is run again in the middle of the others' retries."""
    return len(await onceflow.gather(*(pay_thrice_gated(f"{key}/{number}") for number in range(20))))


@step
async def pay_thrice_gated(conn: asyncpg.Connection, key: str) -> None:
    await conn.execute("insert into effect (step, key) values ('pay_thrice_gated', $1)", key)
    for gate in ("one", "two", "three"):
        await pass_gate(gate, key)


@step
async def pay_as_task(conn: asyncpg.Connection, key: str) -> None:
    await conn.execute("insert into effect (step, key) values ('pay_as_task', $1)", key)


@step
async def pay_and_start(conn: asyncpg.Connection, key: str, gate: str) -> Any:
    """The outbox: what it starts commits with its row."""
    await conn.execute("insert into effect (step, key) values ('pay_and_start', $1)", key)
    handle = await pay_as_task.start(f"{key}/task")
    await pass_gate(gate, key)
    return handle


@workflow
async def await_outbox(key: str, gate: str) -> str:
    handle = await pay_and_start(key, gate)
    await handle.result()
    return key


@workflow
async def with_task(key: str) -> str:
    """A step that runs as a task of its own."""
    handle = await pay_as_task.start(key)
    await handle.result()
    return key
