"""The timetables that come along."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar

from onceflow.authoring.ticks import EPOCH, LAST, RESOLUTION, AlignedTicks, CronTicks, DeltaTicks, Ticks, Unit, UnitedTicks, as_utc, find_zone
from onceflow.authoring.timetable import Bounds, DataInterval, PlannedRun, Timetable
from onceflow.errors import AuthoringError


class _Intervals(Timetable):
    """A run for each interval between two ticks, when it is over."""

    ticks: Ticks

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        if last is not None and (bounds.earliest is None or bounds.earliest <= last.end):
            start: datetime | None = last.end
        else:
            start = None if bounds.earliest is None else self.ticks.ceil(bounds.earliest)
        end = None if start is None else _after(self.ticks, start)
        return None if start is None or end is None else PlannedRun.over(start, end, self.ticks.due(end))

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        end = self.ticks.last_due(moment)
        start = None if end is None else self.ticks.floor(end - RESOLUTION)
        if start is not None and bounds.latest is not None and start > bounds.latest:
            start = self.ticks.floor(bounds.latest)
            end = None if start is None else _after(self.ticks, start)
        return None if start is None or end is None else PlannedRun.over(start, end, self.ticks.due(end))

    def follow(self, run: PlannedRun, last: DataInterval) -> PlannedRun:
        """Begins where the last one ended, if that is within it. Behind a run without length (a trigger's) the logical date moves on by a microsecond."""
        start = max(run.interval_start, last.end)
        logical_date = start if start > last.start else last.start + RESOLUTION
        return PlannedRun(logical_date, start, run.interval_end, run.run_after)


class _Triggers(Timetable):
    """A run at each tick, whose interval has no length."""

    ticks: Ticks

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        if last is not None and (bounds.earliest is None or bounds.earliest <= last.end):
            tick = _after(self.ticks, last.end)
        else:
            tick = None if bounds.earliest is None else self.ticks.ceil(bounds.earliest)
        return None if tick is None else PlannedRun.over(tick, tick)

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        tick = self.ticks.floor(moment if bounds.latest is None else min(moment, bounds.latest))
        return None if tick is None else PlannedRun.over(tick, tick)


class CronInterval(_Intervals):
    """A run for each interval between two ticks of a cron text (or of several together), when the interval is over. What a plain cron text means.

    Raises AuthoringError, which names the field, or the zone.

    >>> next(iterate_runs(CronInterval("0 6 * * *", timezone="Europe/Berlin"), datetime(2026, 1, 1))).run_after.isoformat()
    '2026-01-02T05:00:00+00:00'
    """

    def __init__(self, *crons: str, timezone: str | tzinfo = "UTC") -> None:
        self.crons, self.timezone = crons, str(timezone)
        self.ticks = _parse_crons(self, crons, self.timezone)
        self.keep_arguments(CronInterval, *crons, timezone=self.timezone)

    @property
    def description(self) -> str:
        return f"each interval of {_describe_crons(self.crons, self.timezone)}, when it is over"


class CronTrigger(_Triggers):
    """A run at each tick of a cron text (or of several together); logical date, interval and start are that tick.

    >>> next(iterate_runs(CronTrigger("0 6 * * *"), datetime(2026, 1, 1))).logical_date.isoformat()
    '2026-01-01T06:00:00+00:00'
    """

    def __init__(self, *crons: str, timezone: str | tzinfo = "UTC") -> None:
        self.crons, self.timezone = crons, str(timezone)
        self.ticks = _parse_crons(self, crons, self.timezone)
        self.keep_arguments(CronTrigger, *crons, timezone=self.timezone)

    @property
    def description(self) -> str:
        return f"at each tick of {_describe_crons(self.crons, self.timezone)}"


class Interval(_Intervals):
    """A run for each interval, when it is over. Of elapsed time, or by a cron text whose intervals may be whole days or months.

    `Interval(timedelta(hours=6))`: intervals of that length, counted from `anchor`: in a dag its start_date, otherwise 1970-01-01 UTC.
    `Interval("0 6 * * *", align="day")`: each day from 00:00 to 24:00 on the clock of `timezone`; its run starts at 06:00 of the day after. In general an
    interval reaches from the first day (month) with a tick to the next one, and its run starts at the first tick of that next one.

    >>> run = next(iterate_runs(Interval("0 6 * * *", align="day"), datetime(2026, 1, 1)))
    >>> run.interval_start.hour, run.interval_end.hour, run.run_after.hour
    (0, 0, 6)
    """

    def __init__(self, every: timedelta | str, *, align: Unit | None = None, timezone: str | tzinfo = "UTC", anchor: datetime | None = None) -> None:
        self.every, self.align, self.timezone, self.anchor = every, align, str(timezone), None if anchor is None else as_utc(anchor)
        if isinstance(every, str):
            self.ticks: Ticks = self._align_cron(every)
            self.keep_arguments(Interval, every, align=align, timezone=self.timezone)
        else:
            if align is not None:
                raise AuthoringError("Interval: only a cron text can be aligned; write for example Interval('0 6 * * *', align='day')")
            self.ticks = _measure(self, every, self.anchor)
            self.keep_arguments(Interval, every, anchor=self.anchor)

    def anchored(self, start: datetime | None) -> Interval:
        """The same, counted from there unless it is counted from somewhere."""
        return Interval(self.every, anchor=start) if isinstance(self.every, timedelta) and self.anchor is None else self

    @property
    def description(self) -> str:
        if isinstance(self.every, timedelta):
            return f"each interval of {self.every}, when it is over"
        cron = _describe_crons((self.every,), self.timezone)
        return f"the {self.align}s between the ticks of {cron}, at the first tick after" if self.align else f"each interval of {cron}, when it is over"

    def _align_cron(self, cron: str) -> Ticks:
        if self.anchor is not None:
            raise AuthoringError("Interval: a cron text has no anchor; leave it out, or give a timedelta")
        if self.align not in ("day", "month", None):
            raise AuthoringError(f"Interval: align cannot be {self.align!r}; write 'day' or 'month', or leave it out")
        fires = _parse_crons(self, (cron,), self.timezone)
        return fires if self.align is None else AlignedTicks(fires, self.align, find_zone(self.timezone))


class IntervalTrigger(_Triggers):
    """A run after each lapse of time, counted from `anchor`: in a dag its start_date, otherwise 1970-01-01 UTC. Its interval has no length.

    >>> IntervalTrigger(timedelta(minutes=10)).infer_interval(datetime(2026, 1, 1, 0, 25)).start.minute
    20
    """

    def __init__(self, every: timedelta, *, anchor: datetime | None = None) -> None:
        self.every, self.anchor = every, None if anchor is None else as_utc(anchor)
        self.ticks = _measure(self, every, self.anchor)
        self.keep_arguments(IntervalTrigger, every, anchor=self.anchor)

    def anchored(self, start: datetime | None) -> IntervalTrigger:
        """The same, counted from there unless it is counted from somewhere."""
        return IntervalTrigger(self.every, anchor=start) if self.anchor is None else self

    @property
    def description(self) -> str:
        return f"every {self.every}"


class Once(Timetable):
    """One run, at the start date; without one, as soon as it can."""

    periodic: ClassVar[bool] = False

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        return None if last is not None or bounds.earliest is None else PlannedRun.over(bounds.earliest, bounds.earliest)

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        return None

    def plan_run(self, last: DataInterval | None, bounds: Bounds, *, catchup: bool, now: datetime) -> PlannedRun | None:
        return super().plan_run(last, Bounds(bounds.earliest or now, bounds.latest), catchup=catchup, now=now)

    @property
    def description(self) -> str:
        return "once"


class Continuous(Timetable):
    """A run as soon as the one before is over; its interval begins where that one's ended, and ends now."""

    periodic: ClassVar[bool] = False
    active_runs_limit: ClassVar[int | None] = 1

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        return None

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        return None

    def plan_run(self, last: DataInterval | None, bounds: Bounds, *, catchup: bool, now: datetime) -> PlannedRun | None:
        now = as_utc(now)
        start = max(filter(None, (last.end if last else None, bounds.earliest)), default=now)
        if start > LAST or (bounds.latest is not None and start > bounds.latest):
            return None
        logical_date = start if last is None or start > last.start else last.start + RESOLUTION
        end = max(now, start + RESOLUTION)
        return PlannedRun(logical_date, start, end, max(now, start) if last is None else end)  # the first one does not wait for its data

    @property
    def description(self) -> str:
        return "again as soon as the run before is over"


class Unscheduled(Timetable):
    """No run by itself: what schedule=None means."""

    periodic: ClassVar[bool] = False
    makes_runs: ClassVar[bool] = False

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        return None

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        return None

    @property
    def description(self) -> str:
        return "only when it is started"


def _after(ticks: Ticks, moment: datetime) -> datetime | None:
    return None if moment > LAST else ticks.ceil(moment + RESOLUTION)


def _parse_crons(timetable: Timetable, crons: tuple[Any, ...], timezone: str) -> UnitedTicks:
    if not crons:
        raise AuthoringError(f"{type(timetable).__name__} takes a cron text, for example {type(timetable).__name__}('0 6 * * *')")
    return UnitedTicks(tuple(CronTicks.parse(cron, timezone) for cron in crons))


def _describe_crons(crons: tuple[str, ...], timezone: str) -> str:
    return f"cron {' and '.join(crons)} in {timezone}"


def _measure(timetable: Timetable, every: object, anchor: datetime | None) -> DeltaTicks:
    name = type(timetable).__name__
    if not isinstance(every, timedelta):
        raise AuthoringError(f"{name} takes a timedelta, not {every!r}; write for example {name}(timedelta(hours=1))")
    if every <= timedelta(0):
        raise AuthoringError(f"{name}: a timedelta of {every.total_seconds():g} s does not lead on; give one above 0")
    return DeltaTicks(every, EPOCH if anchor is None else as_utc(anchor))
