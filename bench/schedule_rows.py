"""What schedules and backfills cost: a scheduler's tick over many dags, and a year of runs made at once."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures
from onceflow.authoring.schedule import pack_schedule, resolve_schedule
from onceflow.authoring.timetable import Bounds
from onceflow.db import calls
from onceflow.db.sync_runner import run_call
from onceflow.engine.backfills import BackfillOptions, create_backfill
from onceflow.engine.due_runs import make_due_runs

GROUPS, BATCH = 30, 500
STEP = timedelta(minutes=24 * 60 / GROUPS)
START = datetime(2026, 1, 1, tzinfo=UTC)
Connection = psycopg.Connection[Any]


def make_plan(tasks: int, schedule: Any) -> dict[str, Any]:
    """The plan of a dag whose tasks follow one another."""
    return {
        "schedule": pack_schedule(resolve_schedule(schedule), Bounds(START), False, None),
        "params": {},
        "tasks": [
            {
                "ix": n, "task_id": f"t{n}", "operator": "Made", "trigger_rule": "all_success", "upstream": [n - 1] if n else [],
                "downstream": [n + 1] if n + 1 < tasks else [], "retries": 0, "weight": tasks - n, "queue": None, "pool": "default_pool",
                "pool_slots": 1, "is_leaf": n + 1 == tasks,
            }
            for n in range(tasks)
        ],
    }  # fmt: skip


def register(conn: Connection, dags: list[dict[str, Any]]) -> None:
    run_call(conn, calls.register_dags(json.dumps([{"kind": "dag", "code_version": "1", **dag} for dag in dags]), True))


def drive(conn: Connection, request: Any) -> Any:
    answer: Any = None
    while True:
        try:
            answer = run_call(conn, request.send(answer))
        except StopIteration as end:
            return end.value


def stop_clock(conn: Connection) -> None:
    conn.execute("create table public.clock as select %s::timestamptz as at", [START])
    conn.execute("grant select on public.clock to public")
    conn.execute("create or replace function onceflow.now() returns timestamptz language sql volatile as 'select at from public.clock'")


def scheduler_tick(place: BenchPlace, size: Size) -> Figures:
    """Milliseconds, p95 of 100 ticks: 10,000 daily dags of 5 tasks, 3,000 not paused, of which 100 are due in each tick. Makes their runs and lets them begin."""
    active = size.dags * 3 // 10
    with place.connect() as conn:
        stop_clock(conn)
        for first in range(0, size.dags, BATCH):
            names = [(n, START + STEP * (n % GROUPS)) for n in range(first, min(first + BATCH, size.dags))]
            register(conn, [{"dag_id": f"daily{n}", "is_paused": n >= active, "plan": make_plan(5, f"{at.minute} {at.hour} * * *")} for n, at in names])
        for _ in range(size.dags // 100 + 1):
            drive(conn, make_due_runs())  # when the next one of each comes
        conn.execute("analyze")
        times, made = [], 0
        conn.execute("update public.clock set at = at + interval '1 day 30 seconds'")
        for _ in range(size.ticks):
            conn.execute("update public.clock set at = at + %s", [STEP])
            started = time.perf_counter()
            made += drive(conn, make_due_runs()).runs
            run_call(conn, calls.run_tick(500, 5))
            times.append((time.perf_counter() - started) * 1000)
        assert made >= size.ticks * active / GROUPS, made
    return {"scheduler_tick_p95": (sorted(times)[int(size.ticks * 0.95)], "ms")}


def backfill_rows(place: BenchPlace, size: Size) -> Figures:
    """Seconds from the call of a backfill of 365 runs of 15 tasks to its answer: all rows are there."""
    with place.connect() as conn:
        register(conn, [{"dag_id": "year", "plan": make_plan(15, "@daily")}])
        started = time.perf_counter()
        answer = drive(conn, create_backfill("year", "2025-01-01", "2025-12-31", BackfillOptions()))
        took = time.perf_counter() - started
        rows = conn.execute("select count(*) from onceflow.ti t join onceflow.run r on r.id = t.run where r.backfill = %s", [answer["backfill"]]).fetchone()
        assert rows == (365 * 15,), rows
        conn.execute("select onceflow.steer_backfill(%s, 'cancel')", [answer["backfill"]])
    return {"backfill_rows": (took, "s")}
