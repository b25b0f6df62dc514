"""What `onceflow doctor` looks at: facts of one database, counted by SQL and by its one clock; no judgement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row, scalar_row

from onceflow.db.dag_file_queries import ImportErrorRow, list_import_errors
from onceflow.db.dataset_queries import DatasetWait, list_dataset_waits
from onceflow.db.queries import DagRow, Reader, WorkerRow, list_dags, list_workers


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """Claimable tasks of one lane, and the workers that may claim from it: alive, silent, and the leases the alive hold.

    `first_seq` is the oldest arrival: as long as it stays the same, that task was not taken. `on_queue`: alive workers of the queue, whatever code they have.
    """

    queue: str
    dag_id: str
    version: str | None
    ready: int
    first_seq: int
    alive: int
    silent: int
    on_queue: int
    held: int


@dataclass(frozen=True, slots=True)
class TimerFacts:
    """Timers of one dag and kind: start, retry, wait. `overdue` are due for more than 5 s."""

    dag_id: str
    kind: str
    count: int
    overdue: int
    next_at: datetime


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """What deferred bodies of one dag wait for: message, event, task, run; or code, with its version as the target; tasks: past, with the first run
    waited for; trigger; answer, of a person."""

    dag_id: str
    kind: str
    target: str
    count: int
    workers: int
    example: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What concerns the whole engine. Ages are seconds.

    `seal_lag` is the answer of the SQL function: unsealed entries, lag_s of the oldest (None without one), and held_by, the open transaction they wait for.
    """

    tick_age_s: float
    rescues_off_s: float
    seal_lag: dict[str, Any]
    has_partition: bool
    is_pooled: bool
    mighty_step_logins: list[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one diagnosis is made from; of one dag, if `dag_id` is given."""

    dag_id: str | None
    dags: list[DagRow]
    workers: list[WorkerRow]
    lanes: list[LaneFacts]
    timers: list[TimerFacts]
    waits: list[WaitFacts]
    running: int
    engine: EngineFacts
    import_errors: list[ImportErrorRow]
    dataset_waits: list[DatasetWait]


def read_facts(reader: Reader, dag_id: str | None = None) -> Facts:
    """The facts of one moment: a snapshot, in which nothing moves between two looks."""
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read")
        return _read_facts(reader, dag_id)


def _read_facts(reader: Reader, dag_id: str | None) -> Facts:
    return Facts(
        dag_id,
        list_dags(reader, dag_id),
        list_workers(reader),
        _list_lanes(reader, dag_id),
        _list_timers(reader, dag_id),
        _list_waits(reader, dag_id),
        reader.cursor(row_factory=scalar_row)
        .execute("select count(*) from onceflow.lease where %(dag)s::text is null or dag_id = %(dag)s", {"dag": dag_id})
        .fetchone()
        or 0,
        _read_engine(reader),
        list_import_errors(reader, dag_id),
        list_dataset_waits(reader, dag_id),
    )


def _list_lanes(reader: Reader, dag_id: str | None) -> list[LaneFacts]:
    return (
        reader.cursor(row_factory=class_row(LaneFacts))
        .execute(
            """with n as materialized (select onceflow.now() t), w as materialized (
               select w.*, w.heartbeat_at >= n.t - make_interval(secs => w.lease_s) as alive,
                   (select count(*) from onceflow.lease l where l.worker = w.id) as held
               from n, onceflow.worker w where w.ended_at is null),
           heads as (select lane, count(*) as ready, min(seq) as first_seq from onceflow.ready group by lane)
        select l.queue, l.dag_id, l.version, h.ready, h.first_seq, s.alive, s.silent, s.on_queue, s.held
        from heads h join onceflow.lane l on l.id = h.lane,
        lateral (select count(*) filter (where fits and w.alive) as alive, count(*) filter (where fits and not w.alive) as silent,
                     count(*) filter (where w.alive and l.queue = any(w.queues)) as on_queue,
                     coalesce(sum(w.held) filter (where fits and w.alive), 0)::bigint as held
                 from w, lateral (select l.queue = any(w.queues) and w.code_versions ? l.dag_id
                     and (l.version is null or w.code_versions ->> l.dag_id = l.version) as fits) k) s
        where %(dag)s::text is null or l.dag_id = %(dag)s order by h.ready desc""",
            {"dag": dag_id},
        )
        .fetchall()
    )


def _list_timers(reader: Reader, dag_id: str | None) -> list[TimerFacts]:
    return (
        reader.cursor(row_factory=class_row(TimerFacts))
        .execute(
            """select r.dag_id, m.kind, count(*) as count, min(m.due_at) as next_at,
            count(*) filter (where m.due_at < n.t - interval '5 seconds') as overdue
        from (select onceflow.now() t) n, onceflow.timer m join onceflow.run r on r.id = m.run
        where m.kind not in ('run_timeout', 'deadline', 'deferral') and (%(dag)s::text is null or r.dag_id = %(dag)s)
        group by r.dag_id, m.kind order by 3 desc""",
            {"dag": dag_id},
        )
        .fetchall()
    )


def _list_waits(reader: Reader, dag_id: str | None) -> list[WaitFacts]:
    return (
        reader.cursor(row_factory=class_row(WaitFacts))
        .execute(
            """select r.dag_id, w.kind, x.target, count(*) as count, min(r.dag_id || '/' || r.run_id) as example,
            (select count(*) from onceflow.worker k where w.kind = 'code' and k.ended_at is null and k.code_versions ->> r.dag_id = x.target
             and k.heartbeat_at >= n.t - make_interval(secs => k.lease_s)) as workers
        from (select onceflow.now() t) n, onceflow.wait w join onceflow.run r on r.id = w.run,
        lateral (select case when w.kind = 'code' then substr(w.target, length(r.dag_id) + 2)
            when w.kind in ('message', 'event') then w.target else '' end as target) x
        where %(dag)s::text is null or r.dag_id = %(dag)s group by r.dag_id, w.kind, x.target, n.t
        union all
        select r.dag_id, 'past', '', count(*), (array_agg(r.dag_id || '/' || r.run_id order by r.logical_date))[1], 0
        from onceflow.past_wait w join onceflow.run r on r.id = w.previous where %(dag)s::text is null or r.dag_id = %(dag)s group by r.dag_id
        union all
        select r.dag_id, case when g.is_manual then 'answer' else 'trigger' end, '', count(*), min(r.dag_id || '/' || r.run_id), 0
        from onceflow.trigger g join onceflow.run r on r.id = g.run where %(dag)s::text is null or r.dag_id = %(dag)s group by r.dag_id, 2 order by 4 desc""",
            {"dag": dag_id},
        )
        .fetchall()
    )


def _read_engine(reader: Reader) -> EngineFacts:
    with reader.transaction():
        row = (
            reader.cursor(row_factory=class_row(EngineFacts))
            .execute(
                """select extract(epoch from n.t - e.last_tick_at)::float8 as tick_age_s,
                extract(epoch from e.no_rescue_before - n.t)::float8 as rescues_off_s,
                onceflow.seal_lag() as seal_lag,
                pg_catalog.to_regclass('onceflow.run_' || to_char(clock_timestamp() at time zone 'UTC', 'YYYYMM')) is not null as has_partition,
                pg_catalog.pg_backend_pid() <> %s as is_pooled,
                array(select distinct a.usename::text from pg_catalog.pg_stat_activity a
                    where a.datname = current_database() and a.application_name like 'onceflow-step:%%' and exists (
                        select from unnest(array['onceflow_worker', 'onceflow_owner']) r where pg_catalog.pg_has_role(a.usename, r, 'MEMBER'))
                    ) as mighty_step_logins
            from (select onceflow.now() t) n, onceflow.engine e""",
                (reader.info.backend_pid,),
            )
            .fetchone()
        )
    assert row is not None  # onceflow.engine always has its one row
    return row
