"""PgQueuer: `with_pgqueuer.py DSN jobs COUNT`. asyncpg with uvloop, jobs enqueued in bulk, taken in batches of 100, an INSERT on a pooled connection."""

import asyncio
import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.types import QueueExecutionMode

dsn, count = sys.argv[1], int(sys.argv[3])
BATCH = 100


async def main() -> None:
    async with asyncpg.create_pool(dsn, min_size=16, max_size=32) as pool, asyncpg.create_pool(dsn, min_size=2, max_size=8) as own:
        queuer = PgQueuer.from_asyncpg_pool(own)
        await queuer.qm.queries.install()

        @queuer.entrypoint("insert_one")
        async def insert_one(job: object) -> None:
            await pool.execute("insert into effect(n) values ($1)", int(job.payload))

        await queuer.qm.queries.enqueue(["insert_one"] * count, [str(n).encode() for n in range(count)], [0] * count)
        await queuer.run(batch_size=BATCH, mode=QueueExecutionMode.drain)


asyncio.run(main(), loop_factory=uvloop.new_event_loop) if sys.version_info >= (3, 12) else uvloop.run(main())
