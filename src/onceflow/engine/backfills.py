"""Backfills: runs of a dag for logical dates from the past, as a resource that is paused, resumed, cancelled and asked how far it is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.decorator import DagFunction
from onceflow.authoring.graph.param import check_params
from onceflow.authoring.schedule import Schedule, unpack_schedule
from onceflow.authoring.ticks import RESOLUTION, find_zone
from onceflow.authoring.timetable import PlannedRun, iterate_runs
from onceflow.checks import MOST_INT, check_moment, check_text, check_whole, show
from onceflow.codec import decode, encode
from onceflow.db import calls, dag_calls
from onceflow.engine.requests import Request, name_of
from onceflow.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from onceflow.engine.async_client import AsyncClient
    from onceflow.engine.client import Client

MOST_RUNS = 100_000
Dag = DAG | DagFunction[...] | str


class BackfillArguments(TypedDict, total=False):
    """The options of a backfill, by name."""

    reprocess: str
    reverse: bool
    max_active_runs: int
    on_failure: str
    params: dict[str, Any] | None
    priority: int
    actor: str | None


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """`reprocess`: what a date does that has a run: none keeps it, failed runs it again if it failed, completed if it ended at all. `reverse`: the latest date
    first. `on_failure`: after a run that failed, pause until somebody resumes it, or continue. `priority`: of its runs; by default behind all other work."""

    reprocess: str = "none"
    reverse: bool = False
    max_active_runs: int = 1
    on_failure: str = "pause"
    params: dict[str, Any] | None = None
    priority: int = -1_000_000
    actor: str | None = None

    def __post_init__(self) -> None:
        for name, accepted in (("reprocess", ("none", "failed", "completed")), ("on_failure", ("pause", "continue"))):
            if getattr(self, name) not in accepted:
                raise InvalidArgument(f"{name} cannot be {show(getattr(self, name))}; write one of {', '.join(accepted)}")
        check_whole(self.max_active_runs, "max_active_runs", 1)
        check_whole(self.priority, "priority", -MOST_INT)


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far a backfill is. `skipped` dates had a run already; `eta_s`: seconds until it ends at its present pace, None when that cannot be said."""

    backfill: int
    dag_id: str
    state: str
    reason: str | None
    from_date: datetime
    to_date: datetime
    reprocess: str
    is_reverse: bool
    max_active_runs: int
    on_failure: str
    params: dict[str, Any]
    priority: int
    total: int
    skipped: int
    queued: int
    running: int
    success: int
    failed: int
    cancelled: int
    is_dag_paused: bool
    eta_s: float | None
    actor: str
    created_at: datetime
    ended_at: datetime | None

    @property
    def ended(self) -> int:
        return self.success + self.failed + self.cancelled

    @classmethod
    def from_json(cls, answer: dict[str, Any]) -> BackfillProgress:
        moments = {name: datetime.fromisoformat(answer[name]) for name in ("from_date", "to_date", "created_at", "ended_at") if answer[name] is not None}
        return cls(**{name: moments.get(name, answer[name]) for name in cls.__slots__})


class BackfillHandle:
    """A backfill. `id` is its number, `total` the number of its runs, `skipped` that of the dates that kept the run they had."""

    def __init__(self, client: Client, answer: dict[str, Any]) -> None:
        self._client = client
        self.id, self.dag_id, self.total, self.skipped = int(answer["backfill"]), answer["dag_id"], int(answer["total"]), int(answer["skipped"])

    def progress(self) -> BackfillProgress:
        """How far it is, right now."""
        return BackfillProgress.from_json(self._client._call(dag_calls.read_backfill(self.id)))

    @property
    def state(self) -> str:
        """running, paused, cancelled or done."""
        return self.progress().state

    def pause(self, actor: str | None = None) -> None:
        """No more runs of it begin; those that run go on."""
        self._client._call(dag_calls.steer_backfill(self.id, "pause", actor))

    def resume(self, actor: str | None = None) -> None:
        """It goes on, also after a failure; what failed stays failed unless it was tried again."""
        self._client._call(dag_calls.steer_backfill(self.id, "resume", actor))

    def cancel(self, actor: str | None = None) -> None:
        """It ends, and its runs that have not ended are cancelled."""
        self._client._call(dag_calls.steer_backfill(self.id, "cancel", actor))

    def __repr__(self) -> str:
        return f"<backfill {self.id} of {self.dag_id}>"


class AsyncBackfillHandle:
    """A backfill; as BackfillHandle, with await."""

    def __init__(self, client: AsyncClient, answer: dict[str, Any]) -> None:
        self._client = client
        self.id, self.dag_id, self.total, self.skipped = int(answer["backfill"]), answer["dag_id"], int(answer["total"]), int(answer["skipped"])

    async def progress(self) -> BackfillProgress:
        return BackfillProgress.from_json(await self._client._call(dag_calls.read_backfill(self.id)))

    async def state(self) -> str:
        return (await self.progress()).state

    async def pause(self, actor: str | None = None) -> None:
        await self._client._call(dag_calls.steer_backfill(self.id, "pause", actor))

    async def resume(self, actor: str | None = None) -> None:
        await self._client._call(dag_calls.steer_backfill(self.id, "resume", actor))

    async def cancel(self, actor: str | None = None) -> None:
        await self._client._call(dag_calls.steer_backfill(self.id, "cancel", actor))

    def __repr__(self) -> str:
        return f"<backfill {self.id} of {self.dag_id}>"


def create_backfill(dag: Dag, start: date | str, end: date | str, options: BackfillOptions) -> Request:
    """Makes the backfill; answers what create_backfill does."""
    plan = yield from _plan_backfill(dag, start, end, options)
    where = f"params of a backfill of {plan.dag_id}"
    return (
        yield dag_calls.create_backfill(
            plan.dag_id,
            f"backfill-{secrets.token_hex(12)}",
            plan.bounds,
            plan.dates,
            options.reprocess,
            options.reverse,
            options.max_active_runs,
            options.on_failure,
            encode(options.params or {}, where=where),
            options.priority,
            options.actor,
        )
    )


def find_backfill(backfill: int) -> calls.Call:
    """Asks for a backfill by its number, which the database can hold."""
    return dag_calls.read_backfill(check_whole(backfill, "backfill", 1, 2**63 - 1))


def preview_backfill(dag: Dag, start: date | str, end: date | str, options: BackfillOptions) -> Request:
    """What it would do, date by date, in its order."""
    plan = yield from _plan_backfill(dag, start, end, options)
    found = yield dag_calls.preview_backfill(plan.dag_id, plan.dates, options.reprocess)
    return found[::-1] if options.reverse else found


@dataclass(frozen=True, slots=True)
class _Plan:
    dag_id: str
    bounds: tuple[str, str]
    dates: str  # JSON: [[logical date, interval start, interval end], …]


def _plan_backfill(dag: Dag, start: date | str, end: date | str, options: BackfillOptions) -> Request:
    dag_id = check_text(dag, "dag_id") if isinstance(dag, str) else name_of(dag)
    found = yield calls.read_params(dag_id)
    if found["kind"] != "dag":
        raise NotFound(f"there is no dag named {dag_id}; start a worker or scheduler that has it, or check the name")
    check_params({**decode(json.dumps(found["params"])), **(options.params or {})}, found["schemas"], f"dag {dag_id}")
    if found["schedule"] is None:
        raise InvalidArgument(f"dag {dag_id} has no schedule, so there are no dates to fill; start single runs with params, or a logical date, in place of it")
    schedule = unpack_schedule(json.dumps(found["schedule"]))
    if not schedule.timetable.periodic:
        raise InvalidArgument(f"dag {dag_id} runs {schedule.timetable.description}: that gives no dates to fill")
    first, last = read_bounds(start, end, schedule)
    runs = list(_list_due(schedule, first, last, datetime.fromisoformat(found["now"]), dag_id))
    if not runs:
        raise InvalidArgument(f"dag {dag_id} has no complete data interval whose logical date lies from {first.isoformat()} to {last.isoformat()}")
    dates = json.dumps([[moment.isoformat() for moment in (run.logical_date, run.interval_start, run.interval_end)] for run in runs])
    return _Plan(dag_id, (first.isoformat(), last.isoformat()), dates)


def _list_due(schedule: Schedule, first: datetime, last: datetime, now: datetime, dag_id: str) -> Iterator[PlannedRun]:
    """The runs of these dates whose time has come; those to come are the schedule's own."""
    for number, run in enumerate(iterate_runs(schedule.timetable, first, last)):
        if run.run_after > now:
            return
        if number >= MOST_RUNS:
            raise InvalidArgument(f"a backfill of {dag_id} would have more than {MOST_RUNS} runs; take a shorter time")
        yield run


def read_bounds(start: date | str, end: date | str, schedule: Schedule) -> tuple[datetime, datetime]:
    """The first and the last moment. A date (or its text) is a day in the dag's zone: as the end, the whole of it. A naive datetime is UTC."""
    first, last = _read_moment(start, "start", schedule, False), _read_moment(end, "end", schedule, True)
    if last < first:
        raise InvalidArgument(f"a backfill cannot end ({last.isoformat()}) before it starts ({first.isoformat()})")
    return first, last


def _read_moment(value: date | str, name: str, schedule: Schedule, is_end: bool) -> datetime:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value) if len(value) <= 10 else datetime.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(f"{name} {value!r} is no date; write for example 2026-01-31 or 2026-01-31T06:00:00+01:00") from None
    if isinstance(value, datetime):
        return check_moment(value, name)
    if not isinstance(value, date):
        raise InvalidArgument(f"{name} must be a date or a datetime, not {show(value)}")
    if not 1 < value.year < 9999:
        raise InvalidArgument(f"{name} {value.isoformat()} is too near to the end of time; take a year from 2 to 9998")
    zone = find_zone(schedule.timezone)
    if is_end:
        return datetime.combine(value + timedelta(days=1), time(), zone) - RESOLUTION
    return datetime.combine(value, time(), zone)
