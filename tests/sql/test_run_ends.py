"""A run ends exactly once, with its last task, whichever tasks end at the same time and in whatever transactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from onceflow.db import calls
from tests.database import TestDatabase
from tests.sql.engine_calls import OWN_ERROR, Engine, Task, look, make_silent

ENDED = "select count(*) from onceflow.run where id = %s and state = %s and end_date is not null"


def fan_out(engine: Engine, count: int) -> tuple[Task, list[Task]]:
    """A body and that many tasks it has started, all claimed by the one worker."""
    body = engine.start_and_claim()
    for i in range(count):
        engine.start_task(body, f"work:start-{i}")
    return body, sorted(engine.claim(count), key=lambda t: t.ti)


def check_ended(db: TestDatabase, run: int, state: str = "success") -> None:
    """The run has ended in that state, and has told so once."""
    assert look(db, run)[1] == state, db.dump()
    assert db.sql(ENDED, run, state) == [(1,)]
    assert db.sql("select from onceflow.lease") == [] == db.sql("select from onceflow.ready")


@pytest.mark.parametrize("ended_before", ["neither", "body"])
@pytest.mark.parametrize("commit_order", ["first in first out", "last in first out"])
def test_the_last_two_tasks_end_at_the_same_time(db: TestDatabase, one: Engine, two: Engine, ended_before: str, commit_order: str) -> None:
    """Two uncommitted ends of one run, the body among them or not: the run ends with whichever commits last."""
    body, tasks = fan_out(one, 2)
    if ended_before == "body":
        one.complete(body)
        first, second = tasks
    else:
        one.complete(tasks[0])
        first, second = tasks[1], body
    one.begin()
    one.complete(first)
    two.begin()
    other = two.later(lambda: two.complete(second))
    if commit_order == "first in first out":
        one.commit()
        other.result(20)
        two.commit()
    else:
        waits = not is_done(other)
        if not waits:
            two.commit()
        one.commit()
        other.result(20)
        if waits:
            two.commit()
    check_ended(db, body.run)


def is_done(future: Any) -> bool:
    """Has it ended, or does it after all wait for somebody?"""
    try:
        future.result(0.5)
    except TimeoutError:
        return False
    return True


def test_tasks_of_one_run_end_side_by_side(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """While the body lives, ends of its tasks do not wait for each other's commits."""
    body, tasks = fan_out(one, 4)
    enders = [make_engine() for _ in tasks]
    for ender, task in zip(enders, tasks, strict=True):
        ender.begin()
        assert ender.later(partial(ender.complete, task)).exception(20) is None
    body_ended = one.blocks(lambda: one.complete(body))
    for ender in reversed(enders):
        ender.commit()
    body_ended.result(20)
    check_ended(db, body.run)


def end_and_commit(engine: Engine, task: Task) -> None:
    """End the task in the open transaction; when that fails to serialise, once more in another, as the engine does."""
    try:
        engine.complete(task)
        engine.commit()
    except psycopg.errors.SerializationFailure:
        engine.rollback()
        engine.complete(task)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("who", ["task", "body", "both"])
@pytest.mark.parametrize("order", ["one after the other", "side by side"])
def test_ends_in_other_isolation_levels_are_not_missed(db: TestDatabase, one: Engine, two: Engine, level: str, who: str, order: str) -> None:
    """A transaction that cannot see the other end, since its snapshot is older, leaves the run to the next tick."""
    body, (task,) = fan_out(one, 1)
    one.begin("read committed" if who == "body" else level)
    two.begin("read committed" if who == "task" else level)
    one.sql("select 1 from onceflow.run")  # takes the snapshots
    two.sql("select 1 from onceflow.run")
    if order == "one after the other":
        end_and_commit(one, task)
        end_and_commit(two, body)
    else:
        one.complete(task)
        ended = two.later(lambda: end_and_commit(two, body))
        is_done(ended)
        try:
            one.commit()
        except psycopg.errors.SerializationFailure:
            one.complete(task)
        ended.result(20)
    two.tick()
    check_ended(db, body.run)


@pytest.mark.parametrize("first", ["start", "end"])
def test_a_task_is_started_while_the_body_ends(db: TestDatabase, one: Engine, two: Engine, first: str) -> None:
    """start_task beside the body's end: either it counts and the run goes on, or it is refused and the run has ended. Never stuck."""
    body = one.start_and_claim()
    one.begin()
    two.begin()
    if first == "start":
        one.start_task(body, "work:start-0")
        ended = two.blocks(lambda: two.complete(body))
        one.commit()
        ended.result(20)
        two.commit()
        assert look(db, body.run)[1] == "running"
        two.complete(one.claim_one())
    else:
        two.complete(body)
        started = one.blocks(lambda: one.start_task(body, "work:start-0"))
        two.commit()
        assert started.exception(20) is not None
        one.rollback()
    check_ended(db, body.run)


def test_a_task_is_started_by_a_task_while_the_body_ends(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A task of the run starts another as the body ends and before it ends itself: the run ends with the last of them."""
    body, (task,) = fan_out(one, 1)
    one.begin()
    one.start_task(task, "work:start-0")
    ended = two.later(lambda: two.complete(body))
    is_done(ended)
    one.commit()
    ended.result(20)
    two.complete(task)
    assert look(db, body.run)[1] == "running"
    two.complete(two.claim_one())
    check_ended(db, body.run)


def outbox(engine: Engine, task: Task) -> int:
    return engine.start_task(task, None)


def test_steps_with_an_outbox_do_not_meet_in_engine_rows(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Two transactional steps of one run start tasks, then write the same user row: they meet in that row alone, so there is no deadlock."""
    body, (first, second) = fan_out(one, 2)
    db.sql("create table account (balance int)")
    db.sql("insert into account values (0)")
    one.begin_step(first)
    two.begin_step(second)
    started = [outbox(one, first), outbox(two, second)]
    one.sql("update account set balance = balance + 1")
    other = two.blocks(lambda: two.sql("update account set balance = balance + 1"))
    one.complete(first, kind="transactional")
    one.commit()
    other.result(20)
    two.complete(second, kind="transactional")
    two.commit()
    one.complete(body)
    assert look(db, body.run)[1] == "running"
    assert db.sql("select count(distinct map_index), count(*) from onceflow.ti where id = any(%s)", started) == [(2, 2)]
    for task in one.claim(5):
        one.complete(task)
    check_ended(db, body.run)


def test_branches_of_one_body_with_outboxes_do_not_deadlock(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Two transactional steps inside one body, one of which has started a task, complete in the order of the user row they both write."""
    body = one.start_and_claim()
    db.sql("create table account (balance int)")
    db.sql("insert into account values (0)")
    one.begin_step(body, "a-0")
    two.begin_step(body, "b-0")
    outbox(one, body)
    two.sql("update account set balance = balance + 1")
    other = one.blocks(lambda: one.sql("update account set balance = balance + 1"))
    two.later(lambda: two.complete_step(body, "b-0", kind="transactional")).result(20)
    two.commit()
    other.result(20)
    one.complete_step(body, "a-0", kind="transactional")
    one.commit()
    one.complete(body)
    one.complete(one.claim_one())
    check_ended(db, body.run)


def test_a_rolled_back_outbox_never_existed(db: TestDatabase, one: Engine) -> None:
    """A task started in a transaction, or a savepoint, that is rolled back counts nowhere."""
    body = one.start_and_claim()
    one.begin_step(body)
    outbox(one, body)
    one.rollback()
    one.begin_step(body, "a-0")
    one.sql("savepoint s")
    outbox(one, body)
    one.sql("rollback to savepoint s")
    one.complete_step(body, "a-0", kind="transactional")
    one.commit()
    one.complete(body)
    check_ended(db, body.run)
    assert db.sql("select count(*) from onceflow.ti") == [(1,)]


def test_an_outbox_does_not_hold_up_cancel(db: TestDatabase, one: Engine, two: Engine) -> None:
    """cancel_run does not wait for a step's open transaction that has started a task; that cannot commit any more."""
    body = one.start_and_claim()
    one.begin_step(body)
    outbox(one, body)
    two.later(lambda: two.cancel(body.run)).result(20)
    with pytest.raises(Exception, match="was cancelled"):
        one.complete(body, kind="transactional")
    one.rollback()
    assert db.sql("select count(*) from onceflow.ti") == [(1,)]
    check_ended(db, body.run, "cancelled")


def test_a_failed_outbox_task_fails_the_run(db: TestDatabase, one: Engine) -> None:
    """Nobody awaits a task begun in a transaction, so its failure is the run's; retry_run tries both again."""
    body = one.start_and_claim()
    one.begin_step(body)
    outbox(one, body)
    one.complete(body, kind="transactional")
    one.commit()
    one.fail(one.claim_one())
    check_ended(db, body.run, "failed")
    assert one.retry(body.run)["tasks"] == 2
    for task in one.claim(2):
        one.complete(task)
    check_ended(db, body.run)


def end_call(how: str, task: Task) -> list[Any]:
    """A member of a batch that ends the task."""
    error = json.dumps(OWN_ERROR)
    if how == "complete":
        return ["complete_task", *task.owner, task.task_id, "body", "{}", "h", "null", 0]
    return ["fail_task", *task.owner, task.task_id, "body", "{}", "h", error, False, 0, 0]


def batch(engine: Engine, *members: list[Any]) -> Any:
    return engine.call(calls.run_batch(json.dumps(members)))


def test_batches_across_runs_do_not_deadlock(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """Groups of ends that share runs crosswise, in any order of their members, all commit at the first attempt."""
    pairs = [fan_out(one, 4) for _ in range(4)]
    for body, _ in pairs:
        one.complete(body)
    groups = [[end_call("complete", tasks[i]) for _, tasks in pairs] for i in range(4)]
    groups[1].reverse()
    groups[2] = groups[2][2:] + groups[2][:2]
    enders = [make_engine() for _ in groups]
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    futures = [e.later(partial(batch, e, *g)) for e, g in zip(enders, groups, strict=True)]
    assert [f.result(30) for f in futures] == [[None] * 4] * 4
    db.sql("select pg_stat_force_next_flush()")
    assert db.sql(deadlocks) == [(0,)]
    for body, _ in pairs:
        check_ended(db, body.run)


def test_a_batch_meets_a_single_call(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A batch that ends a task of a run and writes for another, beside a single call for that other: no deadlock; what the call holds is busy."""
    body, (first, second) = fan_out(one, 2)
    one.complete(body)
    one.begin()
    one.start_task(second, "work:start-0")
    step = ["start_step", *second.owner, "a-0", "a", "external", 1, "{}", "h"]
    other = two.blocks(lambda: batch(two, end_call("complete", first), step))
    one.commit()
    assert other.result(20) == [None, {"busy": True}]
    assert batch(two, step) == [None]


def test_a_batch_answers_in_the_callers_order(db: TestDatabase, one: Engine) -> None:
    """Whatever order a batch is carried out in, its answers stand where the calls stood."""
    tasks = [one.start_and_claim(run_id=f"r{i}") for i in range(3)]
    members = [end_call("fail", tasks[2]), end_call("complete", tasks[0]), end_call("fail", tasks[1])]
    assert batch(one, *members) == [{"state": "failed"}, None, {"state": "failed"}]


def test_one_bad_member_undoes_the_batch(db: TestDatabase, one: Engine) -> None:
    """A batch with a lost lease in it changes nothing."""
    good, lost = one.start_and_claim(), one.start_and_claim()
    one.cancel(lost.run)
    with pytest.raises(Exception, match="was cancelled"):
        batch(one, end_call("complete", good), end_call("complete", lost))
    assert look(db, good.run)[0] == "running"


def test_the_last_rescue_ends_the_run(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A task rescued too often ends while the last other one does: the run ends, failed or not by its body's state."""
    body, (task,) = fan_out(one, 1)
    one.complete(body)
    make_silent(db, one)
    two.begin()
    assert two.rescue(max_rescues=0) == 1
    two.commit()
    check_ended(db, body.run)
    assert db.sql("select state from onceflow.ti where id = %s", task.ti) == [("failed",)]


FETCHED = """select coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::int from pg_stat_xact_user_tables
    where relid in (select inhrelid from pg_inherits where inhparent in ('onceflow.ti'::regclass, 'onceflow.run'::regclass))"""


def test_the_end_of_many_detached_tasks_looks_at_each_once(db: TestDatabase, one: Engine) -> None:
    """After the body's end each task's own end reads a few rows, however many tasks have ended before it and are left."""
    body = one.start_and_claim()
    one.begin_step(body)
    for _ in range(200):
        outbox(one, body)
    one.complete(body, kind="transactional")
    one.commit()
    fetched = []
    for task in one.claim(200):
        one.begin()
        before = one.sql(FETCHED)[0][0]  # of transactions that the statistics do not hold yet
        one.complete(task)
        fetched.append(one.sql(FETCHED)[0][0] - before)
        one.commit()
    check_ended(db, body.run)
    assert min(fetched[:-1]) > 0 and max(fetched[:-1]) < 10, fetched
    assert db.sql("select living from onceflow.run") == [(None,)]


@pytest.mark.parametrize("who", ["step", "task"])
def test_a_task_starts_others_while_the_body_ends(db: TestDatabase, one: Engine, two: Engine, make_engine: Callable[..., Engine], who: str) -> None:
    """It takes the run's locks in the order of the body's end, so there is no deadlock, and what it has started is counted."""
    body, (first, second) = fan_out(one, 2)
    other = make_engine()
    one.begin()
    one.start_task(first, "work:start-0")  # holds the run's row
    two.begin_step(second, None if who == "task" else "a-0")
    outbox(two, second)
    end = partial(two.complete, second, kind="transactional") if who == "task" else partial(two.complete_step, second, "a-0", kind="transactional")
    ended = two.blocks(end)
    body_ended = other.blocks(lambda: other.complete(body))
    one.commit()
    assert ended.exception(20) is None
    two.commit()
    assert body_ended.exception(20) is None
    left = one.claim(5) + [first] + ([second] if who == "step" else [])
    for task in left:
        assert look(db, body.run)[1] == "running"
        one.complete(task)
    check_ended(db, body.run)
