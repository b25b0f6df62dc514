"""Steps that many flows share: they leave a note under the run's id, wait for a file, or fail."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from onceflow import (
    current_run,
    sleep,
    step,
)

FORGET = 0.3  # a wait that a loaded machine too finds unfinished when it asks first: so the body is forgotten


class Unwell(Exception):
    pass


ADD = "insert into effect (what, note) values ('{}', '{}') returning note"


def text(note: str) -> str:
    return ADD.format(current_run().run_id, note)


@step
async def note(conn: asyncpg.Connection[Any], text: str) -> str:
    """Leaves a row under the run's id."""
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, text)
    return text


@step
def note_sync(conn: psycopg.Connection, text: str) -> str:
    conn.execute("insert into effect (what, note) values (%s, %s)", (current_run().run_id, text))
    return text


@step
async def fail(text: str) -> None:
    raise Unwell(text)


@step
async def hold(gate: str) -> int:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@step
def hold_sync(gate: str) -> int:
    while not Path(gate).exists():
        time.sleep(0.01)
    return os.getpid()


@step
async def need_file(folder: str) -> None:
    if not Path(folder, "repaired").exists():
        raise Unwell("not repaired")


@step
async def keep(value: Any) -> Any:
    return value


@step
def keep_sync(value: Any) -> Any:
    return value


async def pay(name: str) -> str:
    """A branch of several steps with a wait between."""
    await note(f"lookup {name}")
    await sleep(FORGET)
    await note(f"pay {name}")
    return name


async def pay_slowly(name: str) -> None:
    await note(f"lookup {name}")
    await sleep(60)
    await note(f"pay {name}")


async def plain(n: int) -> int:
    await asyncio.sleep(0)
    return n * 2
