"""Steps that compute without a pause."""

from __future__ import annotations

import time

import asyncpg
import psycopg

from onceflow import step


def burn_cpu(seconds: float) -> int:
    """A pure Python loop: it lets nobody else have the interpreter for longer than its switch interval."""
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        rounds += 1
    return rounds


@step
async def burn(conn: asyncpg.Connection, key: str, seconds: float) -> int:
    await conn.execute("insert into effect (step, key) values ('burn', $1)", key)
    return burn_cpu(seconds) and 1


@step
def burn_blocking(conn: psycopg.Connection, key: str, seconds: float) -> int:
    conn.execute("insert into effect (step, key) values ('burn', %s)", (key,))
    return burn_cpu(seconds) and 1


@step
async def burn_external(key: str, seconds: float) -> int:
    return burn_cpu(seconds) and 1


@step
def burn_external_blocking(key: str, seconds: float) -> int:
    return burn_cpu(seconds) and 1
