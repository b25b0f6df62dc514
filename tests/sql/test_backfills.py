"""Backfills: made at once, admitted under a limit of their own, paused, resumed, cancelled."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from onceflow.db import calls, dag_calls
from onceflow.engine.backfills import BackfillOptions, create_backfill, preview_backfill
from onceflow.errors import InvalidArgument, InvalidTransition, LeaseLost, NotFound, RunConflict
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, end, make_plan
from tests.sql.engine_calls import Engine, Task, sqlstate_of
from tests.sql.test_schedules import at, tell, unpause

CHAIN = {f"t{n}": Node((f"t{n - 1}",) if n else ()) for n in range(15)}
SHOWN = "select state, count(*) from onceflow.dag_run where run_type = 'backfill' group by state"


def fill(engine: Engine, start: str = "2026-01-01", stop: str = "2026-01-05", dag_id: str = "graph", **options: Any) -> dict[str, Any]:
    """Makes a backfill, as a client does."""
    request, answer = create_backfill(dag_id, start, stop, BackfillOptions(**options)), None
    while True:
        try:
            answer = engine.call(request.send(answer))
        except StopIteration as ended:
            made: dict[str, Any] = ended.value
            return made


def steer(engine: Engine, backfill: int, act: str) -> Any:
    return engine.call(dag_calls.steer_backfill(backfill, act, "tester"))


def progress(engine: Engine, backfill: int) -> dict[str, Any]:
    answer: dict[str, Any] = engine.call(dag_calls.read_backfill(backfill))
    return answer


def begun(engine: Engine) -> list[datetime]:
    """The dates whose runs have begun, in the order in which they did."""
    engine.tick()
    return [
        d
        for (d,) in engine.sql(
            "select r.logical_date from onceflow.run r where r.start_date is not null and r.backfill is not null order by r.start_date, r.logical_date"
        )
    ]


@pytest.fixture
def daily(one: Engine) -> Engine:
    """A dag of one task, daily at 06:00, not paused; its schedule makes no runs, as no scheduler runs."""
    tell(one, "0 6 * * *", start="2026-01-01")
    unpause(one)
    return one


def day(number: int) -> datetime:
    return datetime(2026, 1, number, 6, tzinfo=UTC)


def test_both_ends_are_included(daily: Engine) -> None:
    """Five days by their dates are five runs, with their data intervals, ids, params and tasks; they begin one by one, the oldest first."""
    made = fill(daily, params={"n": 2})
    assert made == {"backfill": made["backfill"], "dag_id": "graph", "state": "running", "total": 5, "skipped": 0}
    rows = daily.sql("select run_id, run_type, conf, data_interval_start, data_interval_end, state from onceflow.dag_run order by logical_date")
    assert rows == [(f"backfill__2026-01-0{n}T06:00:00+00:00", "backfill", {"n": 2}, day(n), day(n + 1), "queued") for n in range(1, 6)]
    assert daily.sql("select state, count(*) from onceflow.task_instance group by 1") == [("no_status", 5)]
    for number in range(1, 6):
        assert begun(daily) == [day(n) for n in range(1, number + 1)]
        end(daily, daily.claim_one(), "success")
    daily.tick()
    shown = progress(daily, made["backfill"])
    assert (shown["state"], shown["success"], shown["queued"], shown["eta_s"]) == ("done", 5, 0, None)
    assert daily.sql("select * from onceflow.verify_ledger()") == []


def test_a_year_is_made_in_a_second(daily: Engine, db: TestDatabase) -> None:
    """365 runs of 15 tasks: all rows are there when the one call answers."""
    plan = make_plan(CHAIN) | {"schedule": daily.sql("select schedule from onceflow.dag where dag_id = 'graph'")[0][0]}
    daily.call(calls.register_dags(json.dumps([{"dag_id": "graph", "kind": "dag", "code_version": "v1", "plan": plan}]), True))
    assert fill(daily, "2025-01-01", "2025-12-31")["total"] == 365
    assert db.sql("select count(*), (select count(*) from onceflow.ti) from onceflow.run") == [(365, 365 * 15)]
    daily.tick()
    assert db.sql("select count(*) from onceflow.ready") == [(1,)]


def test_one_at_a_time_with_two_schedulers(daily: Engine, two: Engine) -> None:
    """max_active_runs=1: two ticks at once never begin two runs; the second finds the first at work, and leaves it alone."""
    fill(daily)
    daily.begin()
    daily.tick()
    two.tick()
    daily.commit()
    two.tick()
    assert daily.sql("select count(*) from onceflow.active_run") == [(1,)]


def test_its_limit_is_its_own(daily: Engine) -> None:
    """A dag that has all the runs it may have does not hold its backfill up, nor the other way round; and 25 endless runs of other dags do not starve it."""
    daily.sql("update onceflow.dag set max_active_runs = 1 where dag_id = 'graph'")
    for number in range(25):
        tell(daily, None, f"endless{number}")
        daily.start(f"endless{number}")
    daily.start("graph")
    daily.start("graph")
    fill(daily, max_active_runs=3)
    daily.tick()
    assert daily.sql(
        "select run_type, count(*) from onceflow.active_run a join onceflow.run r on r.id = a.run where r.dag_id = 'graph' group by 1 order by 1"
    ) == [
        ("backfill", 3),
        ("manual", 1),
    ]
    held = daily.claim(100)
    kinds = [daily.sql("select run_type from onceflow.run where id = %s", task.run)[0][0] for task in held]
    assert kinds == ["manual"] * 26 + ["backfill"] * 3  # behind everything else that is ready


def test_in_reverse_the_latest_comes_first(daily: Engine) -> None:
    """Day by day back in time."""
    fill(daily, reverse=True, max_active_runs=2)
    assert begun(daily) == [day(4), day(5)]
    for _ in range(2):
        end(daily, daily.claim_one(), "success")
    daily.tick()
    assert daily.sql("select logical_date from onceflow.run r join onceflow.active_run a on a.run = r.id order by 1") == [(day(2),), (day(3),)]


def fail_first(engine: Engine) -> tuple[int, Task]:
    made = fill(engine)
    engine.tick()
    task = engine.claim_one()
    end(engine, task, "failed")
    engine.tick()
    return int(made["backfill"]), task


def test_it_pauses_when_a_run_fails(daily: Engine) -> None:
    """No other run begins; an operator mends, tries the run again, which begins although the backfill is paused, and lets it go on."""
    backfill, task = fail_first(daily)
    shown = progress(daily, backfill)
    assert (shown["state"], shown["reason"], shown["failed"], shown["queued"]) == ("paused", "run backfill__2026-01-01T06:00:00+00:00 failed", 1, 4)
    daily.retry(task.run)
    daily.tick()
    again = daily.claim_one()
    assert again.run == task.run
    end(daily, again, "success")
    daily.tick()
    assert (progress(daily, backfill)["state"], daily.claim(5)) == ("paused", [])
    steer(daily, backfill, "resume")
    daily.tick()
    assert daily.sql("select logical_date from onceflow.run where id = %s", daily.claim_one().run) == [(day(2),)]


def test_it_may_go_on_after_a_failure(daily: Engine) -> None:
    """on_failure=continue: it ends with what failed counted; resumed after a pause likewise."""
    made = fill(daily, "2026-01-01", "2026-01-03", on_failure="continue")
    for state in ("failed", "success", "failed"):
        daily.tick()
        end(daily, daily.claim_one(), state)
    daily.tick()
    shown = progress(daily, made["backfill"])
    assert (shown["state"], shown["failed"], shown["success"]) == ("done", 2, 1)


def test_pause_and_cancel_midway(daily: Engine) -> None:
    """Paused, what runs goes on and nothing else begins; cancelled, everything of it ends, and a late task cannot commit."""
    backfill = int(fill(daily, max_active_runs=2)["backfill"])
    daily.tick()
    first, second = daily.claim(5)
    steer(daily, backfill, "pause")
    end(daily, first, "success")
    daily.tick()
    assert daily.claim(5) == []
    steer(daily, backfill, "resume")
    daily.tick()
    steer(daily, backfill, "cancel")
    shown = progress(daily, backfill)
    assert (shown["state"], shown["reason"], shown["success"], shown["cancelled"]) == ("cancelled", "cancelled by tester", 1, 4)
    with pytest.raises(LeaseLost):
        end(daily, second, "success")
    daily.tick()
    assert daily.claim(5) == [] and daily.sql("select * from onceflow.queued_run") == []
    assert steer(daily, backfill, "cancel")["state"] == "cancelled"
    with pytest.raises(InvalidTransition, match="is cancelled; it cannot resume any more"):
        steer(daily, backfill, "resume")
    assert daily.sql("select * from onceflow.verify_ledger()") == []


def test_a_cancel_and_a_tick_at_once(daily: Engine, two: Engine) -> None:
    """While a cancel has not committed no run begins; afterwards there is none left."""
    backfill = int(fill(daily)["backfill"])
    daily.begin()
    steer(daily, backfill, "cancel")
    two.tick()
    daily.commit()
    two.tick()
    assert daily.sql("select count(*) from onceflow.active_run") == [(0,)]
    assert daily.sql(SHOWN) == [("cancelled", 5)]


@pytest.mark.parametrize(("reprocess", "again"), [("none", 0), ("failed", 1), ("completed", 2)])
def test_dates_that_have_a_run(daily: Engine, reprocess: str, again: int) -> None:
    """none: each keeps the run it has. failed: that runs again as a whole, with the new params. completed: the successful one too. A living one is left alone."""
    fill(daily, "2026-01-01", "2026-01-03", on_failure="continue", max_active_runs=3)
    daily.tick()
    failed, fine, living = daily.claim(3)
    end(daily, failed, "failed")
    end(daily, fine, "success")
    daily.sql("update onceflow.backfill set state = 'done'")
    daily.sql("update onceflow.active_run set backfill = null")
    request, answer = preview_backfill("graph", "2026-01-01", "2026-01-04", BackfillOptions(reprocess=reprocess)), None
    while True:
        try:
            answer = daily.call(request.send(answer))
        except StopIteration as ended:
            assert [line["action"] for line in ended.value] == [*["again" if n < again else "skip" for n in range(2)], "skip", "new"]
            break
    made = fill(daily, "2026-01-01", "2026-01-04", reprocess=reprocess, params={"n": 7}, max_active_runs=9)
    assert (made["total"], made["skipped"]) == (again + 1, 3 - again)
    daily.tick()
    held = daily.claim(9)
    assert [task.run for task in held[:again]] == [failed.run, fine.run][:again] and len(held) == again + 1
    assert [conf for (conf,) in daily.sql("select conf from onceflow.run where id = any(%s)", [task.run for task in held])] == [{"n": 7}] * (again + 1)
    for task in held:
        end(daily, task, "success")
    end(daily, living, "success")
    daily.tick()
    assert progress(daily, made["backfill"])["state"] == "done"
    assert daily.sql("select * from onceflow.verify_ledger()") == []


def test_of_a_paused_dag_it_waits(daily: Engine) -> None:
    """Visibly: its progress says that the dag is paused."""
    daily.call(dag_calls.pause_dag("graph", True))
    backfill = int(fill(daily)["backfill"])
    daily.tick()
    assert daily.claim(5) == []
    shown = progress(daily, backfill)
    assert (shown["state"], shown["is_dag_paused"], shown["queued"]) == ("running", True, 5)
    unpause(daily)
    daily.tick()
    assert len(daily.claim(5)) == 1


def test_what_makes_no_backfill(daily: Engine) -> None:
    """Another one lives; no such dag, dates or schedule; what a run could not have. Nothing is made of it."""
    tell(daily, None, "plain")
    tell(daily, "@continuous", "endless")
    for options, error, text in (
        ({"dag_id": "nobody"}, NotFound, "there is no dag named nobody"),
        ({"dag_id": "plain"}, InvalidArgument, "dag plain has no schedule"),
        ({"dag_id": "endless"}, InvalidArgument, "gives no dates to fill"),
        ({"start": "2026-01-05", "stop": "2026-01-01"}, InvalidArgument, "before it starts"),
        ({"start": "2199-01-01", "stop": "2199-01-31"}, InvalidArgument, "no complete data interval"),
        ({"start": "yesterday"}, InvalidArgument, "start 'yesterday' is no date"),
        ({"reprocess": "all"}, InvalidArgument, "reprocess cannot be 'all'"),
        ({"max_active_runs": 0}, InvalidArgument, "max_active_runs"),
    ):
        with pytest.raises(error, match=text):
            fill(daily, **options)  # type: ignore[arg-type]
    assert daily.sql("select count(*) from onceflow.backfill") == [(0,)]
    fill(daily)
    with pytest.raises(RunConflict, match=r"backfill \d+ of graph is running"):
        fill(daily)
    for arguments in ("'x', false, 1, 'pause', '{}'", "'none', false, 0, 'pause', '{}'", "'none', false, 1, 'stop', '{}'", "'none', false, 1, 'pause', '[]'"):
        text = f"select onceflow.create_backfill('graph', 'k', now(), now(), '[]', {arguments})"
        assert sqlstate_of(partial(daily.sql, text)) == "OF008"


def test_a_call_repeated_after_a_lost_reply_is_the_same_backfill(daily: Engine) -> None:
    """The client's key makes it one."""
    dates = json.dumps([["2026-01-01T06:00:00Z", "2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"]])
    call = dag_calls.create_backfill("graph", "key", ("2026-01-01", "2026-01-01"), dates, "none", False, 1, "pause", "{}", 0, None)
    assert daily.call(call) == daily.call(call)


def test_the_schedule_passes_over_what_was_filled(daily: Engine) -> None:
    """Catchup makes no second run of a date, and the backfill none of one that the schedule made."""
    from tests.sql.test_schedules import dates, make_runs

    fill(daily, "2026-01-02", "2026-01-03")
    tell(daily, "0 6 * * *", start="2026-01-01", last="2026-01-04", catchup=True)
    make_runs(daily)
    assert dates(daily) == [day(n) for n in (1, 2, 3)]
    assert daily.sql("select count(*) from onceflow.run where run_type = 'scheduled'") == [(1,)]
    steer(daily, daily.sql("select id from onceflow.backfill")[0][0], "cancel")
    assert fill(daily, "2026-01-01", "2026-01-04")["skipped"] == 3


def test_days_are_days_of_the_dag_s_zone(one: Engine) -> None:
    """A date means the day in the zone of the schedule; an end by the minute is taken as it is."""
    from onceflow import CronInterval

    tell(one, CronInterval("0 0 * * *", timezone="Asia/Tokyo"))
    assert fill(one, "2026-01-01", "2026-01-02")["total"] == 2
    first = one.sql("select min(logical_date), max(logical_date) from onceflow.run")
    assert first == [(at("2025-12-31 15:00"), at("2026-01-01 15:00"))]
    steer(one, one.sql("select id from onceflow.backfill")[0][0], "cancel")
    assert fill(one, "2026-01-05T15:00:00", "2026-01-05T15:00:00")["total"] == 1
    assert timedelta(days=1) == one.sql("select data_interval_end - data_interval_start from onceflow.run order by id desc limit 1")[0][0]
