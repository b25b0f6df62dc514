"""Steps and runs that fail, are tried again, run out of time, or try to end their own transaction."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as sa_asyncio
from noting import FORGET, hold, note, text
from sqlalchemy.orm import Session

from onceflow import (
    RetryPolicy,
    commit_with,
    current_run,
    idempotency_key,
    sleep,
    step,
    workflow,
)


class Transient(Exception):
    pass


class Permanent(Exception):
    pass


def fail_until(conn: psycopg.Connection, limit: int, error: type[Exception]) -> int:
    """Fails on the first `limit` tries of its step; tries are what the ledger says."""
    tried = current_run().try_number
    if tried <= limit:
        conn.execute(text("rolled back"))
        raise error(f"try {tried}")
    conn.execute(text(f"try {tried}"))
    return tried


@step(retries=2)
def flaky(conn: psycopg.Connection, limit: int) -> int:
    return fail_until(conn, limit, Transient)


@step(retry=RetryPolicy(retries=5, retry_on=(Transient,)))
def only_transient(conn: psycopg.Connection) -> int:
    raise Permanent("no")


@step(retry=RetryPolicy(retries=5, retry_on=lambda error: "try 1" in str(error)))
def only_first(conn: psycopg.Connection) -> int:
    return fail_until(conn, 9, Transient)


@step(retry=RetryPolicy(retries=3, delay=timedelta(seconds=0.1), exponential=True, max_delay=timedelta(seconds=0.15), jitter=0.1))
def backing_off(conn: psycopg.Connection) -> int:
    return fail_until(conn, 3, Transient)


@step(retries=3)
def flaky_external(folder: str) -> str:
    """Counts its tries in a folder, and collects the keys it had."""
    marks = sorted(Path(folder).glob("try-*"))
    (Path(folder) / f"try-{len(marks)}").write_text(idempotency_key())
    if len(marks) < 2:
        raise Transient(str(len(marks)))
    return "|".join(sorted({m.read_text() for m in Path(folder).glob("try-*")}))


@workflow
async def retrying(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {"flaky": await flaky.aio(2), "external": await flaky_external.aio(folder)}
    for name, branch in (("exhausted", flaky.aio(9)), ("permanent", only_transient.aio()), ("first", only_first.aio())):
        try:
            await branch
        except Exception as error:
            found[name] = f"{type(error).__name__}({error})"
    found["backing_off"] = await backing_off.aio()
    await sleep(FORGET)
    return found


@step
def needs_file(conn: psycopg.Connection, folder: str) -> str:
    (Path(folder) / "calls").open("a").write("x")
    return Path(folder, "missing").read_text()


@workflow
def os_error(folder: str) -> str:
    return needs_file(folder)


@workflow(retries=2)
async def retried_workflow(folder: str) -> str:
    """Fails twice as a whole: once in a step, once in the body itself."""
    await note("once")
    await fail_first.aio(folder)
    if not (mark := Path(folder) / "body").exists():
        mark.touch()
        raise Transient("in the body")
    return f"try {current_run().try_number}"


@step
def fail_first(folder: str) -> None:
    if not (mark := Path(folder) / "step").exists():
        mark.touch()
        raise Transient("in the step")


@workflow(timeout=timedelta(seconds=0.6))
async def timed_out_run(gate: str) -> int:
    return await hold(gate)


@workflow
async def asleep(seconds: float) -> str:
    await sleep(seconds)
    return "woke"


@step
def set_session(conn: psycopg.Connection, plan: str) -> None:
    conn.execute("set search_path to pg_catalog; set statement_timeout to '7s'; set timezone to 'Asia/Tokyo'")
    conn.execute(f"create temp table left_over (id int); {plan}")
    conn.execute("select pg_advisory_lock(4711)")


@step
def look_at_session(conn: psycopg.Connection) -> list[Any]:
    row = conn.execute("""select current_setting('search_path'), current_setting('statement_timeout'), current_setting('timezone') = 'Asia/Tokyo',
        to_regclass('pg_temp.left_over')::text, (select count(*) from pg_prepared_statements where name = 'left_plan'),
        (select count(*) from pg_listening_channels()), (select count(*) from pg_locks where locktype = 'advisory' and objid = 4711)""").fetchone()
    return list(row)


@step
async def set_session_async(conn: asyncpg.Connection[Any], plan: str) -> None:
    await conn.execute("set search_path to pg_catalog; set statement_timeout to '7s'; set timezone to 'Asia/Tokyo'")
    await conn.execute(f"create temp table left_over (id int); {plan}; select pg_advisory_lock(4712)")


@step
async def look_at_session_async(conn: asyncpg.Connection[Any]) -> list[Any]:
    row = await conn.fetchrow("""select current_setting('search_path'), current_setting('statement_timeout'), current_setting('timezone') = 'Asia/Tokyo',
        to_regclass('pg_temp.left_over')::text, (select count(*) from pg_prepared_statements where name = 'left_plan'),
        (select count(*) from pg_listening_channels()), (select count(*) from pg_locks where locktype = 'advisory' and objid = 4712)""")
    return list(row)


@workflow
async def leftovers(plan: str) -> list[Any]:
    before = [await look_at_session.aio(), await look_at_session_async()]
    await set_session.aio(plan)
    await set_session_async(plan)
    return [before, [await look_at_session.aio(), await look_at_session_async()]]


@step
async def commit_asyncpg(conn: asyncpg.Connection[Any]) -> None:
    await conn.execute(text("bad"))
    await conn.execute("commit")


@step
def commit_psycopg(conn: psycopg.Connection) -> None:
    conn.execute(text("bad"))
    conn.commit()


@step
def commit_psycopg_text(conn: psycopg.Connection) -> None:
    conn.execute(text("bad"))
    conn.cursor().execute("/* x */ COMMIT")


@step
async def commit_psycopg_async(conn: psycopg.AsyncConnection) -> None:
    await conn.execute(text("bad"))
    await conn.commit()


@step
def commit_session(session: Session) -> None:
    session.execute(sa.text(text("bad")))
    session.commit()


@step
async def commit_async_session(session: sa_asyncio.AsyncSession) -> None:
    await session.execute(sa.text(text("bad")))
    await session.commit()


@step
def commit_sa_connection(conn: sa.Connection) -> None:
    conn.execute(sa.text(text("bad")))
    conn.commit()


@step
async def commit_sa_async_connection(conn: sa_asyncio.AsyncConnection) -> None:
    await conn.execute(sa.text(text("bad")))
    await conn.execute(sa.text("commit"))


@step
def commit_below(conn: psycopg.Connection) -> None:
    """Past every face: libpq itself."""
    conn.execute(text("bad"))
    conn.pgconn.exec_(b"rollback")


@step
def commit_below_psycopg(conn: psycopg.Connection) -> None:
    conn.execute(text("bad"))
    conn.pgconn.exec_(b"commit")  # what it answers is ignored


@step
async def commit_below_psycopg_async(conn: psycopg.AsyncConnection) -> None:
    await conn.execute(text("bad"))
    conn.pgconn.exec_(b"/* in a comment */ end")


@step
async def commit_below_asyncpg(conn: asyncpg.Connection) -> None:
    await conn.execute(text("bad"))
    with contextlib.suppress(asyncpg.PostgresError):
        await conn._con.execute("commit")


@step
def commit_below_session(session: Session) -> None:
    session.execute(sa.text(text("bad")))
    session.connection().connection.driver_connection.pgconn.exec_(b"commit and chain")


@step(isolation="serializable")
async def commit_below_serializable(conn: asyncpg.Connection) -> None:
    await commit_below_asyncpg.fn(conn)


@step
def commit_below_late() -> None:
    with commit_with(psycopg.Connection) as conn:
        commit_below_psycopg.fn(conn)


@step
def roll_back_below_late() -> None:
    """Its record must not stand for writes that are gone."""
    with commit_with(psycopg.Connection) as conn:
        commit_below.fn(conn)


@step
async def close_below(conn: asyncpg.Connection) -> None:
    """It ends what the engine holds its transaction together by."""
    await conn.execute(text("bad"))
    await conn._con.execute("close all")


@step
async def close_all(conn: asyncpg.Connection) -> None:
    await conn.execute(text("bad"))
    await conn.execute("close all")


COMMITTING = {
    s.name: s
    for s in (
        commit_below_psycopg,
        commit_below_psycopg_async,
        commit_below_asyncpg,
        commit_below_session,
        commit_below_serializable,
        commit_below_late,
        roll_back_below_late,
        close_below,
        close_all,
        commit_asyncpg,
        commit_psycopg,
        commit_psycopg_text,
        commit_psycopg_async,
        commit_session,
        commit_async_session,
        commit_sa_connection,
        commit_sa_async_connection,
        commit_below,
    )
}


@workflow
async def committing(name: str) -> None:
    chosen = COMMITTING[name]
    await (chosen() if chosen.is_async else chosen.aio())


@step
def exits() -> None:
    raise SystemExit(3)


@step
def stops() -> int:
    return next(iter([]))


@step
async def exits_async() -> None:
    raise SystemExit(3)


@workflow
async def leaving(how: str) -> None:
    if how == "body":
        raise SystemExit(3)
    await (exits_async() if how == "async" else exits.aio() if how == "def" else stops.aio())


@workflow
def leaving_sync(how: str) -> None:
    if how == "exit":
        raise SystemExit(3)
    next(iter([]))
