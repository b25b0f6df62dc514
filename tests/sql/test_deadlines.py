"""Deadlines of runs: rung once by the tick, for runs that live; a kept one leaves nothing behind."""

from __future__ import annotations

import json

import pytest

from tests.database import TestDatabase
from tests.sql.dag_plans import Node, end, make_plan, register
from tests.sql.engine_calls import Engine, move_clock, stop_clock
from tests.sql.test_schedules import at, unpause

QUEUED = {"reference": "queued_at", "at": None, "interval_s": 60}
LOGICAL = {"reference": "logical_date", "at": None, "interval_s": -3600}
FIXED = {"reference": "fixed", "at": "2026-02-01T00:00:00+00:00", "interval_s": 1.5}
TIMERS = "select ti, due_at from onceflow.timer where run = %s and kind = 'deadline' order by ti"
RUNG = "select run, ti, event, try_number from onceflow.callback order by id"


def tell(engine: Engine, *deadlines: object, **options: object) -> None:
    register(engine, {"a": Node()}, plan=make_plan({"a": Node()}) | {"deadlines": list(deadlines)} | options)


def test_each_reference_gives_its_moment(db: TestDatabase, one: Engine) -> None:
    """From when the run was made, from its logical date, or fixed; one timer for each deadline."""
    stop_clock(db)
    tell(one, QUEUED, LOGICAL, FIXED)
    run = one.start("graph", logical_date="2026-01-05T06:00Z")
    (made,) = db.sql("select created_at + interval '1 minute' from onceflow.run")[0]
    assert db.sql(TIMERS, run) == [(1, made), (2, at("2026-01-05T05:00Z")), (3, at("2026-02-01T00:00:01.5Z"))]


def test_a_run_that_lives_at_its_deadline_rings_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Queued or running, whichever process ticks; the run goes on, and a second tick rings nothing."""
    stop_clock(db)
    tell(one, QUEUED)
    db.sql("update onceflow.dag set max_active_runs = 1")
    first, second = one.start("graph"), one.start("graph")
    one.tick()
    assert db.sql(RUNG) == []
    move_clock(db, 61)
    one.begin()
    one.tick()
    two.tick()  # passes over what the other is about to take
    one.commit()
    two.tick()
    assert sorted(db.sql(RUNG)) == sorted([(first, 0, "deadline", 1), (second, 0, "deadline", 1)])
    assert db.sql("select count(*) from onceflow.run where state is null") == [(2,)]


@pytest.mark.parametrize("way", ["success", "cancelled"])
def test_a_run_that_has_ended_calls_nobody(db: TestDatabase, one: Engine, way: str) -> None:
    """Its deadline goes with it, in the same transaction; cleared later, it has none any more."""
    stop_clock(db)
    tell(one, QUEUED)
    run = one.start("graph")
    one.tick()
    if way == "success":
        end(one, one.claim_one(), "success")
    else:
        one.cancel(run)
    assert db.sql("select count(*) from onceflow.timer") == [(0,)]
    one.sql("select onceflow.clear_tasks('graph')")
    move_clock(db, 3600)
    one.tick()
    assert db.sql(RUNG) == []


def test_scheduled_runs_have_deadlines_and_those_of_a_backfill_none(db: TestDatabase, one: Engine) -> None:
    """A year of past dates must not ring a year of alarms."""
    stop_clock(db)
    tell(one, LOGICAL, schedule={"kind": "daily"})
    unpause(one)
    plans = [{"dag_id": "graph", "planned": db.sql("select planned from onceflow.dag where dag_id = 'graph'")[0][0], "next": None, "error": None,
              "runs": [["2026-01-05T00:00Z", "2026-01-05T00:00Z", "2026-01-06T00:00Z"]]}]  # fmt: skip
    assert one.sql("select onceflow.schedule_runs(%s)", json.dumps(plans)) == [(1,)]
    dates = '[["2025-01-05T00:00Z", "2025-01-05T00:00Z", "2025-01-06T00:00Z"]]'
    one.sql("select onceflow.create_backfill('graph', 'k', '2025-01-05', '2025-01-05', %s)", dates)
    found = "select r.run_type, m.due_at from onceflow.timer m join onceflow.run r on r.id = m.run where m.kind = 'deadline'"
    assert db.sql(found) == [("scheduled", at("2026-01-04T23:00Z"))]
    assert db.sql("select count(*) from onceflow.run") == [(2,)]
