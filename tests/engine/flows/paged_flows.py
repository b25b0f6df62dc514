"""Reducers over many instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onceflow import SkipTask, dag, task

COUNT = 1200


@dag(schedule=None, max_active_tasks=64)
def many_values() -> None:
    @task
    def number(i: int, ti: Any) -> int:
        ti.xcom_push("square", i * i)
        if i == 3:
            raise SkipTask("a hole")
        return i

    @task(trigger_rule="all_done")
    def plain(values) -> dict[str, Any]:  # type: ignore[no-untyped-def]
        """Not annotated, and more than a thousand: page by page."""
        return {"kind": type(values).__name__, "count": len(values), "sum": sum(values), "first": values[:5], "last": values[-1], "all": values}

    @task(trigger_rule="all_done")
    def as_list(values: list[int]) -> list[Any]:
        return [type(values).__name__, len(values)]

    @task(trigger_rule="all_done")
    async def in_async(values: Any, ti: Any) -> list[Any]:
        pulled = await ti.xcom_pull(task_ids="number", key="square")
        return [type(values).__name__, type(pulled).__name__, len(pulled)]

    @task(trigger_rule="all_done")
    def pulling(ti: Any) -> list[Any]:
        squares = ti.xcom_pull(task_ids="number", key="square")
        return [type(squares).__name__, len(squares), squares[-1], ti.xcom_pull(task_ids="number", map_indexes=7)]

    found = number.expand(i=list(range(COUNT)))
    plain(found)
    as_list(found)
    in_async(found)
    found >> pulling()


@dag(schedule=None)
def few_values() -> None:
    @task
    def number(i: int) -> int:
        return i

    @task
    def few(values) -> str:  # type: ignore[no-untyped-def]
        return type(values).__name__

    @task
    def chosen(values: Sequence[int], more: Iterable[int], none: Sequence[int] = ()) -> list[Any]:
        return [type(values).__name__, list(values), list(more)]

    found = number.expand(i=[5, 6])
    few(found)
    chosen(found, found)


many_values()
few_values()
