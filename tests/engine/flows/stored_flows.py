"""Dags whose tasks give each other values that are too large for the database."""

from __future__ import annotations

from typing import Any

import asyncpg

from onceflow import dag, task

LARGE = ["x" * 100] * 50


@dag(schedule=None)
def large_values() -> None:
    @task
    def whole() -> list[str]:
        return LARGE

    @task
    async def transactional(conn: asyncpg.Connection[Any], ti: Any) -> dict[str, Any]:
        ti.xcom_push("beside", LARGE)
        return {"left": LARGE, "right": 1}

    @task(multiple_outputs=True)
    def several() -> dict[str, Any]:
        return {"left": LARGE, "small": 1}

    @task
    def items() -> list[Any]:
        return [LARGE, 2]

    @task
    def echo(x: Any) -> Any:
        return x

    @task
    def total(values: Any, ti: Any) -> list[int]:
        return [
            len(value) if isinstance(value, list | str) else value for value in [*values, ti.xcom_pull("transactional", key="beside"), ti.xcom_pull("whole")]
        ]

    both, parts = transactional(), several()
    total([whole(), both["left"], both["right"], both["beside"], parts["left"], parts["small"], echo.expand(x=items())])


@dag(schedule=None)
def lost_value() -> None:
    @task
    def give() -> list[str]:
        return LARGE

    @task
    def wait(file: str = "") -> None:
        """Until the test has spoilt the value."""
        import time
        from pathlib import Path

        while not Path(file).exists():
            time.sleep(0.02)

    @task
    def take(values: Any) -> int:
        return len(values)

    given = give()
    given >> wait("{{ params.gate }}") >> take(given)
