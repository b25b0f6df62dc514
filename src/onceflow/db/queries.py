"""What people and pages read: every query answers frozen dataclasses. Nothing here writes, or compares times in Python.

All work on the views and tables that roles onceflow_operator and onceflow_auditor may read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row, scalar_row

from onceflow.db.sync_runner import connect
from onceflow.errors import NoDatabase, NotFound
from onceflow.settings import mask_dsn

Reader = psycopg.Connection[Any]
LIVING = ("queued", "running", "needs_code")
ENDED = ("success", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, without its payloads."""

    run: int
    dag_id: str
    run_id: str
    state: str
    run_type: str
    logical_date: datetime
    created_at: datetime
    start_date: datetime | None
    end_date: datetime | None
    queue: str
    parent_run: int | None
    code_version: str | None
    stop_reason: str | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task instance of a run, as the view task_instance has it."""

    ti: int
    task_id: str
    map_index: int
    state: str
    try_number: int
    start_date: datetime | None
    end_date: datetime | None
    duration: float | None
    hostname: str | None
    worker: int | None
    next_retry_at: datetime | None
    error: str | None
    rendered_map_index: str | None

    @property
    def label(self) -> str:
        """Its task's id; of a mapped instance with its index and name."""
        name = f" {self.rendered_map_index}" if self.rendered_map_index else ""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]{name}"


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A failed task, and its recorded error with the traceback."""

    task_id: str
    map_index: int
    error: Any


@dataclass(frozen=True, slots=True)
class WaitRow:
    """What a deferred task waits for; `due_at` when it is (also) a moment."""

    ti: int
    kind: str
    target: str
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One run with what it was given, what it gave, its tasks and what they wait for."""

    row: RunRow
    conf: Any
    output: Any
    error: Any
    tasks: tuple[TaskRow, ...]
    waits: tuple[WaitRow, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry of the step ledger."""

    id: int
    task_id: str
    map_index: int
    step_key: str
    step_name: str
    kind: str
    try_number: int
    from_state: str
    to_state: str
    inputs: Any
    output: Any
    error: Any
    started_at: datetime | None
    at: datetime
    worker: int | None
    host: str | None
    code_version: str | None
    actor: str | None
    xid: str
    hash: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker. `state`: alive, silent (no heartbeat for its lease) or ended."""

    worker: int
    host: str
    pid: int
    state: str
    queues: list[str]
    held: int
    heartbeat_age_s: float
    lease_s: float
    started_at: datetime
    ended_at: datetime | None
    login: str
    is_superuser: bool
    code_versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class DagRow:
    """One registered dag or workflow; ready, running and waiting count its task instances right now."""

    dag_id: str
    kind: str
    is_paused: bool
    is_active: bool
    schedule_interval: str | None
    next_dagrun_create_after: datetime | None
    has_import_errors: bool
    code_version: str | None
    workers: int
    ready: int
    running: int
    waiting: int
    description: str | None
    fileloc: str | None


@dataclass(frozen=True, slots=True)
class ServerRow:
    """The PostgreSQL server."""

    version: str
    settings: dict[str, str]


@contextmanager
def open_reader(dsn: str) -> Iterator[Reader]:
    """An autocommit connection for the functions below, closed afterwards; NoDatabase if it cannot be made."""
    try:
        conn = connect(dsn, "onceflow-reader")
    except psycopg.Error as error:
        raise NoDatabase(f"cannot connect to {mask_dsn(dsn)}: {str(error).strip().partition(chr(10))[0]}. Is the server up, and the DSN right?") from None
    with conn:
        yield conn


_RUN_COLUMNS = """d.id as run, d.dag_id, d.run_id, d.state, d.run_type, d.logical_date, d.created_at, d.start_date, d.end_date, d.queue, d.parent_run,
    d.code_version, d.stop_reason, d.actor"""
# A living run has a row in one of these small tables, so nothing scans the ended ones.
_LIVING_RUNS = "select run from onceflow.ready union select run from onceflow.lease union select run from onceflow.timer union select run from onceflow.wait"


def list_runs(reader: Reader, *, state: str | None = None, dag_id: str | None = None, before: int | None = None, limit: int = 50) -> list[RunRow]:
    """The newest runs first; those of one state or dag; `before` is the last run id of the page before."""
    kept = {
        None: "true",
        "queued": f"r.id in ({_LIVING_RUNS})",
        "running": f"r.id in ({_LIVING_RUNS})",
        "needs_code": f"r.id in ({_LIVING_RUNS})",
    }.get(state, "r.state = %(state)s")
    rows = f"""select {_RUN_COLUMNS} from (
            select r.id from onceflow.run r
            where {kept} and (%(dag_id)s::text is null or r.dag_id = %(dag_id)s) and (%(before)s::bigint is null or r.id < %(before)s)
            order by r.id desc {"" if state in LIVING else "limit %(limit)s"}) p
        join onceflow.dag_run d on d.id = p.id where %(state)s::text is null or d.state = %(state)s order by d.id desc limit %(limit)s"""
    values = {"state": state, "dag_id": dag_id, "before": before, "limit": limit}
    return reader.cursor(row_factory=class_row(RunRow)).execute(rows.encode(), values).fetchall()


def find_run(reader: Reader, name: str) -> int:
    """The run of that name: its run id, DAG/RUN_ID, or its number. NotFound if there is none, or several (it lists them), or it was archived."""
    cuts = [i for i, char in enumerate(name) if char == "/"]
    found = reader.execute(
        """select run, dag_id, run_id from onceflow.run_key where run_id = %(name)s
        union select k.run, k.dag_id, k.run_id from onceflow.run_key k
            join unnest(%(dags)s::text[], %(ids)s::text[]) n(d, i) on k.dag_id = n.d and k.run_id = n.i
        union select r.id, r.dag_id, r.run_id from onceflow.run r where r.id = %(number)s::bigint order by 1""",
        {"name": name, "dags": [name[:i] for i in cuts], "ids": [name[i + 1 :] for i in cuts], "number": _number(name)},
    ).fetchall()
    if not found:
        raise NotFound(f"there is no run {name!r}. List runs with: onceflow runs list")
    if len(found) > 1:
        names = ", ".join(f"{dag}/{run_id}" for _, dag, run_id in found)
        raise NotFound(f"{name!r} names {len(found)} runs: {names}. Name one as DAG/RUN_ID.")
    run = int(found[0][0])
    if reader.execute("select 1 from onceflow.run where id = %s", (run,)).fetchone() is None:
        raise NotFound(f"run {found[0][1]}/{found[0][2]} was archived; its rows are in schema onceflow_archive (tables run, ti, step_ledger, id {run})")
    return run


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and int(name) < 2**63 else None


def read_run(reader: Reader, run: int) -> RunDetail:
    """One run; NotFound if there is none."""
    row = reader.cursor(row_factory=class_row(RunRow)).execute(f"select {_RUN_COLUMNS} from onceflow.dag_run d where d.id = %s".encode(), (run,)).fetchone()
    # A dag has no output of its own: success says it all, as RunHandle.result does.
    payload: tuple[Any, Any, Any] | None = reader.execute(
        "select conf, case when output is null and state = 'success' then to_jsonb(state) else output end, error from onceflow.dag_run where id = %s", (run,)
    ).fetchone()
    if row is None or payload is None:
        raise NotFound(f"there is no run {run}")
    tasks = (
        reader.cursor(row_factory=class_row(TaskRow))
        .execute(
            """select id as ti, task_id, map_index, state, try_number, start_date, end_date, duration, hostname, worker, next_retry_at, error, rendered_map_index
        from onceflow.task_instance where run = %s order by ix, map_index, id""",
            (run,),
        )
        .fetchall()
    )
    waits = (
        reader.cursor(row_factory=class_row(WaitRow))
        .execute(
            """select w.ti, w.kind, coalesce(case w.kind
                when 'run' then (select r.dag_id || '/' || r.run_id from onceflow.run r where r.id = w.target_run)
                when 'task' then (select t.task_id || '/' || t.id from onceflow.ti t where t.run = w.target_run and t.id::text = w.target)
                end, w.target) as target,
            null::timestamptz as due_at
        from onceflow.wait w where w.run = %(run)s
        union all select ti, kind, '', due_at from onceflow.timer where run = %(run)s order by 1, 2""",
            {"run": run},
        )
        .fetchall()
    )
    return RunDetail(row, *payload, tuple(tasks), tuple(waits))


def list_failures(reader: Reader, run: int, limit: int) -> list[FailureRow]:
    """What failed tasks of a run were recorded to fail by, in the order of the tasks; at most so many."""
    return (
        reader.cursor(row_factory=class_row(FailureRow))
        .execute(
            """select distinct on (t.id) t.task_id, t.map_index, l.error
        from onceflow.task_instance t join onceflow.step_ledger l on l.dag_run = t.run and l.ti = t.id and l.step_key = t.task_id and l.to_state = 'failed'
        where t.run = %s and t.state = 'failed' order by t.id, l.id desc limit %s""",
            (run, limit),
        )
        .fetchall()
    )


def read_run_state(reader: Reader, run: int) -> str:
    """The state of one run; NotFound if there is none."""
    row = reader.execute("select state from onceflow.dag_run where id = %s", (run,)).fetchone()
    if row is None:
        raise NotFound(f"there is no run {run}")
    return str(row[0])


def list_entries(reader: Reader, run: int) -> list[LedgerEntry]:
    """The ledger entries of a run, in the order in which they were written."""
    return (
        reader.cursor(row_factory=class_row(LedgerEntry))
        .execute(
            """select id, task_id, map_index, step_key, step_name, kind, try_number, from_state, to_state, inputs, output, error, started_at, at, worker, host,
               code_version, actor, xid::text as xid, encode(hash, 'hex') as hash
        from onceflow.step_ledger where dag_run = %s order by id""",
            (run,),
        )
        .fetchall()
    )


def list_workers(reader: Reader, *, ended: bool = False, worker: int | None = None) -> list[WorkerRow]:
    """Workers that have not ended (or all), the latest started first."""
    return (
        reader.cursor(row_factory=class_row(WorkerRow))
        .execute(
            """select w.id as worker, w.host, w.pid, w.queues, w.lease_s, w.started_at, w.ended_at, w.login, w.code_versions,
               coalesce(u.rolsuper, false) as is_superuser,
               case when w.ended_at is not null then 'ended'
                   when w.heartbeat_at < n.t - make_interval(secs => w.lease_s) then 'silent' else 'alive' end as state,
               (select count(*) from onceflow.lease l where l.worker = w.id) as held,
               extract(epoch from n.t - w.heartbeat_at)::float8 as heartbeat_age_s
        from (select onceflow.now() t) n, onceflow.worker w left join pg_catalog.pg_roles u on u.rolname = w.login
        where (%(ended)s or w.ended_at is null) and (%(worker)s::bigint is null or w.id = %(worker)s) order by w.id desc""",
            {"ended": ended, "worker": worker},
        )
        .fetchall()
    )


def list_dags(reader: Reader, dag_id: str | None = None) -> list[DagRow]:
    """Every registered dag and workflow, or the one named. Executes no code of theirs."""
    return (
        reader.cursor(row_factory=class_row(DagRow))
        .execute(
            """with live as (
               select dag_id, count(*) filter (where what = 'ready') as ready, count(*) filter (where what = 'running') as running,
                   count(*) filter (where what = 'waiting') as waiting from (
                   select l.dag_id, 'ready' as what from onceflow.ready r join onceflow.lane l on l.id = r.lane
                   union all select dag_id, 'running' from onceflow.lease
                   union all select r.dag_id, 'waiting' from (
                       select run, ti from onceflow.wait union select run, ti from onceflow.timer where kind <> 'run_timeout') w
                       join onceflow.run r on r.id = w.run) x
               group by dag_id)
        select d.dag_id, d.kind, d.is_paused, d.is_active, d.schedule_interval, d.next_dagrun_create_after, d.has_import_errors, d.code_version, d.description, d.fileloc,
            coalesce(v.ready, 0) as ready, coalesce(v.running, 0) as running, coalesce(v.waiting, 0) as waiting,
            (select count(*) from onceflow.worker w where w.ended_at is null and w.code_versions ? d.dag_id
             and w.heartbeat_at >= n.t - make_interval(secs => w.lease_s)) as workers
        from (select onceflow.now() t) n, onceflow.dag d left join live v on v.dag_id = d.dag_id
        where %(dag_id)s::text is null or d.dag_id = %(dag_id)s order by d.dag_id""",
            {"dag_id": dag_id},
        )
        .fetchall()
    )


def verify_ledger(reader: Reader) -> list[dict[str, Any]]:
    """What onceflow.verify_ledger() finds wrong: no row means that the ledger is what was written."""
    return reader.cursor(row_factory=dict_row).execute("select v.* from onceflow.verify_ledger() v").fetchall()


def find_writers(reader: Reader, table: str, where: str, limit: int) -> list[dict[str, Any]]:
    """Which entries wrote the rows of a table that the SQL condition selects. Runs in a READ ONLY transaction: the condition is the user's own SQL."""
    with reader.transaction():
        reader.execute("set transaction read only")
        name = reader.cursor(row_factory=scalar_row).execute("select %s::regclass::text", (table,)).fetchone()
        # A parameter makes it a single statement by protocol; the line's end closes a comment in the condition.
        query = f"select p.ctid::text as row, w.* from {name} p, onceflow.who_wrote(p.tableoid, p.ctid) w where ({where}\n) limit ".replace("%", "%%") + "%s"
        return reader.cursor(row_factory=dict_row).execute(query.encode(), (limit,)).fetchall()


def read_server(reader: Reader) -> ServerRow:
    """The server's version, and its settings that the promise depends on."""
    names = ["server_version", "fsync", "synchronous_commit", "track_commit_timestamp"]
    settings = dict(reader.execute("select name, setting from pg_catalog.pg_settings where name = any(%s)", (names,)).fetchall())
    return ServerRow(settings.pop("server_version"), settings)
