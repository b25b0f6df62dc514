"""Flows that are given, or give, what does not fit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg

from onceflow import OnceflowError, first_of, gather, recv, set_event, sleep, step, timeout, workflow


@workflow
def echo(text: str) -> str:
    return text


@step
def echo_it(text: str) -> str:
    return text


@workflow
def echo_step(text: str) -> str:
    return echo_it(text)


@step
def keep(conn: psycopg.Connection[Any], text: str) -> str:
    conn.execute("insert into effect (what) values (%s)", (text,))
    return str(conn.execute("select what from effect order by id desc limit 1").fetchone()[0])  # type: ignore[index]


@workflow
def store(text: str) -> str:
    return keep(text)


@workflow
def pay(account: int, amount: Decimal = Decimal(1)) -> None: ...


@step
def pay_step(account: int, amount: Decimal = Decimal(1)) -> None: ...


@workflow
def kinds(a: int, /, b: int, *, c: int = 0) -> list[int]:
    return [a, b, c]


@step
def many(a: int, *rest: int, **more: int) -> list[Any]:
    return [a, list(rest), more]


@workflow
async def misuses() -> list[str]:
    said = []
    for call in (
        lambda: sleep(float("nan")),
        lambda: recv(5),  # type: ignore[arg-type]
        lambda: set_event(None, 1),  # type: ignore[arg-type]
        lambda: gather(5),  # type: ignore[arg-type]
        lambda: first_of([]),  # type: ignore[arg-type]
        lambda: timeout(None, 5),  # type: ignore[arg-type]
    ):
        try:
            call()
        except OnceflowError as error:
            said.append(str(error))
    await sleep(0)
    return said
