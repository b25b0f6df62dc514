"""Two branches that each look something up and pay for it. A is slow at every gate, B passes all of them."""

from __future__ import annotations

import asyncio

import asyncpg
from gates import pass_gate

import onceflow
from onceflow import step, workflow


@step
async def lookup(item: str) -> str:
    if item.startswith("A"):
        await pass_gate("lookup", item)
    return f"price of {item}"


@step
async def pay_for(conn: asyncpg.Connection, item: str, price: str) -> str:
    if item.startswith("A"):
        await pass_gate("before-insert", item)
    await conn.execute("insert into effect (step, key, note) values ('pay_for', $1, $2)", item, price)
    if item.startswith("A"):
        await pass_gate("after-insert", item)
    return f"paid {item}"


async def branch(item: str) -> str:
    price = await lookup(item)
    return await pay_for(item, price)


@workflow
async def pay_both(number: int) -> list[str]:
    return list(await asyncio.gather(branch(f"A{number}"), branch(f"B{number}")))


@workflow
async def pay_both_durably(number: int) -> list[str]:
    return list(await onceflow.gather(branch(f"A{number}"), branch(f"B{number}")))


@step
async def pay_number(conn: asyncpg.Connection, number: int, gate: str) -> int:
    await conn.execute("insert into effect (step, key) values ('pay_number', $1)", str(number))
    await pass_gate(gate, str(number))
    return number


@workflow
async def pay_swapped(first: int) -> list[int]:
    """Three branches of the same step in the same scope; the middle one is slow."""
    return list(await asyncio.gather(pay_number(first, ""), pay_number(first + 1, "slow-b"), pay_number(first + 2, "slow-b")))
