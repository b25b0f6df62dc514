"""The batcher's own order of events; what it does on a database is proved by the engine's tests."""

from __future__ import annotations

import asyncio
from typing import Any

from onceflow.db import calls
from onceflow.db.calls import Call
from onceflow.engine.batcher import Batcher


class EchoLink:
    """Answers each call of a batch with its number of items, after one turn of the loop."""

    async def call(self, call: Call) -> Any:
        await asyncio.sleep(0)
        return [None] * str(call.args[0]).count("start_step") if call.name == "run_batch" else None


def start_call(ti: int) -> Call:
    return calls.start_step(1, ti, "0-0", "k", "n", "external", 1, "{}", "h")


async def test_a_call_that_comes_while_a_flush_ends_is_sent() -> None:
    """Whoever submits in the very turn in which the last flush has looked for waiting calls is not forgotten."""
    batcher: Any = Batcher(EchoLink(), group_max=2)  # type: ignore[arg-type]
    flush = batcher._flush

    async def flush_and_submit() -> None:
        await flush()
        if len(late) < 5:
            late.append(asyncio.ensure_future(batcher.submit(start_call(9))))
            await asyncio.sleep(0)

    late: list[asyncio.Future[Any]] = []
    batcher._flush = flush_and_submit
    async with asyncio.timeout(5):
        await asyncio.gather(*(batcher.submit(start_call(i)) for i in range(8)))
        while len(late) < 5:
            await asyncio.sleep(0)
        assert await asyncio.gather(*late) == [None] * 5
