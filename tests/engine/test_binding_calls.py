"""What the engine sends on a step's connection between the step's own statements."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from onceflow.engine.bindings import Binding
from onceflow.errors import AuthoringError, LostContext
from tests.engine.test_bindings import admin, binding, effects, step

__all__ = ["admin", "binding"]
pytestmark = pytest.mark.server("18", "15", "pgbouncer")


async def test_a_call_of_the_engine_s_after_the_step_is_over(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """What a step left behind cannot send on the connection, which serves another step by now."""
    async with step(binding) as first:
        pass
    async with step(binding):
        with pytest.raises(LostContext):
            await first.call("insert into effect (n) values (1) returning n::text")
    assert effects(admin) == []


@pytest.mark.parametrize("binding", ["psycopg", "psycopg_async"], indirect=True)
async def test_a_call_of_the_engine_s_in_the_midst_of_a_stream(binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever for the end of a stream that goes on only after it: it is refused by name after a while."""
    monkeypatch.setattr("onceflow.engine.bindings.psycopg_binding.BUSY_S", 0.1)
    async with step(binding) as opened:
        cursor = opened.face().cursor()
        query = "select generate_series(1, 3)"
        if isinstance(cursor, psycopg.AsyncCursor):
            async for _ in cursor.stream(query):
                with pytest.raises(AuthoringError, match="in the midst of a stream"):
                    await opened.call("select 1::text")
        else:

            def read() -> None:
                for _ in cursor.stream(query):
                    with pytest.raises(AuthoringError, match="in the midst of a stream"):
                        opened.call_blocking("select 1::text")

            await asyncio.to_thread(read)
        assert await opened.call("select 1::text") == "1"
