"""A condition in a database that becomes true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg

from onceflow.authoring.deferral import BaseTrigger, TriggerEvent
from onceflow.checks import check_seconds, check_text
from onceflow.engine.triggerer import find_dsn


class SqlTrigger(BaseTrigger):
    """Fires when the first column of a query's first row is true (there, and neither false, 0 nor empty); the event is that value.

    Asked every `poke_interval` seconds, in a read-only transaction: of a registered `database`, or of the one in which steps run.
    """

    def __init__(self, sql: str, database: str | None = None, poke_interval: float = 5.0) -> None:
        self.sql = check_text(sql, "SqlTrigger: sql")
        self.database = database
        self.poke_interval = check_seconds(poke_interval, "SqlTrigger: poke_interval")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        dsn = find_dsn(self.database)
        conn: asyncpg.Connection[asyncpg.Record] | None = None
        try:
            while True:
                try:
                    if conn is None or conn.is_closed():
                        conn = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0)
                    async with conn.transaction(readonly=True):
                        found = await conn.fetchval(self.sql)
                    if found:
                        break
                except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, asyncpg.InterfaceError):
                    conn = None  # it comes back
                await asyncio.sleep(self.poke_interval)
        finally:
            if conn is not None:
                conn.terminate()
        yield TriggerEvent(found)
