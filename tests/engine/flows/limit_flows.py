"""Dags that draw on limits, for test_dag_limits and test_backfill_beside. The pools are made by the tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from onceflow import dag, task


@task
def hold(seconds: float) -> None:
    time.sleep(seconds)


@task
def hold_for_ever(params: dict[str, Any]) -> None:
    """Until the gate opens."""
    while not Path(params["gate"]).exists():
        time.sleep(0.05)


@dag(schedule=None, max_active_runs=100, max_active_tasks=100)
def big_ones() -> None:
    """Two tasks of half of the pool, and one of two thirds."""
    for name, slots in (("a12", 12), ("b12", 12), ("c16", 16)):
        hold.override(task_id=name, pool="shared", pool_slots=slots)(0.1)


@dag(schedule=None, max_active_runs=1000, max_active_tasks=1000)
def small_ones() -> None:
    """Forty short tasks of one slot."""
    hold.override(task_id="small", pool="shared").expand(seconds=[0.03] * 40)


@dag(schedule="@daily", is_paused_upon_creation=False)
def year() -> None:
    """Fifteen tasks that follow one another."""
    last = hold.override(task_id="t0")(0.005)
    for number in range(1, 15):
        following = hold.override(task_id=f"t{number}")(0.005)
        last >> following
        last = following


@dag(schedule=None, max_active_runs=100)
def brief() -> None:
    hold(0.0)


def declare_endless(number: int) -> None:
    @dag(dag_id=f"endless{number}", schedule=None, params={"gate": ""}, priority=100)
    def endless() -> None:
        hold_for_ever()


for _number in range(25):
    declare_endless(_number)
