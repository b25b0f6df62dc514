"""Steps that raise, lose their connection, or hold their transaction idle."""

from __future__ import annotations

import time

import asyncpg
import psycopg
from gates import count_visits, stand
from payments import pay, pay_blocking, pay_late

import onceflow
from onceflow import commit_with, current_run, step, workflow


@step(retries=2)
async def write_then_raise(conn: asyncpg.Connection, key: str) -> int:
    """Writes on every try; raises on the first two."""
    number: int = await conn.fetchval("insert into effect (step, key) values ('write_then_raise', $1) returning id", key)
    if current_run().try_number < 3:
        raise ValueError(f"try {current_run().try_number} of {key}")
    return number


@step(retries=2)
def write_then_raise_blocking(conn: psycopg.Connection, key: str) -> int:
    """The same in a thread."""
    row = conn.execute("insert into effect (step, key) values ('write_then_raise', %s) returning id", (key,)).fetchone()
    if current_run().try_number < 3 or row is None:
        raise ValueError(f"try {current_run().try_number} of {key}")
    return int(row[0])


@workflow
async def third_try(key: str) -> int:
    return await write_then_raise(key) + await write_then_raise_blocking.aio(f"{key}-blocking")


@step
async def always_raise(key: str) -> str:
    raise ValueError(f"no {key}")


@workflow
async def catch_failure(key: str) -> str:
    """Lives on after a failed step: what it caught must be what the ledger says."""
    try:
        await always_raise(key)
    except ValueError as error:
        await pay(key)
        return f"caught {error}"
    return "nothing raised"


@workflow(retries=1)
async def body_fails_once(key: str) -> int:
    number = await pay(key)
    if current_run().try_number < 2:
        raise ValueError(f"first try of {key}")
    return number


@step
async def raise_os_error_once(conn: asyncpg.Connection, error: str) -> None:
    stand(f"raise-{error}", str(time.monotonic_ns()))
    await conn.execute("insert into effect (step, key) values ('raise_os_error_once', $1)", error)
    raise {"FileNotFoundError": FileNotFoundError, "ConnectionResetError": ConnectionResetError, "TimeoutError": TimeoutError}[error](2, "of its own")


@workflow
async def raise_os_error(error: str) -> None:
    await raise_os_error_once(error)


@step
async def lose_connection(conn: asyncpg.Connection, key: str, times: int) -> int:
    """Has the server end its own connection, the first `times` times."""
    number: int = await conn.fetchval("insert into effect (step, key) values ('lose_connection', $1) returning id", key)
    if count_visits(f"lost-{key}") <= times:
        await conn.execute("select pg_terminate_backend(pg_backend_pid())")
    return number


@step
def lose_connection_blocking(conn: psycopg.Connection, key: str, times: int) -> None:
    """The same in a thread."""
    conn.execute("insert into effect (step, key) values ('lose_connection_blocking', %s)", (key,))
    if count_visits(f"lost-blocking-{key}") <= times:
        conn.execute("select pg_terminate_backend(pg_backend_pid())")


@step
def lose_connection_late(key: str, times: int) -> int:
    """The same in the block of commit_with; answers how often it ran."""
    runs = count_visits(f"lost-late-{key}")
    with commit_with(psycopg.Connection) as conn:
        conn.execute("insert into effect (step, key) values ('lose_connection_late', %s)", (key,))
        if runs <= times:
            conn.execute("select pg_terminate_backend(pg_backend_pid())")
    return runs


@step
async def lose_connection_late_async(key: str, times: int) -> int:
    """The same on asyncpg, where the step goes on with its connection after the block."""
    runs = count_visits(f"lost-late-async-{key}")
    async with commit_with(asyncpg.Connection) as conn:
        await conn.execute("insert into effect (step, key) values ('lose_connection_late_async', $1)", key)
    if runs <= times:
        await conn.execute("select pg_terminate_backend(pg_backend_pid())")
    return runs


@step
def lose_own_connection(key: str) -> str:
    """Loses a connection that it has opened itself."""
    with commit_with(psycopg.Connection) as conn, psycopg.connect(conn.info.dsn, password=conn.info.password) as other:
        count_visits(f"lost-own-{key}")
        other.execute("select pg_terminate_backend(pg_backend_pid())")
    return key


@workflow
async def lose_late_and_pay(key: str, times: int) -> list[int]:
    return [await lose_connection_late.aio(key, times), await lose_connection_late_async(key, times)]


@workflow
async def lose_and_pay(key: str, times: int) -> int:
    await lose_connection_blocking.aio(key, times)
    return await lose_connection(key, times)


@workflow
async def idle(key: str, gate: str) -> str:
    """Lives on after the step was ended for idling: the error is an ordinary one."""
    try:
        await pay(key, gate)
    except onceflow.StepIdle as error:
        return str(error)
    return "not idle"


@workflow
def idle_blocking(key: str, gate: str) -> str:
    try:
        pay_blocking(key, gate)
    except onceflow.StepIdle as error:
        return str(error)
    return "not idle"


@workflow
def idle_late(key: str, gate: str) -> str:
    try:
        pay_late(key, gate)
    except onceflow.StepIdle as error:
        return str(error)
    return "not idle"
