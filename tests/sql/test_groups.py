"""complete_group: the end of a transaction that several steps share, and what keeps anybody else from ending it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from onceflow.db import calls
from onceflow.db.tokens import mark_token, prove_token
from onceflow.engine.step_transaction import LET_COMMIT, REFUSE_COMMIT
from onceflow.errors import AlreadyRecorded, InvalidArgument, LeaseLost, StepSplit
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, sqlstate_of

Member = list[Any]


def step_of(task: Task, key: str) -> Member:
    """A member that is a step of a body."""
    proof = prove_token(task.token, f"{key}/1/transactional/1")
    return [mark_token(task.ti, task.token, key), "complete_step", task.run, task.ti, proof, key, "pay", "transactional", 1, "{}", "h", "1", 1000]


def end_of(task: Task) -> Member:
    """A member that is a task of its own."""
    proof = prove_token(task.token, f"{task.task_id}/{task.try_number}/transactional/1")
    return [mark_token(task.ti, task.token, task.task_id), "complete_task", task.run, task.ti, proof, task.task_id, "transactional", "{}", "h", "1", 1000]


def begin_group(engine: Engine, leader: Task) -> str:
    """Opens a group's transaction; its mark."""
    mark = mark_token(leader.ti, leader.token, "")
    engine.begin()
    engine.sql("select set_config('onceflow.step', %s, true)", mark)
    engine.sql(REFUSE_COMMIT)
    return mark


def complete(engine: Engine, mark: str, *members: Member) -> None:
    engine.sql(LET_COMMIT)
    engine.call(calls.complete_group(mark, json.dumps(members)))


def test_a_group_moves_what_its_members_move(db: TestDatabase, one: Engine) -> None:
    """Steps of bodies and tasks of their own, of several runs, in one transaction under one xid."""
    body, work = one.start_and_claim(run_id="a"), one.start_and_claim(run_id="b")
    mark = begin_group(one, body)
    complete(one, mark, step_of(body, "pay#0"), end_of(work), step_of(body, "pay#1"))
    one.commit()
    assert look(db, work.run) == ("success", "success")
    assert look(db, body.run) == ("running", "running")
    assert db.sql("select count(*), count(distinct xid) from onceflow.step_ledger") == [(3, 1)]
    assert db.sql("select * from onceflow.verify_ledger()") == []


@pytest.mark.parametrize("bad", ["mark", "function", "token", "twice"])
def test_one_bad_member_undoes_the_group(db: TestDatabase, one: Engine, bad: str) -> None:
    """Another transaction than the one it began, a function that is none of a group's, a forged token, a recorded step."""
    good, other = one.start_and_claim(run_id="a"), one.start_and_claim(run_id="b")
    mark = begin_group(one, good)
    member = step_of(other, "pay#0")
    if bad == "function":
        member[1] = "cancel_run"
    elif bad == "token":
        member[4] = prove_token(good.token, "pay#0/1/transactional/1")
    again = [step_of(good, "pay#0")] if bad == "twice" else []
    with pytest.raises({"mark": StepSplit, "function": InvalidArgument, "token": LeaseLost, "twice": AlreadyRecorded}[bad]):
        complete(one, mark if bad != "mark" else "7/other/", step_of(good, "pay#0"), member, *again)
    one.rollback()
    assert db.sql("select count(*) from onceflow.step_ledger") == [(0,)]


def test_nobody_but_the_engine_commits_a_group(db: TestDatabase, one: Engine) -> None:
    """A COMMIT while the group's cursor is open is an error, and a rollback; a savepoint undone on the way changes nothing of that."""
    db.sql("create table effect (n int)")
    body = one.start_and_claim()
    begin_group(one, body)
    one.sql("insert into effect values (1)")
    one.sql("savepoint s")
    with pytest.raises(psycopg.errors.DivisionByZero):
        one.sql("select 1 / 0")
    one.sql("rollback to s")
    assert sqlstate_of(lambda: one.sql("commit")) == "OF003"
    assert db.sql("select count(*) from effect") == [(0,)]
    mark = begin_group(one, body)
    one.sql("insert into effect values (2)")
    complete(one, mark, step_of(body, "pay#0"))
    one.commit()
    assert db.sql("select n from effect") == [(2,)]


def test_groups_and_batches_across_runs_do_not_deadlock(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """Groups and batches that share bodies and runs crosswise, in any order of their members, all commit at the first attempt."""
    bodies = [one.start_and_claim(run_id=f"r{i}") for i in range(3)]
    for i in range(6):
        one.start_task(bodies[i % 3], f"work:start-{i}")
    claimed = one.claim(6)
    enders, futures = [make_engine() for _ in range(6)], []
    for k, ender in enumerate(enders):
        order = bodies[k % 3 :] + bodies[: k % 3]
        futures.append(ender.later(partial(end_crosswise, ender, k, order, claimed[k])))
    assert [f.exception(30) for f in futures] == [None] * 6
    db.sql("select pg_stat_force_next_flush()")
    assert db.sql("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


def test_a_batch_of_ends_leaves_what_each_alone_would(db: TestDatabase, one: Engine) -> None:
    """Runs that are completed together end like those completed one by one: their timers and deduplicate texts go, their waiters are woken, all is counted."""
    tasks = [one.start_and_claim(run_id=f"r{i}") for i in range(5)]
    plain, awaited, timed, keyed, parent = tasks
    one.start_task(parent, "work:start-0")
    db.sql("insert into onceflow.wait values (1, 1, 'run', %s, '')", awaited.run)
    db.sql("insert into onceflow.timer values (clock_timestamp() + interval '1 day', %s, %s, 'run_timeout')", timed.run, timed.ti)
    db.sql("update onceflow.run set live_key = 'k' where id = %s", keyed.run)
    db.sql("insert into onceflow.live_key select dag_id, 'k', id from onceflow.run where id = %s", keyed.run)
    ends = [["complete_task", *task.owner, "flow", "body", "{}", "h", "1", 0] for task in tasks]
    assert one.call(calls.run_batch(json.dumps(ends))) == [None] * 5
    assert [look(db, task.run) for task in tasks[:4]] == [("success", "success")] * 4
    assert db.sql("select state, living from onceflow.run where id = %s", parent.run) == [(None, 1)]
    assert db.sql("select target_run from onceflow.wake_up where kind = 'run'") == [(awaited.run,)]
    assert [db.sql(f"select count(*) from onceflow.{table}") for table in ("timer", "live_key", "lease")] == [[(0,)]] * 3
    assert db.sql("select * from onceflow.verify_ledger()") == []
    assert sqlstate_of(lambda: one.call(calls.run_batch(json.dumps([["complete_task", *plain.owner, "flow", "body", "{}", "h", "1", 0]] * 2)))) == "OF001"


def end_crosswise(engine: Engine, number: int, bodies: list[Task], task: Task) -> None:
    """Ends a task and records a step of each body: with a group, or with a batch as the batcher does for external steps."""
    if number % 2:
        steps = [["complete_step", *b.owner, f"note#{number}", "note", "external", 1, "{}", "h", "1", 0] for b in bodies]
        engine.call(calls.run_batch(json.dumps([["complete_task", *task.owner, "work", "step", "{}", "h", "1", 0], *steps])))
    else:
        mark = begin_group(engine, bodies[0])
        complete(engine, mark, end_of(task), *[step_of(b, f"pay#{number}") for b in bodies])
        engine.commit()
