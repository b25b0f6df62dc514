"""Runs that come by a schedule, on one database and a clock that stands still: what is due is made once, whoever makes it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceflow import CronInterval, CronTrigger, Timetable
from onceflow.authoring.schedule import pack_schedule, resolve_schedule
from onceflow.authoring.timetable import Bounds, DataInterval, PlannedRun
from onceflow.db import calls, dag_calls
from onceflow.engine.due_runs import Made, make_due_runs, plan_dag
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, end, make_plan
from tests.sql.engine_calls import Engine, stop_clock

DATES = "select logical_date from onceflow.run where dag_id = %s order by logical_date"
EVERY_SECOND = "* * * * * *"


def at(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def set_clock(db: TestDatabase, text: str) -> None:
    db.sql("update public.clock set at = %s", at(text))
    db.sql("update onceflow.worker set heartbeat_at = onceflow.now() where ended_at is null")


def tell(
    engine: Engine, schedule: Any, dag_id: str = "graph", *, start: str | None = None, last: str | None = None, catchup: bool = False, **options: Any
) -> None:
    """Makes a dag of one task known, with this schedule, as reading its file does."""
    bounds = Bounds(at(start) if start else None, at(last) if last else None)
    timetable = resolve_schedule(schedule, start_date=bounds.earliest)
    packed = pack_schedule(timetable, bounds, catchup, None) if timetable.makes_runs else None
    runs = min(options.pop("max_active_runs", 16), timetable.active_runs_limit or 16)
    plan = make_plan({"a": Node()}) | {"schedule": packed, "schedule_interval": str(schedule), "max_active_runs": runs, "params": {"n": 1}}
    dags = [{"dag_id": dag_id, "kind": "dag", "code_version": engine.version, "plan": plan | options}]
    engine.call(calls.register_dags(json.dumps(dags), True))
    engine.sql(
        "update onceflow.worker set code_versions = code_versions || jsonb_build_object(%s::text, %s::text) where id = %s",
        dag_id,
        engine.version,
        engine.worker,
    )
    engine.lanes = engine.sql("select onceflow.list_lanes(%s)", engine.worker)[0][0]


def make_runs(engine: Engine) -> int:
    """What one scheduler does in one tick: makes what is due, and lets runs begin."""
    request, answer = make_due_runs(), None
    while True:
        try:
            answer = engine.call(request.send(answer))
        except StopIteration as ended:
            engine.tick()
            made: Made = ended.value
            return made.runs


def unpause(engine: Engine, dag_id: str = "graph") -> None:
    engine.call(dag_calls.pause_dag(dag_id, False))


def dates(engine: Engine, dag_id: str = "graph") -> list[datetime]:
    return [moment for (moment,) in engine.sql(DATES, dag_id)]


@pytest.fixture
def clock(db: TestDatabase, one: Engine) -> TestDatabase:
    """Time stands still, at noon of a Monday."""
    stop_clock(db)
    set_clock(db, "2026-03-02 12:00")
    return db


def test_a_scheduled_dag_is_created_paused(clock: TestDatabase, one: Engine) -> None:
    """Nothing is made of it, and its row says when its next run would come; one without a schedule is not paused; a dag may say otherwise."""
    tell(one, "0 6 * * *", start="2026-03-01", catchup=True)
    tell(one, None, "plain")
    dags = [{"dag_id": "eager", "kind": "dag", "code_version": "v1", "is_paused": False, "plan": make_plan({}) | {"schedule": None}}]
    one.sql("select onceflow.register_dags(%s)", json.dumps(dags))
    assert make_runs(one) == 0
    shown = one.sql("select dag_id, is_paused, next_dagrun_create_after, schedule_interval from onceflow.dag where kind = 'dag' order by 1")
    assert shown == [("eager", False, None, None), ("graph", True, at("2026-03-02 06:00"), "0 6 * * *"), ("plain", False, None, "None")]


def test_after_a_pause_of_five_days_there_is_one_run(clock: TestDatabase, one: Engine) -> None:
    """Without catchup: cron 06:00, unpaused at 15:00: yesterday's, and no other; the next one comes tomorrow."""
    tell(one, "0 6 * * *", start="2026-01-01")
    unpause(one)
    assert make_runs(one) == 1
    one.call(dag_calls.pause_dag("graph", True))
    set_clock(clock, "2026-03-07 15:00")
    assert make_runs(one) == 0
    unpause(one)
    assert [make_runs(one) for _ in range(3)] == [1, 0, 0]
    assert dates(one) == [at("2026-03-01 06:00"), at("2026-03-06 06:00")]
    row = one.sql("select run_id, run_type, conf, data_interval_start, data_interval_end, state from onceflow.dag_run where logical_date = '2026-03-06 06:00Z'")
    assert row == [("scheduled__2026-03-06T06:00:00+00:00", "scheduled", {"n": 1}, at("2026-03-06 06:00"), at("2026-03-07 06:00"), "running")]
    assert one.sql("select next_dagrun_create_after from onceflow.dag where dag_id = 'graph'") == [(at("2026-03-08 06:00"),)]


def test_a_suspended_scheduler_fires_no_storm(clock: TestDatabase, one: Engine) -> None:
    """Every second, and 25 of them missed: one run without catchup; with it each of them, once."""
    for dag_id, catchup in (("latest", False), ("all", True)):
        tell(one, CronTrigger(EVERY_SECOND), dag_id, start="2026-03-02 12:00", catchup=catchup, max_active_runs=100)
        unpause(one, dag_id)
    make_runs(one)
    set_clock(clock, "2026-03-02 12:00:25")
    assert make_runs(one) == 26
    first = at("2026-03-02 12:00")
    assert dates(one, "latest") == [first, first + timedelta(seconds=25)]
    assert dates(one, "all") == [first + timedelta(seconds=n) for n in range(26)]


def test_two_schedulers_make_each_run_once(clock: TestDatabase, one: Engine, two: Engine) -> None:
    """Both work out the same; the second, while the first has not committed, passes the dag over, and afterwards finds it moved on. Nothing is lost either."""
    tell(one, "0 6 * * *", start="2026-03-01")
    unpause(one)
    found = one.call(dag_calls.list_due_dags(100, 100))
    plans = json.dumps([plan_dag(dag, at("2026-03-02 12:00")) for dag in found["dags"]])
    one.begin()
    assert one.call(dag_calls.schedule_runs(plans)) == 1
    assert two.call(dag_calls.schedule_runs(plans)) == 0  # does not wait
    one.rollback()
    assert two.call(dag_calls.schedule_runs(plans)) == 1
    assert one.call(dag_calls.schedule_runs(plans)) == 0
    assert dates(one) == [at("2026-03-01 06:00")]


def test_what_was_planned_of_an_older_schedule_is_dropped(clock: TestDatabase, one: Engine) -> None:
    """The file changes between a scheduler's look and its call: no run of the old schedule is made any more."""
    tell(one, "0 6 * * *", start="2026-03-01")
    unpause(one)
    found = one.call(dag_calls.list_due_dags(100, 100))
    plans = json.dumps([plan_dag(dag, at("2026-03-02 12:00")) for dag in found["dags"]])
    tell(one, "0 7 * * *", start="2026-03-01")
    assert one.call(dag_calls.schedule_runs(plans)) == 0
    assert make_runs(one) == 1
    assert dates(one) == [at("2026-03-01 07:00")]


@pytest.mark.parametrize("catchup", [False, True])
def test_a_changed_schedule_neither_repeats_nor_loses_data(clock: TestDatabase, one: Engine, catchup: bool) -> None:
    """Daily at 06:00, then daily at midnight: intervals go on where the old ones ended; a dag that gets back its old file goes on too."""
    tell(one, "0 6 * * *", start="2026-02-28", catchup=catchup)
    unpause(one)
    assert make_runs(one) == (2 if catchup else 1)
    tell(one, "0 0 * * *", start="2026-02-28", catchup=catchup)
    assert make_runs(one) == 0
    set_clock(clock, "2026-03-03 00:00")
    assert make_runs(one) == 1
    tell(one, "0 6 * * *", start="2026-02-28", catchup=catchup)
    set_clock(clock, "2026-03-03 06:00")
    assert make_runs(one) == 1
    found = one.sql("select data_interval_start, data_interval_end from onceflow.run where dag_id = 'graph' order by logical_date")
    edges = ["2026-02-28 06:00", "2026-03-01 06:00", "2026-03-02 06:00", "2026-03-03 00:00", "2026-03-03 06:00"][0 if catchup else 1 :]
    assert found == [(at(start), at(stop)) for start, stop in itertools.pairwise(edges)]


def test_catchup_comes_bit_by_bit(clock: TestDatabase, one: Engine) -> None:
    """Years of it: no more than a hundred runs wait at once, as many run as the dag allows, in the order of their dates, and none is left out."""
    tell(one, "0 6 * * *", start="2025-01-01", catchup=True, max_active_runs=3)
    unpause(one)
    assert make_runs(one) == 100
    assert one.sql("select count(*) from onceflow.active_run") == [(3,)]
    assert [make_runs(one), make_runs(one)] == [3, 0]
    for _ in range(3):
        end(one, one.claim_one(), "success")
    make_runs(one)
    assert make_runs(one) == 3
    made = dates(one)
    assert made == [at("2025-01-01 06:00") + timedelta(days=n) for n in range(106)]


def test_no_run_is_made_that_could_not_begin(clock: TestDatabase, one: Engine) -> None:
    """Without catchup: while a dag has all the runs it may have, what comes due is left out; then the latest is made."""
    tell(one, CronTrigger("* * * * *"), max_active_runs=1)
    unpause(one)
    assert make_runs(one) == 1
    set_clock(clock, "2026-03-02 12:05")
    assert make_runs(one) == 0
    end(one, one.claim_one(), "success")
    assert [make_runs(one), make_runs(one)] == [1, 0]
    assert dates(one) == [at("2026-03-02 12:00"), at("2026-03-02 12:05")]


def test_continuous_runs_follow_one_another(clock: TestDatabase, one: Engine) -> None:
    """@continuous: the next comes when the last has ended, and its data begin where that one's end. @once: one, for ever."""
    tell(one, "@continuous")
    tell(one, "@once", "single")
    unpause(one)
    unpause(one, "single")
    assert [make_runs(one), make_runs(one)] == [2, 0]
    set_clock(clock, "2026-03-02 12:10")
    assert make_runs(one) == 0
    for task in one.claim(5):
        end(one, task, "success")
    assert make_runs(one) == 1
    (first, second) = one.sql("select data_interval_start, data_interval_end from onceflow.run where dag_id = 'graph' order by logical_date")
    assert first[1] == second[0] and second[1] == at("2026-03-02 12:10")
    assert dates(one, "single") == [at("2026-03-02 12:00")]
    assert one.sql("select next_dagrun_create_after from onceflow.dag where dag_id = 'single'") == [(None,)]


def test_dates_bound_the_schedule(clock: TestDatabase, one: Engine) -> None:
    """Nothing before the start, nothing after the end; and the dag is not looked at again."""
    tell(one, "0 6 * * *", start="2026-02-26", last="2026-02-27 06:00", catchup=True)
    unpause(one)
    assert make_runs(one) == 2
    assert dates(one) == [at("2026-02-26 06:00"), at("2026-02-27 06:00")]
    assert one.sql("select next_dagrun_create_after from onceflow.dag where dag_id = 'graph'") == [(None,)]


def test_a_date_that_has_a_run_keeps_it(clock: TestDatabase, one: Engine) -> None:
    """Somebody has started the run of a date by hand: the schedule makes no second one, and goes on."""
    tell(one, "0 6 * * *", start="2026-02-28", catchup=True)
    one.start("graph", "mine", logical_date="2026-03-01T06:00:00+00:00")
    unpause(one)
    assert [make_runs(one), make_runs(one)] == [1, 0]
    assert one.sql("select run_id from onceflow.run where dag_id = 'graph' order by logical_date") == [("scheduled__2026-02-28T06:00:00+00:00",), ("mine",)]


class Unable(Timetable):
    """Says nothing."""

    def next_run(self, last: DataInterval | None, bounds: Bounds) -> PlannedRun | None:
        raise ValueError("no calendar")

    latest_run = next_run  # type: ignore[assignment]


def test_a_timetable_that_fails_stops_no_other(clock: TestDatabase, one: Engine) -> None:
    """Its error is shown as an import error of its dag; the others get their runs; it is asked again after a minute, and goes on once it is mended."""
    tell(one, Unable(), "broken")
    tell(one, CronInterval("0 6 * * *"), "sound")
    unpause(one, "broken")
    unpause(one, "sound")
    assert [make_runs(one), make_runs(one)] == [1, 0]
    assert "no calendar" in one.sql("select stacktrace from onceflow.import_error where dag_id = 'broken'")[0][0]
    assert one.sql("select next_dagrun_create_after from onceflow.dag where dag_id = 'broken'") == [(at("2026-03-02 12:01"),)]
    tell(one, CronInterval("0 6 * * *"), "broken")
    assert make_runs(one) == 1
    assert one.sql("select * from onceflow.import_error") == []


def test_clocks_put_forward(clock: TestDatabase, one: Engine) -> None:
    """06:00 in Berlin on both sides of the change: an interval of 23 hours, and no run is missed or doubled."""
    set_clock(clock, "2026-03-28 12:00")
    tell(one, CronInterval("0 6 * * *", timezone="Europe/Berlin"), start="2026-03-27", catchup=True)
    unpause(one)
    make_runs(one)
    for hour in range(48):
        set_clock(clock, (at("2026-03-28 12:00") + timedelta(hours=hour)).isoformat())
        make_runs(one)
    found = one.sql("select data_interval_end - data_interval_start from onceflow.run where dag_id = 'graph' order by logical_date")
    assert [length for (length,) in found] == [timedelta(hours=24), timedelta(hours=23), timedelta(hours=24)]


def test_a_run_of_a_dag_ends_at_its_timeout(clock: TestDatabase, one: Engine) -> None:
    """dagrun_timeout, from the moment at which the run began."""
    tell(one, "0 6 * * *", start="2026-03-01")
    one.sql("update onceflow.dag set timeout_s = 60 where dag_id = 'graph'")
    unpause(one)
    make_runs(one)
    set_clock(clock, "2026-03-02 12:00:59")
    one.tick()
    assert one.sql("select state from onceflow.dag_run where dag_id = 'graph'") == [("running",)]
    set_clock(clock, "2026-03-02 12:01")
    one.tick()
    assert one.sql("select state, stop_reason from onceflow.dag_run where dag_id = 'graph'") == [("failed", "the run exceeded its timeout")]


def test_a_paused_dag_is_told_by_name(one: Engine, make_engine: Callable[..., Engine]) -> None:
    """pause_dag answers whether it was otherwise before, and refuses a name that nobody has."""
    tell(one, None)
    assert [one.call(dag_calls.pause_dag("graph", flag)) for flag in (True, True, False)] == [True, False, True]
    with pytest.raises(Exception, match="no workflow or dag named nobody"):
        one.call(dag_calls.pause_dag("nobody", True))
