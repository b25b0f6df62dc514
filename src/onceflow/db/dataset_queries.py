"""What is known of datasets: who writes them, who runs by them, what was told, and what waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row

from onceflow.db.queries import Reader
from onceflow.errors import NotFound


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A dataset: its events (of the last day, too), the tasks that write it and read it, the dags that run by it, and for how many of these something waits."""

    uri: str
    events: int
    events_24h: int
    last_event_at: datetime | None
    producers: list[str]
    consumers: list[str]
    readers: list[str]
    waiting: int
    aliases: list[str]
    classification: str | None
    extra: Any
    is_orphaned: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DatasetEventRow:
    """An event: who told of it (nobody: it came from SQL), what was said, and the runs that took it."""

    event: int
    uri: str
    timestamp: datetime
    source_dag_id: str | None
    source_task_id: str | None
    source_run_id: str | None
    source_map_index: int
    extra: Any
    runs: list[str]
    waiting_for: list[str]


@dataclass(frozen=True, slots=True)
class DatasetWait:
    """What has gathered for a dag, and why no run has taken it (see list_dataset_waits)."""

    dag_id: str
    reason: str
    datasets: list[str]
    missing: list[str]
    events: int
    queue_age_s: float | None
    active: int
    max_active_runs: int | None


def list_datasets(reader: Reader, uri: str | None = None, *, orphaned: bool = False) -> list[DatasetRow]:
    """Every dataset that a dag names, or the one; with `orphaned` the others too."""
    return (
        reader.cursor(row_factory=class_row(DatasetRow))
        .execute(
            """select d.uri, e.events, e.events_24h, e.last_event_at, d.classification, d.extra, d.is_orphaned, d.created_at,
            array(select r.dag_id || '.' || r.task_id from onceflow.task_outlet_dataset_reference r where r.dataset_id = d.id order by 1) as producers,
            array(select r.dag_id::text from onceflow.dag_schedule_dataset_reference r where r.dataset_id = d.id order by 1) as consumers,
            array(select r.dag_id || '.' || r.task_id from onceflow.task_inlet_dataset_reference r where r.dataset_id = d.id order by 1) as readers,
            array(select a.alias::text from onceflow.dataset_alias a where a.dataset_id = d.id order by 1) as aliases,
            (select count(*) from onceflow.dataset_dag_run_queue q where q.dataset_id = d.id) as waiting
        from (select onceflow.now() t) n, onceflow.dataset d, lateral (
            select count(*) as events, count(*) filter (where v."timestamp" > n.t - interval '1 day') as events_24h, max(v."timestamp") as last_event_at
            from onceflow.dataset_event v where v.dataset_id = d.id) e
        where case when %(uri)s::text is null then %(orphaned)s or not d.is_orphaned else d.uri = %(uri)s end order by d.uri""",
            {"uri": uri, "orphaned": orphaned},
        )
        .fetchall()
    )


def read_dataset(reader: Reader, uri: str) -> DatasetRow:
    """Raises NotFound, with those that begin alike."""
    if found := list_datasets(reader, uri):
        return found[0]
    near = reader.execute("select uri from onceflow.dataset order by (uri like %s || '%%') desc, uri limit 5", (uri[:12],)).fetchall()
    raise NotFound(f"there is no dataset {uri!r}; " + (f"there are {', '.join(repr(row[0]) for row in near)}" if near else "no dag names one"))


def list_dataset_events(reader: Reader, uri: str | None, limit: int) -> list[DatasetEventRow]:
    """The latest events, of one dataset or all; the latest first."""
    return (
        reader.cursor(row_factory=class_row(DatasetEventRow))
        .execute(
            """select e.id as event, d.uri, e."timestamp", e.source_dag_id, e.source_task_id, e.source_run_id, e.source_map_index, e.extra,
            array(select x.dag_id || '/' || coalesce(r.run_id, x.dag_run::text) from onceflow.dagrun_dataset_event x left join onceflow.run r on r.id = x.dag_run
                where x.event_id = e.id order by 1) as runs,
            array(select w.dag_id::text from onceflow.waiting_event w where w.event_id = e.id order by 1) as waiting_for
        from (select * from onceflow.dataset_event v where %(uri)s::text is null or v.dataset_id = (select id from onceflow.dataset where uri = %(uri)s)
            order by v."timestamp" desc, v.id desc limit %(limit)s) e join onceflow.dataset d on d.id = e.dataset_id order by e."timestamp" desc, e.id desc""",
            {"uri": uri, "limit": limit},
        )
        .fetchall()
    )


def list_dataset_waits(reader: Reader, dag_id: str | None = None) -> list[DatasetWait]:
    """What has gathered for dags, the oldest first; of the dag that is named, also when it is nothing."""
    with reader.cursor(row_factory=class_row(DatasetWait)) as cursor:
        return cursor.execute("select * from onceflow.list_dataset_waits(%s)", (dag_id,)).fetchall()
