"""Procrastinate: `with_procrastinate.py DSN jobs COUNT`. Its own psycopg pool, jobs deferred in bulk, 32 at a time, an INSERT on a pooled connection in autocommit."""

import asyncio
import sys

import procrastinate
import psycopg_pool

dsn, count = sys.argv[1], int(sys.argv[3])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=8, max_size=16))
pool = psycopg_pool.AsyncConnectionPool(dsn, min_size=16, max_size=32, open=False, kwargs={"autocommit": True})


@app.task(name="insert_one")
async def insert_one(n: int) -> None:
    async with pool.connection() as conn:
        await conn.execute("insert into effect(n) values (%s)", [n])


async def main() -> None:
    async with app.open_async(), pool:
        await app.schema_manager.apply_schema_async()
        await insert_one.batch_defer_async(*[{"n": n} for n in range(count)])
        await app.run_worker_async(concurrency=32, wait=False, install_signal_handlers=False)


asyncio.run(main())
