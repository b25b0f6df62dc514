"""The time limit of a run that begins anew: by retry_run, fork_run or continue_as."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.db import calls
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, move_clock, stop_clock

LIMITS = "select kind, extract(epoch from due_at - onceflow.now())::int from onceflow.timer where run = %s"


def retry(engine: Engine, task: Task) -> int:
    engine.fail(task)
    engine.retry(task.run)
    return task.run


def retry_cancelled(engine: Engine, task: Task) -> int:
    engine.cancel(task.run)
    engine.retry(task.run)
    return task.run


def retry_timed_out(engine: Engine, task: Task) -> int:
    move_clock(engine.db, 60)
    engine.tick()
    assert look(engine.db, task.run)[1] == "failed"
    engine.retry(task.run)
    return task.run


def fork(engine: Engine, task: Task) -> int:
    engine.complete_step(task, "pay-0")
    return int(engine.call(calls.fork_run(task.run, "pay-0", "fork", "tester"))["run"])


def go_on(engine: Engine, task: Task) -> int:
    return int(engine.call(calls.continue_run(*task.owner, "flow", "{}", "h", '{"n": 2}', 0))["$continued"]["run"])


@pytest.mark.parametrize("begin_anew", [retry, retry_cancelled, retry_timed_out, fork, go_on])
def test_a_run_that_begins_anew_has_its_time_limit_anew(db: TestDatabase, one: Engine, begin_anew: Callable[[Engine, Task], int]) -> None:
    """The limit and the tries it was started with, not those its workflow declares; counted from now on."""
    stop_clock(db)
    task = one.start_and_claim(timeout_s=100.0, retries=3)
    move_clock(db, 50)
    run = begin_anew(one, task)
    assert db.sql(LIMITS, run) == [("run_timeout", 100)]
    assert db.sql("select retries from onceflow.ti where run = %s", run) == [(3,)]
    one.claim_one()
    move_clock(db, 99)
    one.tick()
    assert look(db, run) == ("running", "running")
    move_clock(db, 2)
    one.tick()
    assert look(db, run)[1] == "failed"


def test_a_stopped_run_keeps_the_limit_it_has(db: TestDatabase, one: Engine) -> None:
    """retry_run of a run that needs code, whose time has gone on, adds no second limit."""
    stop_clock(db)
    task = one.start_and_claim(timeout_s=100.0)
    one.stop_run(task, "v0")
    move_clock(db, 40)
    one.retry(task.run)
    assert db.sql(LIMITS, task.run) == [("run_timeout", 60)]
