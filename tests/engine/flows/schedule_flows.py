"""Dags with schedules, for test_schedules."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import psycopg

from onceflow import CronTrigger, Param, dag, task


@task
def note(conn: psycopg.Connection, ds: str, data_interval_start: datetime, data_interval_end: datetime, run_id: str) -> str:
    conn.execute("insert into effect (what, note) values (%s, %s)", (run_id, f"{data_interval_start.isoformat()} {data_interval_end.isoformat()}"))
    return ds


@task
def hold(seconds: float) -> None:
    time.sleep(seconds)


@dag(schedule=CronTrigger("* * * * * *"), start_date=datetime(2026, 1, 1), is_paused_upon_creation=True, max_active_runs=8)
def ticking() -> None:
    note()


@dag(
    schedule="0 6 * * *",
    timezone="Europe/Berlin",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    params={"n": Param(1, type="integer")},
    tags=["fx"],
    owner="ann",
)
def daily() -> None:
    """The daily close."""
    note() >> hold.override(task_id="second")(0.0)


@dag(schedule="@daily", is_paused_upon_creation=False, start_date=datetime(9000, 1, 1))
def brief() -> None:
    hold(0.0)
