"""Waiting bodies: no wake-up is lost in any interleaving, and ticks neither wait for each other nor deadlock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceflow.errors import InvalidArgument
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, move_clock, stop_clock

Wait = tuple[str, int, str]
MANY = 10


def past(db: TestDatabase) -> str:
    return str(db.sql("select (onceflow.now() - interval '1 second')::text")[0][0])


def soon(db: TestDatabase) -> str:
    return str(db.sql("select (onceflow.now() + interval '60 seconds')::text")[0][0])


def end_child_task(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    child = one.start_task(body, "work:start-0")
    task = two.claim_one()
    return ("task", body.run, str(child)), lambda: two.complete(task)


def end_child_run(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    child = one.start_child(body, "flow:start-0")
    task = two.claim_one()
    return ("run", child, ""), lambda: two.complete(task)


def end_other_run(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    task = two.start_and_claim()
    return ("run", task.run, ""), lambda: two.complete(task)


def end_awaited_by_event(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    task = two.start_and_claim()
    return ("event", task.run, "never-set"), lambda: two.complete(task)


def cancel_awaited_by_event(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    run = two.start(run_id="cancelled", delay_s=1000)
    return ("event", run, "never-set"), lambda: two.cancel(run)


def cancel_other_run(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    run = two.start(run_id="cancelled", delay_s=1000)
    return ("run", run, ""), lambda: two.cancel(run)


def send_message(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    return ("message", body.run, "topic"), lambda: two.send(body.run, "topic")


def set_event(one: Engine, two: Engine, body: Task) -> tuple[Wait, Callable[[], Any]]:
    task = two.start_and_claim()
    return ("event", task.run, "ready"), lambda: two.set_event(task, "set_event-0", "ready")


FACTS = [end_child_task, end_child_run, end_other_run, end_awaited_by_event, cancel_awaited_by_event, cancel_other_run, send_message, set_event]


@pytest.mark.parametrize("make_fact", FACTS)
@pytest.mark.parametrize("order", ["fact commits first", "waiter commits first", "fact before", "fact after"])
def test_no_wake_up_is_lost(db: TestDatabase, one: Engine, two: Engine, make_fact: Callable[..., tuple[Wait, Callable[[], Any]]], order: str) -> None:
    """Whichever of the two transactions begins or commits first, after a tick the body that waited is queued again."""
    body = one.start_and_claim()
    wait, make_true = make_fact(one, two, body)
    if order == "fact commits first":
        one.begin()
        two.begin()
        make_true()
        deferred = one.later(lambda: one.defer(body, wait))  # may wait for the fact's commit
        two.commit()
        deferred.result(20)
        one.commit()
    elif order == "waiter commits first":
        one.begin()
        two.begin()
        one.defer(body, wait)
        made = two.later(make_true)
        one.commit()
        made.result(20)
        two.commit()
    elif order == "fact before":
        make_true()
        one.defer(body, wait)
    else:
        one.defer(body, wait)
        make_true()
    one.tick()
    assert look(db, body.run)[0] == "queued"
    assert db.sql("select from onceflow.wait") == []


@pytest.mark.parametrize("first", ["defer", "drain"])
def test_a_tick_and_a_body_that_defers_itself_meet(db: TestDatabase, one: Engine, two: Engine, first: str) -> None:
    """A tick that takes the wake-up before the waiter has committed waits for it, or the waiter for the tick: it wakes in both orders."""
    body = one.start_and_claim()
    wait = ("message", body.run, "topic")
    one.begin()
    two.begin()
    if first == "defer":
        one.defer(body, wait)
        db.sql("select onceflow.send_message(%s, 'topic', '1')", body.run)
        drained = two.blocks(two.drain_wake_ups)
        one.commit()
        assert drained.result(20) == 1
        two.commit()
    else:
        db.sql("select onceflow.send_message(%s, 'topic', '1')", body.run)
        two.drain_wake_ups()
        deferred = one.blocks(lambda: one.defer(body, wait))
        two.commit()
        deferred.result(20)
        one.commit()
    assert look(db, body.run)[0] == "queued"


def test_a_run_that_ends_while_somebody_takes_up_waiting_for_it(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The end of a run that nobody started as a child is told to a waiter whose transaction is older than the end."""
    body = one.start_and_claim()
    other = two.start_and_claim()
    one.begin()
    one.defer(body, ("run", other.run, ""))
    two.complete(other)
    one.commit()
    one.tick()
    assert look(db, body.run)[0] == "queued"


def test_two_ticks_share_the_wake_ups(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Each wake-up is drained by one tick; a second tick beside it passes over and does not wait."""
    bodies = []
    for i in range(MANY):
        bodies.append(one.start_and_claim())
        one.defer(bodies[-1], ("message", bodies[-1].run, "topic"))
        one.send(bodies[-1].run, "topic", str(i))
    one.begin()
    two.begin()
    assert one.drain_wake_ups(4) == 4
    assert two.drain_wake_ups() == MANY - 4
    two.commit()
    one.commit()
    assert {look(db, b.run)[0] for b in bodies} == {"queued"}
    assert db.sql("select count(*), count(distinct ti) from onceflow.ready") == [(MANY, MANY)]


def test_two_ticks_share_the_timers(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Each timer fires once; a second tick beside it passes over and does not wait."""
    for _ in range(MANY):
        one.start(delay_s=10)
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    one.begin()
    two.begin()
    assert one.fire_timers(4) == 4
    assert two.fire_timers() == MANY - 4
    two.commit()
    one.commit()
    assert db.sql("select count(*), count(distinct ti) from onceflow.ready") == [(MANY, MANY)]
    assert db.sql("select from onceflow.timer") == []


def test_a_time_limit_and_a_message_come_at_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """One tick fires the timer of a body, another drains a wake-up of the same body: no deadlock, and it is queued once."""
    body = one.start_and_claim()
    one.defer(body, ("message", body.run, "topic"), ("time", 0, soon(db)))
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    one.send(body.run, "topic")
    one.begin()
    two.begin()
    assert one.fire_timers() == 1
    assert two.later(two.drain_wake_ups).result(20) == 0, "waits for the other tick"
    two.commit()
    one.commit()
    one.tick()
    assert db.sql("select count(*) from onceflow.ready") == [(1,)]
    assert db.sql("select from onceflow.wake_up") == []


def test_a_drain_waits_for_no_application(db: TestDatabase, one: Engine, two: Engine) -> None:
    """An application that holds its cancel_run open stops no tick, and its roll-back loses no wake-up."""
    body = one.start_and_claim()
    one.defer(body, ("message", body.run, "topic"))
    two.begin()
    two.cancel(body.run)
    one.send(body.run, "topic")
    assert one.later(one.tick).result(20)["readied"] == 0
    two.rollback()
    assert one.tick()["readied"] == 1
    assert look(db, body.run)[0] == "queued"


@pytest.mark.parametrize("kind", ["start", "retry", "wait"])
def test_a_timer_fires_while_its_run_is_cancelled(db: TestDatabase, one: Engine, two: Engine, kind: str) -> None:
    """Neither waits for the other for ever; the run is cancelled and nothing of it lies ready."""
    if kind == "start":
        run = one.start(delay_s=10)
    else:
        body = one.start_and_claim(retries=1)
        run = body.run
        if kind == "retry":
            one.fail(body, retry=True, delay_s=10)
        else:
            one.defer(body, ("time", 0, soon(db)))
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    one.begin()
    one.sql("select from onceflow.ti where run = %s for update", run)  # as cancel_run holds it before it comes to the timers
    assert two.later(two.fire_timers).result(20) == 0
    one.cancel(run)
    one.commit()
    two.tick()
    assert look(db, run)[1] == "cancelled"
    assert db.sql("select from onceflow.ready") == [] == db.sql("select from onceflow.timer")


def test_cancelling_waits_for_a_timer_that_is_firing(db: TestDatabase, one: Engine, two: Engine) -> None:
    """cancel_run that comes in the middle of a tick takes away what the tick has queued."""
    run = one.start(delay_s=10)
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    one.begin()
    assert one.fire_timers() == 1
    cancelled = two.blocks(lambda: two.cancel(run))
    one.commit()
    cancelled.result(20)
    assert look(db, run) == ("skipped", "cancelled")
    assert db.sql("select from onceflow.ready") == []


def test_a_run_ends_while_its_time_limit_fires(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A body completes in the moment in which its run's limit is due: it has succeeded, and no tick deadlocks with it."""
    body = one.start_and_claim(timeout_s=10)
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    one.begin()
    one.complete(body)
    two.later(two.tick).result(20)
    one.commit()
    two.tick()
    assert look(db, body.run) == ("success", "success")
    assert db.sql("select from onceflow.timer") == []


def test_a_time_limit_ends_the_run(db: TestDatabase, one: Engine) -> None:
    """A run past its limit fails with all that belongs to it; its worker can commit nothing more."""
    stop_clock(db)
    one.register()
    body = one.start_and_claim(timeout_s=10)
    move_clock(db, 11)
    one.tick()
    assert look(db, body.run) == ("failed", "failed")
    assert db.sql("select stop_reason from onceflow.run") == [("the run exceeded its timeout",)]


def test_a_wait_for_nothing_is_refused(db: TestDatabase, one: Engine) -> None:
    """A body that waits for nothing would sleep for ever: an error, and it still runs."""
    body = one.start_and_claim()
    with pytest.raises(InvalidArgument):
        one.defer(body)
    assert look(db, body.run)[0] == "running"


def test_a_moment_that_has_passed_queues_at_once(db: TestDatabase, one: Engine) -> None:
    """Deferring until a moment that is over puts the body straight back, without a timer."""
    body = one.start_and_claim()
    one.defer(body, ("time", 0, past(db)))
    assert look(db, body.run)[0] == "queued"
    assert db.sql("select from onceflow.timer") == []


def test_wake_ups_left_over_ask_for_the_next_tick_soon(db: TestDatabase, one: Engine) -> None:
    """When one tick could not drain them all, it says that the next is due at once."""
    run = one.start()
    for _ in range(3):
        one.send(run)
    one.sql("select onceflow.run_tick(2, 5)")
    assert db.sql("select count(*) from onceflow.wake_up") == [(1,)]
    assert db.sql("select (onceflow.run_tick(0, 5) ->> 'next_s')::float8 <= 0.1") == [(True,)]


def test_a_wake_up_that_got_lost_is_made_up_for(db: TestDatabase) -> None:
    """A deferred body whose wait is over, but whose wake-up is gone, is found by the tick's own look within seconds."""
    db.sql('select onceflow.register_worker(7, \'h\', 1, array[\'default\'], 1000, \'[{"dag_id":"w","code_version":"v"}]\')')
    run = db.sql("select (onceflow.start_run('w') ->> 'run')::bigint")[0][0]
    token = db.sql("select onceflow.claim_tasks(7, 1, array(select id from onceflow.lane), 1) -> 0 ->> 'token'")[0][0]
    wait = f'[{{"kind": "message", "target_run": {run}, "target": "t"}}]'
    db.sql("select onceflow.defer_task(%s, %s, %s, %s)", run, run, token, wait)
    db.sql("select onceflow.send_message(%s, 't', '1')", run)
    db.sql("delete from onceflow.wake_up")
    db.wait_for("select (onceflow.run_tick() is not null) and exists (select from onceflow.ready where run = %s)", run)


def test_lost_wake_ups_are_looked_for_a_few_bodies_at_a_time(db: TestDatabase, one: Engine) -> None:
    """Each look takes as many bodies as it is told, with all of their waits, and the next goes on behind them: so every body
    has its turn, and a look costs the same however many wait."""
    bodies = [one.start_and_claim() for _ in range(5)]
    for body in bodies:
        one.defer(body, ("message", body.run, "a"), ("message", body.run, "b"))
        one.send(body.run, "a")
        one.send(body.run, "b")
    db.sql("delete from onceflow.wake_up")
    found = []
    for _ in range(4):
        db.sql("select onceflow.find_missed_waits(looked_run, looked_ti, 2) from onceflow.engine")
        found.append(sorted(run for (run,) in db.sql("delete from onceflow.wake_up returning target_run")))
    runs = sorted(body.run for body in bodies)
    assert found == [sorted(2 * part) for part in (runs[:2], runs[2:4], runs[4:], runs[:2])]
