"""What `schedule=` takes, and timetables as JSON for another process."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import onceflow
from onceflow.authoring import cron, schedule, ticks, timetable, timetables
from onceflow.authoring.schedule import Schedule, deserialize_timetable, resolve_schedule, serialize_timetable
from onceflow.authoring.timetable import Bounds, DataInterval, PlannedRun, Timetable
from onceflow.authoring.timetables import Continuous, CronInterval, CronTrigger, Interval, IntervalTrigger, Once, Unscheduled
from onceflow.engine.backfills import read_bounds
from onceflow.errors import AuthoringError, InvalidArgument

START = datetime(2026, 1, 1, 9, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Unscheduled()),
        ("@once", Once()),
        ("@Continuous", Continuous()),
        ("0 6 * * *", CronInterval("0 6 * * *", timezone="Europe/Berlin")),
        ("@daily", CronInterval("@daily", timezone=ZoneInfo("Europe/Berlin"))),
        (["0 6 * * *", "0 18 * * *"], CronInterval("0 6 * * *", "0 18 * * *", timezone="Europe/Berlin")),
        (timedelta(hours=1), Interval(timedelta(hours=1), anchor=START)),
        (Interval(timedelta(hours=1)), Interval(timedelta(hours=1), anchor=START)),
        (IntervalTrigger(timedelta(hours=1)), IntervalTrigger(timedelta(hours=1), anchor=START)),
        (IntervalTrigger(timedelta(hours=1), anchor=datetime(2020, 1, 1)), IntervalTrigger(timedelta(hours=1), anchor=datetime(2020, 1, 1))),
        (Interval("0 6 * * *", align="day"), Interval("0 6 * * *", align="day", timezone="UTC")),
        (CronTrigger("@daily"), CronTrigger("@daily", timezone=UTC)),
    ],
)
def test_what_a_schedule_may_be(given: object, expected: Timetable) -> None:
    """Each form gives its timetable; cron texts take the zone of the start date, a timetable keeps its own."""
    assert resolve_schedule(given, start_date=START) == expected


def test_the_zone_of_a_plain_cron_text() -> None:
    """What is said counts before the start date's zone; an offset without a name is none; without either it is UTC."""
    for zone, start, expected in [("Asia/Tokyo", START, "Asia/Tokyo"), (None, START, "Europe/Berlin"), (None, None, "UTC"),
                                  (None, datetime(2026, 1, 1), "UTC"), (None, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))), "UTC")]:  # fmt: skip
        made = resolve_schedule("0 6 * * *", timezone=zone, start_date=start)
        assert isinstance(made, CronInterval) and made.timezone == expected


@pytest.mark.parametrize("given", [5, [], ["@daily", 5], object(), {"cron": "@daily"}, CronInterval])
def test_anything_else_is_refused(given: object) -> None:
    """The error says what a schedule may be."""
    with pytest.raises(AuthoringError, match=r"give a cron text \('0 6 \* \* \*'\), one of @hourly.*@once, @continuous"):
        resolve_schedule(given)


class Fridays(Timetable):
    """A custom timetable with arguments that are not plain JSON."""

    def __init__(self, hour: int, *, fee: Decimal = Decimal(0)) -> None:
        self.hour, self.fee = hour, fee
        self.ticks = CronTrigger(f"0 {hour} * * FRI")

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        return self.ticks.next_run(last, bounds)

    def latest_run(self, moment: datetime, bounds: Bounds) -> PlannedRun | None:
        return self.ticks.latest_run(moment, bounds)


class Renamed(CronInterval):
    """A subclass with a constructor of its own."""

    def __init__(self, hour: int) -> None:
        super().__init__(f"0 {hour} * * *", timezone="Asia/Tokyo")


KEPT = [
    Unscheduled(), Once(), Continuous(), CronInterval("@daily"), CronInterval("0 6 * * *", "0 18 * * 5", timezone="Asia/Tokyo"), CronTrigger("5 * * * *"),
    Interval(timedelta(hours=7, microseconds=1)), Interval(timedelta(days=400), anchor=START), Interval("0 6 * * *", align="month", timezone="Asia/Tokyo"),
    IntervalTrigger(timedelta(seconds=1), anchor=datetime(2020, 1, 1)), Fridays(6, fee=Decimal("1.50")), Renamed(6),
]  # fmt: skip


@pytest.mark.parametrize("kept", KEPT, ids=repr)
def test_a_timetable_comes_back_from_json(kept: Timetable) -> None:
    """After a way through JSON text it is equal, plans the same runs, and is written in the same way again."""
    text = json.dumps(serialize_timetable(kept))
    made = deserialize_timetable(json.loads(text))
    assert made == kept and hash(made) == hash(kept) and repr(made) == repr(kept) and made.description == kept.description
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert made.plan_run(None, Bounds(START), catchup=False, now=now) == kept.plan_run(None, Bounds(START), catchup=False, now=now)
    assert json.dumps(serialize_timetable(made)) == text


def test_equal_schedules_are_written_equally() -> None:
    """Whether a schedule changed can be seen from its JSON: how its arguments were given does not count."""
    assert serialize_timetable(CronInterval("@daily")) == serialize_timetable(CronInterval("@daily", timezone=UTC))
    assert CronInterval("@daily") != CronTrigger("@daily") and CronInterval("@daily") != CronInterval("@daily", timezone="Asia/Tokyo")
    assert len(set(KEPT)) == len(KEPT)


def test_another_process_plans_without_the_file_of_the_dag(tmp_path: Path) -> None:
    """A custom class is found by its import path; what is planned there is what is planned here."""
    (tmp_path / "calendars.py").write_text(
        "from onceflow import CronTrigger, Timetable\n\n"
        "class Weekly(Timetable):\n"
        "    def __init__(self, day):\n        self.ticks = CronTrigger(f'0 6 * * {day}')\n"
        "    def next_run(self, last, bounds):\n        return self.ticks.next_run(last, bounds)\n"
        "    def latest_run(self, moment, bounds):\n        return self.ticks.latest_run(moment, bounds)\n"
    )
    kept = {"timetable": "calendars:Weekly", "args": ["FRI"], "kwargs": {}}
    program = (
        "import json, sys; from datetime import datetime; from onceflow.authoring.schedule import Schedule, deserialize_timetable\n"
        "from onceflow.authoring.timetable import iterate_runs\n"
        "print(next(iterate_runs(deserialize_timetable(json.loads(sys.argv[1])), datetime(2026, 1, 1))).logical_date.isoformat())\n"
        "assert 'asyncpg' not in sys.modules and 'psycopg' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, json.dumps(kept)], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("2026-01-02T06:00:00+00:00", "")
    with pytest.raises(AuthoringError, match="calendars:Weekly cannot be imported: ModuleNotFoundError"):
        deserialize_timetable(kept)


def test_what_another_process_could_not_make_is_refused() -> None:
    """A local class, an argument that cannot be kept, and JSON that does not fit are named."""

    class Local(Fridays):
        pass

    refusals: list[tuple[Any, str]] = [
        (lambda: serialize_timetable(Local(6)), "Local.*cannot be imported by the scheduler; move it to the top of a module"),
        (lambda: serialize_timetable(Fridays(6, fee=object())), "timetable Fridays: fee"),  # type: ignore[arg-type]
        (lambda: deserialize_timetable({"timetable": "Once"}), "cannot be made again: KeyError: 'args'"),
        (lambda: deserialize_timetable({"timetable": "Once", "args": [1], "kwargs": {}}), "cannot be made again: TypeError"),
        (lambda: deserialize_timetable({"timetable": "json:JSONDecoder", "args": [], "kwargs": {}}), "json:JSONDecoder is no subclass"),
        (lambda: deserialize_timetable({"timetable": "json", "args": [], "kwargs": {}}), "json cannot be imported|json is no subclass"),
    ]
    for make, says in refusals:
        with pytest.raises(AuthoringError, match=says):
            make()


def test_descriptions_say_when() -> None:
    """Each timetable says in words when it runs."""
    assert CronInterval("0 6 * * *").description == "each interval of cron 0 6 * * * in UTC, when it is over"
    assert Interval(timedelta(hours=1)).description == "each interval of 1:00:00, when it is over"
    assert Fridays(6).description == "Fridays(6)"
    assert all(made.description for made in KEPT)


@pytest.mark.parametrize("module", [cron, ticks, timetable, timetables, schedule])
def test_the_examples_in_docstrings_run(module: Any) -> None:
    """What a docstring shows is what happens."""
    names = {**vars(timetable), **vars(timetables), **vars(module), "datetime": datetime, "timedelta": timedelta, "UTC": UTC}
    failed, tried = doctest.testmod(module, globs=names)
    assert (failed, tried > 0) == (0, True)


def test_the_names_are_exported() -> None:
    """Dags import them from onceflow."""
    for name in ("CronInterval", "CronTrigger", "Interval", "IntervalTrigger", "Timetable", "PlannedRun", "DataInterval", "Bounds"):
        assert getattr(onceflow, name).__name__ == name and name in onceflow.__all__


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
@pytest.mark.parametrize(("start", "end", "named"), [("0001-01-01", "2026-01-01", "start"), ("2026-01-01", "9999-12-31", "end"), (date.min, date.max, "start")])
def test_a_backfill_to_the_end_of_time_is_refused_by_name(start: Any, end: Any, named: str, zone: str) -> None:
    """Days that have no moment in every zone are named, wherever the dag's zone lies."""
    with pytest.raises(InvalidArgument, match=f"{named} .* take a year from 2 to 9998"):
        read_bounds(start, end, Schedule(Once(), Bounds(None, None), True, zone))
