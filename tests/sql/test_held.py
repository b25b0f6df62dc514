"""What an application keeps in an open transaction holds up that, and nothing else: the tick and the batches go on for all others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.db import calls
from onceflow.errors import LeaseLost
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, make_silent

DUE = """update onceflow.timer set due_at = clock_timestamp() - interval '1 second'
    where ctid = any(array(select ctid from onceflow.timer for update skip locked))"""
Hold = Callable[[Engine, Task], Any]


def stop_and_retry(engine: Engine, task: Task) -> None:
    """A run that needs code, in the middle of being tried again."""
    engine.stop_run(task, "v0")
    engine.begin()
    engine.retry(task.run)


def in_transaction(work: Hold) -> Hold:
    def hold(engine: Engine, task: Task) -> None:
        engine.begin()
        work(engine, task)

    return hold


def send(engine: Engine, task: Task) -> None:
    engine.send(task.run, "t", key="k")


def start_same(engine: Engine, task: Task) -> None:
    """Another start of the held run's id, and one of a new one."""
    engine.start(run_id="held")
    engine.start(run_id="new", delay_s=1.0)


def fork(engine: Engine, task: Task) -> None:
    engine.call(calls.fork_run(task.run, "pay-0", "fork", "tester"))


HOLDS: dict[str, Hold] = {
    "cancel_run": in_transaction(lambda e, t: e.cancel(t.run)),
    "retry_run of a stopped run": stop_and_retry,
    "fork_run": in_transaction(fork),
    "start_run": in_transaction(start_same),
    "send_message": in_transaction(send),
    "seal_ledger": in_transaction(lambda e, t: e.sql("select onceflow.seal_ledger()")),
    "register_dags": in_transaction(lambda e, t: e.call(calls.register_dags(json.dumps([{"dag_id": "flow", "code_version": "v2"}]), True))),
    "complete_step": in_transaction(lambda e, t: e.complete_step(t, "b-0")),
    "complete_task": in_transaction(lambda e, t: e.complete(t)),
    "fail_task": in_transaction(lambda e, t: e.fail(t)),
    "defer_task": in_transaction(lambda e, t: e.defer(t, ("message", t.run, "t"))),
    "start_task": in_transaction(lambda e, t: e.start_task(t, "work:start-0")),
    "set_run_event": in_transaction(lambda e, t: e.set_event(t, "set-0", "e")),
    "record_time": in_transaction(lambda e, t: e.call(calls.record_time(*t.owner, "now-0", "now", "{}", "h", 0.0))),
    "resolve_commit": in_transaction(lambda e, t: e.resolve(t, "never-0")),
    "a row of the run": in_transaction(lambda e, t: e.sql("select from onceflow.run where id = %s for update", t.run)),
    "a row of the task": in_transaction(lambda e, t: e.sql("select from onceflow.ti where run = %s for update", t.run)),
    "its wake-ups' lock": in_transaction(lambda e, t: e.sql("select pg_advisory_xact_lock(onceflow.wait_lock('run', %s, ''))", t.run)),
}


LATE = "update onceflow.engine set last_tick_at = clock_timestamp() - interval '1 second', no_rescue_before = '-infinity'"


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_an_open_transaction_holds_up_nobody_else(db: TestDatabase, one: Engine, two: Engine, make_engine: Callable[..., Engine], hold: Hold) -> None:
    """One tick beside a run that is held, with all there is to do for it: it sees to the delayed start, the wait that is over, the limit and the
    lost task of other runs, and comes back."""
    held = one.start_and_claim(run_id="held", timeout_s=1000.0)
    one.complete_step(held, "pay-0")
    waiting = one.start_and_claim(run_id="waiting")
    one.defer(waiting, ("message", waiting.run, "t"))
    one.send(waiting.run, "t")
    limited = one.start_and_claim(run_id="limited", timeout_s=1000.0)
    lost = make_engine()
    lost_task = lost.start_and_claim(run_id="lost")
    delayed = one.start(run_id="delayed", delay_s=1000.0)
    hold(two, held)
    for kind, target in (("end", ""), ("run", ""), ("message", "t")):
        db.sql("insert into onceflow.wake_up (kind, target_run, target) values (%s, %s, %s)", kind, held.run, target)
    db.sql(DUE)
    for engine in (one, lost):
        make_silent(db, engine)
    db.sql("update onceflow.worker set lease_s = 4")
    db.wait_for("select pg_postmaster_start_time() < clock_timestamp() - interval '4 seconds'")  # nobody is rescued sooner
    db.sql(LATE)
    started = time.monotonic()
    one.later(lambda: one.tick(max_rescues=0)).result(10)
    assert time.monotonic() - started < 2.0
    assert [look(db, run) for run in (delayed, waiting.run)] == [("queued", "queued"), ("queued", "running")]
    assert [look(db, task.run)[1] for task in (limited, lost_task)] == ["failed", "failed"]
    two.rollback()
    one.tick(max_rescues=0)
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_batch_goes_on_beside_a_held_task(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A run that is being cancelled keeps none of the others' records: its own call is busy, and is refused when the cancel has committed."""
    held, other = one.start_and_claim(run_id="held"), one.start_and_claim(run_id="other")
    two.begin()
    two.cancel(held.run)
    ends = [["complete_task", *t.owner, t.task_id, "body", "{}", "h", "null", 0] for t in (held, other)]
    assert one.later(lambda: one.call(calls.run_batch(json.dumps(ends)))).result(5) == [{"busy": True}, None]
    assert look(db, other.run) == ("success", "success")
    assert one.call(calls.run_batch(json.dumps(ends[:1]))) == [{"busy": True}]
    two.commit()
    with pytest.raises(LeaseLost, match="was cancelled"):
        one.call(calls.run_batch(json.dumps(ends[:1])))
