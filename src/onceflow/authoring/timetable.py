"""What every timetable answers: which run comes next. Pure: the clock is an argument, and nothing here knows of a database.

A timetable is a row of runs in time. The scheduler asks `plan_runs`: given the interval of the last run it made by the timetable (or none), the bounds, the
catchup flag and now, which runs are due, and which comes after them. The rules it may rely on:
- Catchup makes every run since the last one; without it only the latest that is due, if it is newer than the last: never a storm.
- Data intervals follow each other without a gap or an overlap, also when the schedule was changed in between: the first interval of the new
  schedule begins where the last one of the old ended, and ends at the new schedule's next tick. So nothing is processed twice, and nothing is left out.
- The logical date is the start of the interval, and grows from run to run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

from onceflow.authoring.ticks import as_utc
from onceflow.errors import AuthoringError


@dataclass(frozen=True, slots=True)
class DataInterval:
    """The time whose data a run processes: from `start` up to, but without, `end`. Both in UTC; equal for a run that only has a moment."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", as_utc(self.start))
        object.__setattr__(self, "end", as_utc(self.end))
        if self.end < self.start:
            raise AuthoringError(f"a data interval cannot end ({self.end.isoformat()}) before it starts ({self.start.isoformat()})")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a timetable: its logical date, the interval of its data, and the earliest moment it may start. All in UTC."""

    logical_date: datetime
    interval_start: datetime
    interval_end: datetime
    run_after: datetime

    @classmethod
    def over(cls, start: datetime, end: datetime, run_after: datetime | None = None) -> Self:
        """The run over an interval: its logical date is the start, and it may start at the end, unless that is said otherwise.

        >>> PlannedRun.over(datetime(2026, 1, 1), datetime(2026, 1, 2)).run_after.isoformat()
        '2026-01-02T00:00:00+00:00'
        """
        interval = DataInterval(start, end)
        return cls(interval.start, interval.start, interval.end, interval.end if run_after is None else as_utc(run_after))

    @property
    def interval(self) -> DataInterval:
        return DataInterval(self.interval_start, self.interval_end)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and the last logical date of a dag's scheduled runs (its start_date and end_date), both included; None: no bound."""

    earliest: datetime | None = None
    latest: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("earliest", "latest"):
            if (moment := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_utc(moment))


class Timetable(ABC):
    """A schedule. Write your own by these two methods; catchup, bounds, manual runs and backfills follow from them.

    An object is kept in the database as the import path of its class and the arguments it was made with, and made again from them by the scheduler, which does
    not import the file of the dag: put the class into a module that can be imported, take arguments that a step could take, and change nothing afterwards.

    >>> class Launches(Timetable):
    ...     days = [datetime(2026, 1, 9, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)]
    ...     def next_run(self, last, bounds):
    ...         after = [day for day in self.days if (last is None or day > last.end) and (bounds.earliest is None or day >= bounds.earliest)]
    ...         return PlannedRun.over(after[0], after[0]) if after else None
    ...     def latest_run(self, moment, bounds):
    ...         before = [day for day in self.days if day <= moment]
    ...         return PlannedRun.over(before[-1], before[-1]) if before else None
    """

    periodic: ClassVar[bool] = True  # counts from a start date, which catchup therefore needs
    makes_runs: ClassVar[bool] = True  # else no run comes by itself
    active_runs_limit: ClassVar[int | None] = None  # the highest max_active_runs that makes sense
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_arguments", (args, kwargs))
        return made

    def __init__(self) -> None:  # noqa: B027
        """Takes nothing, unless a subclass does: otherwise a wrong argument would go unnoticed."""

    @abstractmethod
    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        """The run that follows the one over `last`; without one, the first whose logical date is not before bounds.earliest. None: there is no more."""

    @abstractmethod
    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        """Of the runs that may have started by this moment (run_after is not later), the last. None: there is none. `bounds.latest` may cut it short."""

    @property
    def description(self) -> str:
        """What people read on pages and in lists."""
        return repr(self)

    def plan_run(self, last: DataInterval | None, bounds: Bounds, *, catchup: bool, now: datetime) -> PlannedRun | None:
        """The run to make next: it is due if its run_after has come. None: there is no more."""
        found = None if catchup else self._find_newer(last, bounds, as_utc(now))
        run = found or self.next_run(last, bounds)
        if run is None:
            return None
        if last is not None:
            run = self.follow(run, last)
            if run.logical_date <= last.start:
                raise AuthoringError(
                    f"{self!r}.next_run gave logical date {run.logical_date.isoformat()} after {last.start.isoformat()}: it does not move on. "
                    "Return a run whose interval starts later, or None"
                )
        return None if bounds.latest is not None and run.logical_date > bounds.latest else run

    def infer_interval(self, moment: datetime) -> DataInterval:
        """The interval of a run started by hand at this moment: the last complete one; the moment itself if there is none."""
        run = self.latest_run(as_utc(moment), Bounds())
        return run.interval if run else DataInterval(moment, moment)

    def find_interval(self, logical_date: datetime) -> DataInterval:
        """The interval of a run started by hand for a logical date: that of the scheduled run of this date, if there is one; else as for a moment."""
        run = self.next_run(None, Bounds(earliest=logical_date))
        return run.interval if run and run.logical_date == as_utc(logical_date) else self.infer_interval(logical_date)

    def follow(self, run: PlannedRun, last: DataInterval) -> PlannedRun:
        """The run, made to fit behind the last one. Left as it is where intervals need not touch."""
        return run

    def keep_arguments(self, kind: type[Timetable], *args: Any, **kwargs: Any) -> None:
        """The arguments of `kind` written out, so that equal timetables are kept equally; a subclass keeps those that it was made with."""
        if type(self) is kind:
            self._arguments = (args, kwargs)

    def _find_newer(self, last: DataInterval | None, bounds: Bounds, now: datetime) -> PlannedRun | None:
        run = self.latest_run(now, bounds)
        if run is None or (bounds.earliest is not None and run.interval_start < bounds.earliest):
            return None
        return run if last is None or run.interval_end > last.end else None

    def __repr__(self) -> str:
        args, kwargs = self._arguments
        return f"{type(self).__name__}({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Timetable) and self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash((type(self), repr(self._arguments)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs to make now, oldest first, and the one that follows them (None: there is no more). That one is due too when `limit` cut the list."""

    due: list[PlannedRun]
    upcoming: PlannedRun | None


def plan_runs(timetable: Timetable, last: DataInterval | None, bounds: Bounds, *, catchup: bool, now: datetime, limit: int = 100) -> Plan:
    """What the scheduler has to do for one dag: at most `limit` due runs, and when to look again.

    >>> plan = plan_runs(CronInterval("@daily"), None, Bounds(datetime(2026, 1, 1)), catchup=True, now=datetime(2026, 1, 3, 12))
    >>> len(plan.due), plan.upcoming.run_after.day
    (2, 4)
    """
    now, due = as_utc(now), list[PlannedRun]()
    limit = min(limit, timetable.active_runs_limit or limit)
    # Behind the latest there is nothing newer to look for.
    while (run := timetable.plan_run(last, bounds, catchup=catchup or bool(due), now=now)) is not None and run.run_after <= now and len(due) < limit:
        due.append(run)
        last = run.interval
    return Plan(due, run)


def iterate_runs(timetable: Timetable, start: datetime, end: datetime | None = None) -> Iterator[PlannedRun]:
    """Every run whose logical date lies between two moments, both included: what a backfill makes. Nothing for a timetable that is not periodic.

    >>> len(list(iterate_runs(CronInterval("@daily"), datetime(2025, 1, 1), datetime(2025, 12, 31))))
    365
    """
    if not timetable.periodic:
        return
    bounds = Bounds(start, end)
    run = timetable.plan_run(None, bounds, catchup=True, now=start)
    while run is not None:
        yield run
        run = timetable.plan_run(run.interval, bounds, catchup=True, now=start)
