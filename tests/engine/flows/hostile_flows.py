"""Code that means no good, or knows no better."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
from typing import Any

import asyncpg
import psycopg

from onceflow import current_run, first_of, gather, get_event, send, sleep, step, workflow
from onceflow.engine.forms import ContinueAs
from onceflow.engine.waits import Suspended
from onceflow.errors import AlreadyRecorded, InvalidArgument, LeaseLost


class Leave(BaseException):
    """Not an Exception: `except Exception` does not see it."""


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


ERRORS: dict[str, BaseException] = {
    "leave": Leave("now"),
    "cancelled": asyncio.CancelledError(),
    "future": concurrent.futures.CancelledError(),
    "group": BaseExceptionGroup("g", [Leave("now")]),
    "closing": GeneratorExit(),
}


@step
async def leave_async(what: str) -> None:
    raise ERRORS[what]


@step
def leave_thread(what: str) -> None:
    raise ERRORS[what]


@step
def leave_transaction(conn: psycopg.Connection[Any], what: str) -> None:
    conn.execute("insert into effect (what) values (%s)", (current_run().run_id,))
    raise ERRORS[what]


@workflow
def leave_body(what: str) -> None:
    raise ERRORS[what]


@step
async def raise_bad_text(conn: asyncpg.Connection[Any]) -> None:
    raise BadText


@step(isolate="process")
def print_below() -> str:
    subprocess.run(["printf", "no newline"], check=True)
    os.write(1, b"\xff")
    return "answer"


@workflow
async def ask_no_run(run: int) -> list[str]:
    errors = []
    for what in (send, get_event):
        try:
            await what(run, "hello")
        except InvalidArgument as error:
            errors.append(str(error))
    await sleep(0.01)
    return errors


@workflow
async def first_of_none() -> Any:
    return await first_of()


@step
async def note_outside(conn: asyncpg.Connection[Any], note: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, note)


@step
async def note_and_start(conn: asyncpg.Connection[Any], note: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, note)
    await note_outside.start(f"after {note}")


@workflow
async def outbox_at_the_end(note: str) -> None:
    await note_and_start(note)


SIGNALS: dict[str, BaseException] = {
    "lease lost": LeaseLost("said by the step itself"),
    "suspended": Suspended(),
    "recorded": AlreadyRecorded("said by the step itself"),
    "continue": ContinueAs({}),
}


@step(retries=1)
async def signal_async(what: str) -> None:
    raise SIGNALS[what]


@step(retries=1)
def signal_thread(what: str) -> None:
    raise SIGNALS[what]


@step(retries=1)
async def signal_transaction(conn: asyncpg.Connection[Any], what: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, 'signal')", current_run().run_id)
    raise SIGNALS[what]


@step(retries=1)
def signal_psycopg(conn: psycopg.Connection[Any], what: str) -> None:
    conn.execute("insert into effect (what, note) values (%s, 'signal')", (current_run().run_id,))
    raise SIGNALS[what]


@step(retries=1, group_commit=True)
async def signal_group(conn: asyncpg.Connection[Any], what: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, 'signal')", current_run().run_id)
    raise SIGNALS[what]


SIGNALLERS: dict[str, Any] = {
    "async": signal_async,
    "thread": signal_thread.aio,
    "transaction": signal_transaction,
    "psycopg": signal_psycopg.aio,
    "group": signal_group,
}


@workflow
async def signal_in_step(kind: str, what: str) -> list[str]:
    answers = await gather(*[SIGNALLERS[kind](what) for _ in range(3)], return_exceptions=True)
    return [f"{type(answer).__name__}: {answer}" for answer in answers]


@workflow
async def signal_in_body(what: str) -> None:
    raise SIGNALS[what]


@workflow
def signal_in_def_body(what: str) -> None:
    raise SIGNALS[what]


@step(retries=1)
async def raise_sqlstate(conn: asyncpg.Connection[Any], state: str) -> None:
    await conn.execute("insert into effect (what, note) values ($1, 'signal')", current_run().run_id)
    await conn.execute(f"do $$ begin raise exception using errcode = '{state}', message = 'said by the step itself'; end $$")
