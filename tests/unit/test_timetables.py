"""Timetables: which run comes next, with and without catchup, over bounds, outages and changes of the schedule."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.authoring.timetable import Bounds, DataInterval, PlannedRun, Timetable, iterate_runs, plan_runs
from onceflow.authoring.timetables import Continuous, CronInterval, CronTrigger, Interval, IntervalTrigger, Once, Unscheduled
from onceflow.errors import AuthoringError

GOLDEN = Path(__file__).parents[1] / "cases" / "cron_golden.csv"
ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Europe/Dublin"]
CRONS = ["0 6 * * *", "30 2 * * *", "*/30 1-3 * * *", "0 * * * *", "15 */6 * * *", "0 0 * * MON", "0 0 1 * *"]
MADE = [
    *(kind(cron, timezone=zone) for kind in (CronInterval, CronTrigger) for cron in CRONS[:5] for zone in ZONES[1:3]),
    CronInterval("0 6 * * MON-FRI", "0 18 * * *", timezone="Europe/Dublin"),
    *(Interval("30 2 * * *", align="day", timezone=zone) for zone in ZONES),
    Interval("0 6 3 * *", align="month"),
    Interval("0 6,18 * * MON", align="day"),
    Interval(timedelta(hours=7, seconds=3)),
    IntervalTrigger(timedelta(minutes=95), anchor=datetime(2020, 1, 1, 9, 30)),
]
moments = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dates(runs: list[PlannedRun]) -> list[str]:
    return [f"{run.logical_date:%m-%d %H:%M}" for run in runs]


def read_golden() -> Iterator[tuple[Timetable, str, list[dict[str, str]]]]:
    with GOLDEN.open() as file:
        for (kind, cron, zone, earliest), rows in groupby(csv.DictReader(file), key=lambda row: tuple(row.values())[:4]):
            yield {"interval": CronInterval, "trigger": CronTrigger}[kind](cron, timezone=zone), earliest, list(rows)


def test_every_row_of_the_golden_file_holds() -> None:
    """Read off a running Airflow 3, across both changes of the clock: the scheduler's function gives each row, in order and one after the other."""
    count = 0
    for timetable, earliest, rows in read_golden():
        last: DataInterval | None = None
        for row in rows:
            run = timetable.plan_run(last, Bounds(datetime.fromisoformat(earliest)), catchup=True, now=datetime(2025, 1, 1))
            expected = [datetime.fromisoformat(row[name]) for name in ("logical_date_utc", "interval_start", "interval_end", "run_after_utc")]
            assert run is not None and [run.logical_date, run.interval_start, run.interval_end, run.run_after] == expected, row
            last, count = run.interval, count + 1
    assert count == 8064


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MADE), moments)
def test_runs_follow_each_other(timetable: Timetable, start: datetime) -> None:
    """Intervals touch and never overlap, run_after never goes back, and no run starts before its interval is over."""
    runs = list(islice(iterate_runs(timetable, start), 30))
    assert len(runs) == 30 and runs[0].logical_date >= start
    for run, following in pairwise(runs):
        assert run.logical_date < following.logical_date and run.run_after < following.run_after
        assert run.logical_date == run.interval_start and run.interval_end <= run.run_after
        if isinstance(timetable, CronTrigger | IntervalTrigger):
            assert run.interval_start == run.interval_end == run.run_after
        else:
            assert run.interval_end == following.interval_start > run.interval_start


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MADE), moments, st.timedeltas(timedelta(0), timedelta(days=12)))
def test_catchup_makes_every_run_and_no_catchup_the_latest(timetable: Timetable, start: datetime, outage: timedelta) -> None:
    """After an outage of any length the runs that are due are those a backfill of the time would make; without catchup the last of them, or none."""
    now, bounds = start + outage, Bounds(start)
    everything = [run for run in iterate_runs(timetable, start, now) if run.run_after <= now]
    assert plan_runs(timetable, None, bounds, catchup=True, now=now, limit=10_000).due == everything
    plan = plan_runs(timetable, None, bounds, catchup=False, now=now)
    assert plan.due == everything[-1:]
    assert plan.upcoming is not None and plan.upcoming.run_after > now


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MADE), st.sampled_from(MADE), moments, st.timedeltas(timedelta(0), timedelta(days=5)), st.booleans())
def test_a_changed_schedule_neither_repeats_nor_loses(before: Timetable, after: Timetable, start: datetime, outage: timedelta, catchup: bool) -> None:
    """Between two intervals there is no overlap over any change, nor, with catchup, a gap; and no logical date comes twice."""
    made = list(islice(iterate_runs(before, start), 3))
    now = made[-1].run_after + outage
    runs = plan_runs(after, made[-1].interval, Bounds(start), catchup=catchup, now=now, limit=10_000).due
    dates = [run.logical_date for run in made + runs]
    assert sorted(set(dates)) == dates
    for run, following in pairwise([made[-1], *runs]):
        assert run.interval_end <= following.interval_start
        if catchup and not isinstance(after, CronTrigger | IntervalTrigger):
            assert run.interval_end == following.interval_start


def test_a_changed_schedule_by_example() -> None:
    """From 06:00 to midnight: the first interval after the change is the rest of that day; from a trigger to intervals: the trigger's date is not taken again."""
    six, last = CronInterval("0 6 * * *"), DataInterval(at("2026-01-01T06:00"), at("2026-01-02T06:00"))
    for catchup in (True, False):
        plan = plan_runs(CronInterval("@daily"), last, Bounds(), catchup=catchup, now=at("2026-01-03T01:00"))
        assert plan.due == [PlannedRun.over(at("2026-01-02T06:00"), at("2026-01-03T00:00"))]
    run = plan_runs(six, DataInterval(last.end, last.end), Bounds(), catchup=True, now=at("2026-01-03T07:00")).due[0]
    assert (run.interval, run.logical_date - last.end) == (DataInterval(last.end, at("2026-01-03T06:00")), timedelta(microseconds=1))
    assert plan_runs(CronTrigger("0 6 * * *"), last, Bounds(), catchup=True, now=at("2026-01-02T07:00")).due == []


def test_paused_for_five_days_without_catchup() -> None:
    """Unpaused at 15:00, a dag of 06:00 runs once, for yesterday 06:00; then at 06:00 tomorrow."""
    last = DataInterval(at("2026-03-03T06:00"), at("2026-03-04T06:00"))
    plan = plan_runs(CronInterval("0 6 * * *"), last, Bounds(at("2026-01-01")), catchup=False, now=at("2026-03-09T15:00"))
    assert dates(plan.due) == ["03-08 06:00"]
    assert plan.upcoming == PlannedRun.over(at("2026-03-09T06:00"), at("2026-03-10T06:00"))


@pytest.mark.parametrize(
    "timetable", [CronInterval("* * * * * *"), CronTrigger("* * * * * *"), Interval(timedelta(seconds=1)), IntervalTrigger(timedelta(seconds=1))]
)
def test_a_scheduler_suspended_for_25_seconds(timetable: Timetable) -> None:
    """An every-second schedule makes one run of it without catchup, and each of the 25 once with it."""
    now = at("2026-01-01T12:00")
    (made,) = plan_runs(timetable, None, Bounds(), catchup=False, now=now).due
    later = now + timedelta(seconds=25, milliseconds=10)
    assert len(plan_runs(timetable, made.interval, Bounds(), catchup=False, now=later).due) == 1
    plan = plan_runs(timetable, made.interval, Bounds(), catchup=True, now=later)
    assert [run.run_after for run in plan.due] == [now + timedelta(seconds=count) for count in range(1, 26)]


def test_a_limit_cuts_the_list_and_the_rest_follows() -> None:
    """A long catch-up comes in portions: none is lost between them, and what comes next is due already."""
    timetable, bounds, now = CronInterval("@daily"), Bounds(at("2026-01-01")), at("2026-02-01")
    first = plan_runs(timetable, None, bounds, catchup=True, now=now, limit=20)
    assert len(first.due) == 20 and first.upcoming is not None and first.upcoming.run_after <= now
    second = plan_runs(timetable, first.due[-1].interval, bounds, catchup=True, now=now, limit=20)
    assert first.due + second.due == list(iterate_runs(timetable, at("2026-01-01"), at("2026-01-31")))


def test_start_and_end_date_bound_the_logical_date() -> None:
    """Both ends belong to it, with and without catchup; past the end nothing comes next."""
    bounds = Bounds(at("2026-01-02T06:00"), at("2026-01-05T06:00"))
    for timetable in (CronInterval("0 6 * * *"), CronTrigger("0 6 * * *"), Interval(timedelta(days=1), anchor=at("2026-01-01T06:00"))):
        plan = plan_runs(timetable, None, bounds, catchup=True, now=at("2026-02-01"))
        assert dates(plan.due) == ["01-02 06:00", "01-03 06:00", "01-04 06:00", "01-05 06:00"] and plan.upcoming is None
        plan = plan_runs(timetable, None, bounds, catchup=False, now=at("2026-02-01"))
        assert dates(plan.due) == ["01-05 06:00"] and plan.upcoming is None


def test_a_start_date_in_an_interval_waits_for_the_next() -> None:
    """Data from before the start date is not processed, with or without catchup; a start date moved on skips what lies before it."""
    timetable, now = CronInterval("0 6 * * *"), at("2026-01-03T07:00")
    for catchup in (True, False):
        plan = plan_runs(timetable, None, Bounds(at("2026-01-03")), catchup=catchup, now=now)
        assert plan.due == [] and plan.upcoming == PlannedRun.over(at("2026-01-03T06:00"), at("2026-01-04T06:00"))
        plan = plan_runs(timetable, DataInterval(at("2026-01-01T06:00"), at("2026-01-02T06:00")), Bounds(at("2026-02-01")), catchup=catchup, now=now)
        assert plan.due == [] and plan.upcoming is not None and plan.upcoming.logical_date == at("2026-02-01T06:00")


def test_without_a_start_date() -> None:
    """Without catchup the latest interval runs at once; with it there is nothing to count from, which `periodic` lets a dag find out."""
    timetable, now = CronInterval("0 6 * * *"), at("2026-01-03T07:00")
    assert dates(plan_runs(timetable, None, Bounds(), catchup=False, now=now).due) == ["01-02 06:00"]
    assert timetable.periodic and plan_runs(timetable, None, Bounds(), catchup=True, now=now).upcoming is None


def test_whole_days_and_months() -> None:
    """Aligned to days, the run of 06:00 has the day before from 00:00 to 24:00 on the zone's clock; to months, the month before."""
    day = Interval("0 6 * * *", align="day", timezone="America/New_York")
    (run,) = islice(iterate_runs(day, at("2025-03-09T05:00")), 1)
    assert run == PlannedRun.over(at("2025-03-09T05:00"), at("2025-03-10T04:00"), at("2025-03-10T10:00"))  # 23 hours
    month = Interval("0 6 3 * *", align="month")
    (run,) = islice(iterate_runs(month, at("2026-01-15")), 1)
    assert run == PlannedRun.over(at("2026-02-01"), at("2026-03-01"), at("2026-03-03T06:00"))
    plan = plan_runs(month, None, Bounds(), catchup=False, now=at("2026-03-02"))
    assert dates(plan.due) == ["01-01 00:00"] and plan.upcoming == run
    twice_a_day = Interval("0 6,18 * * *", align="day")
    assert [run.run_after.hour for run in iterate_runs(twice_a_day, at("2026-01-01"), at("2026-01-05"))] == [6] * 5


def test_several_crons_are_one_schedule() -> None:
    """Their ticks are merged; one that two of them have comes once."""
    timetable = CronTrigger("0 6 * * *", "0 6,18 * * 4")
    assert dates(list(iterate_runs(timetable, at("2026-01-01"), at("2026-01-03")))) == ["01-01 06:00", "01-01 18:00", "01-02 06:00"]


def test_elapsed_time_takes_no_notice_of_the_clock() -> None:
    """A timedelta is counted from its anchor in seconds that pass."""
    runs = list(iterate_runs(Interval(timedelta(hours=36), anchor=at("2026-01-01T09:30")), at("2026-01-02"), at("2026-01-06")))
    assert dates(runs) == ["01-02 21:30", "01-04 09:30", "01-05 21:30"]


def test_once() -> None:
    """One run, at the start date or as soon as it can; none after it, none past the end."""
    now = at("2026-01-03")
    for earliest in (None, at("2026-01-01"), at("2026-02-01")):
        for catchup in (True, False):
            plan = plan_runs(Once(), None, Bounds(earliest), catchup=catchup, now=now)
            run = PlannedRun.over(earliest or now, earliest or now)
            assert plan.due == ([run] if run.run_after <= now else []) and plan.upcoming == (None if plan.due else run)
            assert Once().plan_run(run.interval, Bounds(earliest), catchup=catchup, now=now) is None
    assert plan_runs(Once(), None, Bounds(now, now - timedelta(days=1)), catchup=True, now=now).upcoming is None


def test_continuous() -> None:
    """One run at a time, over the time since the one before; two in the same instant still have two logical dates."""
    assert Continuous.active_runs_limit == 1
    plan = plan_runs(Continuous(), None, Bounds(at("2026-01-01")), catchup=True, now=at("2026-01-03"))
    assert plan.due == [PlannedRun.over(at("2026-01-01"), at("2026-01-03"))]
    later = plan_runs(Continuous(), plan.due[0].interval, Bounds(at("2026-01-01")), catchup=True, now=at("2026-01-04"))
    assert later.due == [PlannedRun.over(at("2026-01-03"), at("2026-01-04"))]
    run = Continuous().plan_run(later.due[0].interval, Bounds(), catchup=False, now=at("2026-01-04"))
    assert run is not None and run.logical_date == at("2026-01-04") and run.run_after - run.logical_date == timedelta(microseconds=1)
    first = plan_runs(Continuous(), None, Bounds(), catchup=False, now=at("2026-01-04"))
    assert [run.run_after for run in first.due] == [at("2026-01-04")] and first.upcoming is not None and first.upcoming.run_after > at("2026-01-04")
    assert Continuous().plan_run(None, Bounds(None, at("2026-01-01")), catchup=False, now=at("2026-01-04")) is None


def test_unscheduled() -> None:
    """Never by itself; a run by hand has the moment of its start."""
    assert plan_runs(Unscheduled(), None, Bounds(at("2026-01-01")), catchup=True, now=at("2026-01-03")).upcoming is None
    assert Unscheduled().infer_interval(at("2026-01-03")) == DataInterval(at("2026-01-03"), at("2026-01-03"))
    assert list(iterate_runs(Once(), at("2026-01-01"), at("2026-01-03"))) == list(iterate_runs(Unscheduled(), at("2026-01-01"))) == []


def test_runs_by_hand() -> None:
    """Started now, a run has the last complete interval; for the logical date of a scheduled run it has that run's, so that `ds` is what was asked for."""
    timetable = CronInterval("0 6 * * *")
    assert timetable.infer_interval(at("2026-01-03T15:00")) == DataInterval(at("2026-01-02T06:00"), at("2026-01-03T06:00"))
    assert timetable.find_interval(at("2026-01-03T06:00")) == DataInterval(at("2026-01-03T06:00"), at("2026-01-04T06:00"))
    assert timetable.find_interval(at("2026-01-03T15:00")) == timetable.infer_interval(at("2026-01-03T15:00"))
    assert CronTrigger("0 6 * * *").infer_interval(at("2026-01-03T15:00")) == DataInterval(at("2026-01-03T06:00"), at("2026-01-03T06:00"))


def test_the_calendar_ends() -> None:
    """At both ends of the calendar there are no more runs, and no errors."""
    begin, end = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for timetable in MADE:
        assert timetable.plan_run(DataInterval(end, end), Bounds(), catchup=True, now=end) is None
        assert plan_runs(timetable, None, Bounds(end), catchup=True, now=end).upcoming is None
        assert plan_runs(timetable, None, Bounds(begin), catchup=False, now=begin).due == []
        assert list(iterate_runs(timetable, datetime(9999, 10, 1)))[-1].interval_end > at("9999-10-30")


class Broken(Timetable):
    """Gives the same run again and again."""

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun:
        return PlannedRun.over(datetime(2026, 1, 1), datetime(2026, 1, 2))

    def latest_run(self, moment: datetime, bounds: Bounds) -> None:
        return None


def test_a_timetable_that_does_not_move_on_is_named() -> None:
    """A custom timetable with this mistake is an error of the dag, not a loop without end."""
    with pytest.raises(AuthoringError, match=r"Broken\(\)\.next_run gave logical date 2026-01-01.*does not move on"):
        plan_runs(Broken(), None, Bounds(), catchup=True, now=at("2026-03-01"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Interval(timedelta(0)), "a timedelta of 0 s does not lead on"),
        (lambda: IntervalTrigger(timedelta(seconds=-5)), "a timedelta of -5 s"),
        (lambda: Interval(5), "takes a timedelta, not 5"),
        (lambda: IntervalTrigger("@daily"), "takes a timedelta, not '@daily'"),
        (lambda: Interval("@daily", align="week"), "align cannot be 'week'"),
        (lambda: Interval(timedelta(1), align="day"), "only a cron text can be aligned"),
        (lambda: Interval("@daily", anchor=datetime(2026, 1, 1)), "has no anchor"),
        (lambda: CronInterval(), "takes a cron text"),
        (lambda: CronTrigger(5), "5 is no cron text"),
        (lambda: CronInterval("@daily", timezone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (lambda: DataInterval(datetime(2026, 1, 2), datetime(2026, 1, 1)), "cannot end"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(make: object, says: str) -> None:
    """What makes no sense is refused where it is written."""
    with pytest.raises(AuthoringError, match=says):
        make()  # type: ignore[operator]


def test_it_is_quick() -> None:
    """The next run takes far less than a millisecond, a year of intervals far less than a tenth of a second (best of five: the machine may be busy)."""
    timetable, bounds = CronInterval("0 6 * * *", timezone="Europe/Dublin"), Bounds(at("2026-01-01"))

    def best(times: int, work: object) -> float:
        def once() -> float:
            began = time.perf_counter()
            work()  # type: ignore[operator]
            return time.perf_counter() - began

        return min(once() for _ in range(times))

    assert best(50, lambda: timetable.plan_run(None, bounds, catchup=False, now=at("2026-06-01"))) < 0.001
    assert best(5, lambda: list(iterate_runs(timetable, at("2025-01-01"), at("2025-12-31T23:59")))) < 0.1
