"""Dags with their schedules, and backfills."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row

from onceflow.db.queries import Reader
from onceflow.errors import NotFound


@dataclass(frozen=True, slots=True)
class DagDetail:
    """One dag or workflow; `schedule` is what a scheduler works the next runs out from, `now` the database's time."""

    dag_id: str
    kind: str
    is_paused: bool
    is_active: bool
    description: str | None
    owners: str | None
    tags: list[str] | None
    fileloc: str | None
    code_version: str | None
    version: int | None
    schedule_interval: str | None
    timetable_description: str | None
    schedule: dict[str, Any] | None
    next_dagrun_create_after: datetime | None
    last_interval_start: datetime | None
    last_interval_end: datetime | None
    max_active_runs: int
    max_active_tasks: int
    timeout_s: float | None
    priority: int
    queued_runs: int
    active_runs: int
    last_parsed_time: datetime | None
    import_error: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A backfill, with how many of its runs have ended, and come to what."""

    backfill: int
    dag_id: str
    state: str
    from_date: datetime
    to_date: datetime
    total: int
    success: int
    failed: int
    cancelled: int
    running: int
    queued: int
    skipped: int
    reason: str | None
    actor: str
    created_at: datetime
    ended_at: datetime | None


def read_dag(reader: Reader, dag_id: str) -> DagDetail:
    """NotFound if there is none of that name."""
    with reader.cursor(row_factory=class_row(DagDetail)) as cursor:
        found = cursor.execute(
            """select d.dag_id, d.kind, d.is_paused, d.is_active, d.description, d.owners, d.tags, d.fileloc, d.code_version,
                (select v.number from onceflow.dag_version v where v.id = d.version) as version, d.schedule_interval, d.timetable_description, d.schedule,
                d.next_dagrun_create_after, d.last_interval_start, d.last_interval_end, d.max_active_runs, d.max_active_tasks, d.timeout_s, d.priority,
                (select count(*) from onceflow.queued_run q where q.dag_id = d.dag_id) as queued_runs,
                (select count(*) from onceflow.active_run a where a.dag_id = d.dag_id) as active_runs, d.last_parsed_time,
                (select e.stacktrace from onceflow.import_error e where e.dag_id = d.dag_id limit 1) as import_error, onceflow.now() as now
            from onceflow.dag d where d.dag_id = %s""",
            (dag_id,),
        ).fetchone()
    if found is None:
        raise NotFound(f"there is no workflow or dag named {dag_id}. List them with: onceflow dags list")
    return found


def list_backfills(reader: Reader, dag_id: str | None = None, *, limit: int = 50) -> list[BackfillRow]:
    """The latest first; of one dag."""
    with reader.cursor(row_factory=class_row(BackfillRow)) as cursor:
        return cursor.execute(
            """select b.id as backfill, b.dag_id, b.state, b.from_date, b.to_date, b.total, b.skipped, b.reason, b.actor, b.created_at, b.ended_at, c.*
            from (select * from onceflow.backfill where %(dag)s::text is null or dag_id = %(dag)s order by id desc limit %(limit)s) b, lateral (
                select count(*) filter (where r.state = 'success') as success, count(*) filter (where r.state = 'failed') as failed,
                    count(*) filter (where r.state = 'cancelled') as cancelled, count(*) filter (where r.state is null and a.run is not null) as running,
                    count(*) filter (where r.state is null and a.run is null) as queued
                from onceflow.run r left join onceflow.active_run a on a.run = r.id where r.backfill = b.id) c
            order by b.id desc""",
            {"dag": dag_id, "limit": limit},
        ).fetchall()
