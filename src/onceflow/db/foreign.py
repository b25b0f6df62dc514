"""Runs a `Call` inside somebody else's transaction: on the caller's own connection, whatever driver it is of."""

from __future__ import annotations

from typing import Any

from onceflow.db.calls import Call, parse_answer
from onceflow.db.driver_errors import translate
from onceflow.db.sync_runner import run_call


def run_on_foreign(conn: Any, call: Call) -> Any:
    """On a psycopg connection, or a SQLAlchemy Session or Connection over psycopg. Nothing is committed."""
    return run_call(_driver_connection(conn), call)


async def run_on_foreign_async(conn: Any, call: Call) -> Any:
    """On an asyncpg connection, a psycopg.AsyncConnection, or a SQLAlchemy AsyncSession or AsyncConnection."""
    if hasattr(conn, "run_sync"):  # SQLAlchemy: the driver's connection below it
        if hasattr(conn, "get_bind"):  # an AsyncSession
            conn = await conn.connection()
        await conn.exec_driver_sql("select 1")  # SQLAlchemy opens its transaction with the first statement
        conn = (await conn.get_raw_connection()).driver_connection
    try:
        if hasattr(conn, "fetchval"):
            return parse_answer(await conn.fetchval(call.sql, *call.args))
        from psycopg import AsyncConnection, AsyncRawCursor
        from psycopg.rows import tuple_row

        if not isinstance(conn, AsyncConnection):
            raise TypeError(
                f"conn={conn!r}: pass a connection of asyncpg, a psycopg.AsyncConnection, or a SQLAlchemy AsyncSession; with psycopg.Connection use Client"
            )

        async with AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(call.sql.encode(), list(call.args))
            row = await cursor.fetchone()
            return parse_answer(row[0] if row else None)
    except Exception as error:
        own = translate(error)
        if own is not None:
            raise own from None
        raise


def _driver_connection(conn: Any) -> Any:
    if hasattr(conn, "get_bind") and hasattr(conn, "connection"):  # a Session
        conn = conn.connection()
    if hasattr(conn, "exec_driver_sql"):
        conn.exec_driver_sql("select 1")  # SQLAlchemy opens its transaction with the first statement
    fairy = getattr(conn, "connection", None)
    driver = getattr(fairy, "driver_connection", None) or conn
    if not hasattr(driver, "pgconn"):
        raise TypeError(f"conn={conn!r}: pass a psycopg 3 connection, or a SQLAlchemy session over postgresql+psycopg; with asyncpg use AsyncClient")
    return driver
