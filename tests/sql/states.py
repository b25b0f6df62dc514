"""Puts a task into every state there is, by nothing but the functions that lead there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sql.engine_calls import Engine, Task

NOBODY = 42


@dataclass(frozen=True, slots=True)
class Put:
    """A task in a certain state: `task` is its claim, or the last one it had, or one that never was."""

    run: int
    task: Task


def forged(run: int) -> Task:
    """A claim that nobody ever made."""
    return Task(run, run, "00000000-0000-4000-8000-000000000000", "flow", 0, 1, "", "body", 0)


def put_none(engine: Engine) -> Put:
    return Put(NOBODY, forged(NOBODY))


def put_scheduled(engine: Engine) -> Put:
    run = engine.start(delay_s=100)
    return Put(run, forged(run))


def put_queued(engine: Engine) -> Put:
    run = engine.start(retries=3)
    return Put(run, forged(run))


def put_running(engine: Engine) -> Put:
    """With a step on record, so that it can be forked."""
    run = put_queued(engine).run
    task = engine.claim_one()
    engine.complete_step(task, "first-0")
    return Put(run, task)


def put_up_for_retry(engine: Engine) -> Put:
    put = put_running(engine)
    engine.fail(put.task, retry=True, delay_s=100)
    return put


def put_deferred(engine: Engine) -> Put:
    put = put_running(engine)
    engine.defer(put.task, ("message", put.run, "t"), ("time", 0, "2999-01-01T00:00:00Z"))
    return put


def put_success(engine: Engine) -> Put:
    put = put_running(engine)
    engine.complete(put.task)
    return put


def put_failed(engine: Engine) -> Put:
    put = put_running(engine)
    engine.fail(put.task)
    return put


def put_skipped(engine: Engine) -> Put:
    """Cancelled before anybody claimed it."""
    put = put_queued(engine)
    engine.cancel(put.run)
    return put


def put_cancelled(engine: Engine) -> Put:
    """Cancelled while it ran."""
    put = put_running(engine)
    engine.cancel(put.run)
    return put


def put_stopped(engine: Engine) -> Put:
    put = put_running(engine)
    engine.stop_run(put.task, "v0")
    return put


def put_success_of_a_failed_run(engine: Engine) -> Put:
    """The body succeeded, a task of the outbox failed."""
    put = put_running(engine)
    engine.begin_step(put.task)
    engine.start_task(put.task, None)
    engine.complete(put.task, kind="transactional")
    engine.commit()
    engine.fail(engine.claim_one())
    return put


# By the state of the task and that of its run.
PUTS: dict[tuple[str, str], Callable[[Engine], Put]] = {
    ("none", "none"): put_none,
    ("scheduled", "queued"): put_scheduled,
    ("queued", "queued"): put_queued,
    ("running", "running"): put_running,
    ("up_for_retry", "running"): put_up_for_retry,
    ("deferred", "running"): put_deferred,
    ("success", "success"): put_success,
    ("failed", "failed"): put_failed,
    ("skipped", "cancelled"): put_skipped,
    ("failed", "cancelled"): put_cancelled,
    ("deferred", "needs_code"): put_stopped,
    ("success", "failed"): put_success_of_a_failed_run,
}
