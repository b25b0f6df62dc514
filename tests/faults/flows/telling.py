"""Steps that take a message, send one, and start a child run and a task, in their own transaction, and then stand at a gate."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
from gates import pass_gate, pass_gate_blocking
from payments import pay, pay_as_task

from onceflow import commit_with, recv, send, step, workflow

INSERT = "insert into effect (step, key, note) values ('{}', '{}', '{}')"


@workflow
async def follow_up(key: str) -> str:
    await pay(f"{key}/child")
    return key


@step
async def tell(conn: asyncpg.Connection, key: str, to: int, gate: str) -> Any:
    await conn.execute(INSERT.format("tell", key, await recv("inbox", timeout=0)))
    await send(to, key, "told")
    child = await follow_up.start(key)
    await pay_as_task.start(f"{key}/task")
    await pass_gate(gate, key)
    return child


@step
def tell_blocking(conn: psycopg.Connection, key: str, to: int, gate: str) -> Any:
    conn.execute(INSERT.format("tell_blocking", key, recv("inbox", timeout=0)))
    return tell_and_start(key, to, gate)


@step
def tell_late(key: str, to: int, gate: str) -> Any:
    with commit_with(psycopg.Connection) as conn:
        conn.execute(INSERT.format("tell_late", key, recv("inbox", timeout=0)))
        return tell_and_start(key, to, gate)


def tell_and_start(key: str, to: int, gate: str) -> Any:
    send(to, key, "told")
    child = follow_up.start(key)
    pay_as_task.start(f"{key}/task")
    pass_gate_blocking(gate, key)
    return child


@workflow
async def tell_all(key: str, to: int, gate: str = "") -> str:
    await recv("go")
    child = await tell(key, to, gate)
    return str(await child.result())


@workflow
def tell_all_blocking(key: str, to: int, gate: str = "") -> str:
    recv("go")
    return str(tell_blocking(key, to, gate).result())


@workflow
def tell_all_late(key: str, to: int, gate: str = "") -> str:
    recv("go")
    return str(tell_late(key, to, gate).result())


@workflow
async def hear_all(count: int) -> list[str]:
    return sorted([await recv("told") for _ in range(count)])
