"""Every arrow of the state machine counts the entries it writes: after each one verify_ledger finds nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from onceflow.db import calls
from onceflow.db.calls import render
from tests.sql.drive import Drive
from tests.sql.engine_calls import Engine, Task, sqlstate_of

Arrow = Callable[[Drive, Engine, Task], None]


def complete(drive: Drive, engine: Engine, task: Task) -> None:
    drive.write(task, "pay#0")
    engine.complete(task)


def fail_for_ever(drive: Drive, engine: Engine, task: Task) -> None:
    engine.fail_step(task, "pay#0", final=False)
    engine.fail_step(task, "pay#0", final=True, try_number=2)
    engine.fail(task)


def fail_and_retry(drive: Drive, engine: Engine, task: Task) -> None:
    drive.db.sql("update onceflow.ti set max_tries = 1")
    engine.complete_step(task, "pay#0")
    assert engine.fail(task, retry=True) == "up_for_retry"
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def fail_and_wait(drive: Drive, engine: Engine, task: Task) -> None:
    drive.db.sql("update onceflow.ti set max_tries = 1")
    engine.fail(task, retry=True, delay_s=60)


def repeat_an_outcome(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    assert sqlstate_of(lambda: engine.complete_step(task, "pay#0")) == "OF007"
    assert sqlstate_of(lambda: engine.fail_step(task, "pay#0", final=True)) == "OF007"
    engine.complete(task)


def rescue(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    drive.lose()
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def rescue_too_often(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    drive.lose(max_rescues=0)


def cancel_while_it_runs(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.cancel(task.run)


def cancel_before_it_runs(drive: Drive, engine: Engine, task: Task) -> None:
    engine.cancel(engine.start())
    engine.complete(task)


def cancel_with_children(drive: Drive, engine: Engine, task: Task) -> None:
    engine.start_child(task, "flow:start#0")
    engine.complete_step(engine.claim_one(), "pay#0")
    engine.cancel(task.run)


def cancel_twice(drive: Drive, engine: Engine, task: Task) -> None:
    engine.cancel(task.run)
    engine.cancel(task.run)


def retry_a_failed_run(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.fail(task)
    engine.retry(task.run)
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def retry_a_cancelled_run(drive: Drive, engine: Engine, task: Task) -> None:
    engine.start_task(task, "work:start#0")
    engine.cancel(task.run)
    engine.retry(task.run)
    assert drive.findings() == []
    for again in engine.claim(2):
        engine.complete(again)


def fork(drive: Drive, engine: Engine, task: Task) -> None:
    for number in range(3):
        engine.complete_step(task, f"pay#{number}")
    engine.complete(task)
    engine.call(calls.fork_run(task.run, "pay#2", "again", "tester"))
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def defer(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.defer(task, ("message", task.run, "go"))
    assert drive.findings() == []
    engine.send(task.run, "go")
    drive.db.sql("select onceflow.drain_wake_ups(500)")
    again = engine.claim_one()
    assert engine.receive(again, "recv#0", "go")
    assert engine.receive(again, "recv#1", "go") is None
    engine.complete(again)


def defer_and_cancel(drive: Drive, engine: Engine, task: Task) -> None:
    engine.defer(task, ("message", task.run, "go"))
    engine.cancel(task.run)


def stop_for_code(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.stop_run(task, "v0")
    assert drive.findings() == []
    engine.retry(task.run)


def start_tasks(drive: Drive, engine: Engine, task: Task) -> None:
    engine.start_task(task, "work:start#0")
    with drive.transaction(task, "pay#0") as conn:
        token = calls.start_task(task.run, task.ti, task.token, None, "work", "m:work", "{}", "h", 0, None)
        conn.execute(render(token).encode())
        drive.complete_step(task, "pay#0", conn)
    for child in engine.claim(2):
        engine.complete(child, kind="external")
    engine.complete(task)


def unclaim(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    assert engine.unclaim(task) == 1
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def forget_by_heartbeat(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.heartbeat([])
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def rotate_the_token(drive: Drive, engine: Engine, task: Task) -> None:
    answer = engine.call(calls.resolve_commit(*task.owner, task.epoch, "pay#0", task_fence(drive, task), 1, False, "00000000-0000-4000-8000-000000000001"))
    assert answer["outcome"] == "not_committed"
    engine.call(calls.complete_task(task.run, task.ti, answer["token"], "flow", "body", "{}", "h", "null", 0))


def task_fence(drive: Drive, task: Task) -> int:
    return int(drive.db.sql("select fence from onceflow.lease where ti = %s", task.ti)[0][0])


def continue_as(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete_step(task, "pay#0")
    engine.call(calls.continue_run(*task.owner, "flow", "{}", "h", "{}", 0))
    assert drive.findings() == []
    engine.complete(engine.claim_one())


def time_limit(drive: Drive, engine: Engine, task: Task) -> None:
    engine.complete(task)
    run = engine.start(timeout_s=0.001)
    engine.complete_step(engine.claim_one(), "pay#0")
    drive.db.wait_for("select onceflow.now() > due_at from onceflow.timer where run = %s", run)
    assert drive.db.sql("select onceflow.fire_timers(500)") == [(1,)]


def batch(drive: Drive, engine: Engine, task: Task) -> None:
    drive.db.sql("select onceflow.run_batch(%s)", batch_text(task))


def batch_text(task: Task) -> str:
    owner = [str(task.run), str(task.ti), task.token]
    step = [*owner, "pay#0", "pay", "external", 1, "{}", "h"]
    return json.dumps([["start_step", *step], ["complete_step", *step, "1", 0], ["complete_task", *owner, "flow", "body", "{}", "h", "null", 0]])


ARROWS = [
    complete,
    fail_for_ever,
    fail_and_retry,
    fail_and_wait,
    repeat_an_outcome,
    rescue,
    rescue_too_often,
    cancel_while_it_runs,
    cancel_before_it_runs,
    cancel_with_children,
    cancel_twice,
    retry_a_failed_run,
    retry_a_cancelled_run,
    fork,
    defer,
    defer_and_cancel,
    stop_for_code,
    start_tasks,
    unclaim,
    forget_by_heartbeat,
    rotate_the_token,
    continue_as,
    time_limit,
    batch,
]


@pytest.mark.parametrize("arrow", ARROWS, ids=lambda arrow: arrow.__name__)
def test_an_arrow_counts_its_entries(drive: Drive, arrow: Arrow) -> None:
    """Counters and entries agree in the middle and at the end, whoever moved the task, and every end has its outcome."""
    arrow(drive, drive.engine, drive.start())
    assert drive.findings() == []
    drive.seal()
    assert drive.findings() == []
