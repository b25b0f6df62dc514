"""Instances of mapped tasks that end together, in one call of run_batch: what comes of them is what comes of them one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from onceflow.db import calls
from onceflow.errors import AlreadyRecorded, LeaseLost
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, begin_run, end, register, states
from tests.sql.engine_calls import Engine, Task, sqlstate_of

OVER = (("item", list(range(9))),)
GRAPH = {
    "a": Node(mapping=OVER),
    "b": Node(mapping=(("item", [1, 2, 3]),)),
    "c": Node(("a",), mapping=(("item", "a"),)),
    "join": Node(("a", "b")),
    "early": Node(("a",), rule="one_success"),
    "late": Node(("a", "b", "c"), rule="all_done"),
    "sad": Node(("a",), rule="one_failed"),
}


def success(task: Task, kind: str = "external", output: str = "1") -> list[Any]:
    return ["complete_task", *task.owner, task.task_id, kind, "{}", "h", output, 1000, None]


def failure(task: Task) -> list[Any]:
    return ["fail_task", *task.owner, task.task_id, "external", "{}", "h", '{"$error": "x", "message": "no", "args": []}', False, 0.0, 0]


def count_starts(db: TestDatabase) -> int:
    return int(db.sql("select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'spread_ends'")[0][0])


@pytest.mark.server("18", "15")
@pytest.mark.parametrize("seed", range(6))
def test_batches_of_ends_come_to_the_same_as_ends(db: TestDatabase, make_engine: Callable[..., Engine], seed: int) -> None:
    """Two runs, the same items fail: one ends in random batches together with a third run's, the other task by task; the states, the tries, the entries and the
    joins are the same, and nothing is left over."""
    dice = Random(seed)
    one = make_engine()
    register(one, GRAPH, max_active_tasks=1000)
    fails = {(task, n) for task in ("a", "b") for n in range(9) if dice.random() < (0.15 if seed % 2 else 0)}
    single, batched, beside = begin_run(one), begin_run(one), begin_run(one)
    while held := one.claim(100):
        dice.shuffle(held)
        names = {t.ti: db.sql("select task_id, map_index from onceflow.ti where run = %s and id = %s", t.run, t.ti)[0] for t in held}
        for task in [t for t in held if t.run == single]:
            end(one, task, "failed" if names[task.ti] in fails else "success", "[1, 2]")
        left = [t for t in held if t.run != single]
        while left:
            part, left = left[: (size := dice.randrange(1, 9))], left[size:]
            one.call(calls.run_batch(json.dumps([failure(t) if names[t.ti] in fails else success(t, output="[1, 2]") for t in part])))
    assert states(one, single) == states(one, batched) == states(one, beside)
    ended = "select dag_run, count(*), count(*) filter (where final) from onceflow.step_ledger where dag_run in (%s, %s, %s) group by 1 order by 1"
    assert len({row[1:] for row in db.sql(ended, single, batched, beside)}) == 1
    assert len({state for (state,) in db.sql("select state from onceflow.run where id in (%s, %s, %s)", single, batched, beside)}) == 1
    assert db.sql("select count(*) from onceflow.join_count") == db.sql("select count(*) from onceflow.lease") == [(0,)]
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_task_hears_once_of_a_batch(db: TestDatabase, one: Engine) -> None:
    """Nine instances that end together count in one go: the join is released once, ready once, and its run's count is right."""
    register(one, {"a": Node(mapping=OVER), "join": Node(("a",))}, max_active_tasks=1000)
    run = begin_run(one)
    held = one.claim(20)
    one.sql("set track_functions = 'all'")
    assert one.call(calls.run_batch(json.dumps([success(t) for t in held]))) == [None] * 9
    one.sql("select pg_stat_force_next_flush()")
    db.wait_for("select sum(calls) from pg_stat_user_functions where funcname = 'spread_ends'")
    assert count_starts(db) == 1
    assert db.sql("select waiting from onceflow.join_count where run = %s", run) == [(1,)]
    (join,) = one.claim(5)
    end(one, join, "success")
    assert db.sql("select state from onceflow.run where id = %s", run) == [("success",)]


def test_one_wrong_token_spoils_its_batch_alone(db: TestDatabase, one: Engine) -> None:
    """A member whose lease is another's is refused, as it is by itself; then nothing of the batch has happened, and without it all of it does."""
    register(one, {"a": Node(mapping=OVER), "join": Node(("a",))}, max_active_tasks=1000)
    begin_run(one)
    held = one.claim(20)
    batch = [success(t) for t in held]
    forged = [*batch[:-1], [*batch[-1][:3], held[0].token, *batch[-1][4:]]]
    assert sqlstate_of(lambda: one.call(calls.run_batch(json.dumps(forged)))) == "OF001"
    assert db.sql("select count(*) from onceflow.lease") == [(9,)]
    with pytest.raises(LeaseLost):
        one.call(calls.run_batch(json.dumps(forged)))
    one.call(calls.run_batch(json.dumps(batch)))
    with pytest.raises((LeaseLost, AlreadyRecorded)):
        one.call(calls.run_batch(json.dumps(batch)))
    assert len(one.claim(5)) == 1


def test_what_somebody_keeps_is_sent_again(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A lease in another's open transaction: that member is busy, the others are done."""
    register(one, {"a": Node(mapping=OVER), "join": Node(("a",))}, max_active_tasks=1000)
    begin_run(one)
    held = one.claim(20)
    two.begin()
    two.sql("select from onceflow.lease where ti = %s for update", held[4].ti)
    batch = [success(t) for t in held]
    assert one.call(calls.run_batch(json.dumps(batch))) == [{"busy": True} if n == 4 else None for n in range(9)]
    two.rollback()
    one.call(calls.run_batch(json.dumps(batch[4:5])))
    assert len(one.claim(5)) == 1
