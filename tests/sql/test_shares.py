"""Who comes first when there is more than the workers can do: priority, age, what comes behind everything, and teams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from onceflow.db import calls, dag_calls
from onceflow.errors import InvalidArgument
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, begin_run, end, make_plan, register
from tests.sql.engine_calls import Engine, Task


def register_all(engine: Engine, **dags: dict[str, object]) -> None:
    """Dags of one task each, with these options of the dag (`plan`: of the task); the engine's worker runs them all."""
    made = []
    for dag_id, options in dags.items():
        task = dict(options.pop("task", {}))  # type: ignore[call-overload]
        plan = make_plan({"t": Node(options=task)}) | {"max_active_runs": 1000, "max_active_tasks": 1000} | options
        made.append({"dag_id": dag_id, "kind": "dag", "code_version": engine.version, "plan": plan})
    engine.dags = tuple(dags)
    engine.lanes = engine.sql("select onceflow.register_worker(%s, 'host', 1, %s, 10, %s)", engine.worker, list(engine.queues), json.dumps(made))[0][0]["lanes"]


def begin_runs(engine: Engine, dag_id: str, count: int) -> None:
    for _ in range(count):
        engine.start(dag_id)
    while engine.sql("select 1 from onceflow.queued_run limit 1"):
        engine.tick()


def owners(engine: Engine, tasks: list[Task]) -> list[str]:
    """Of which dags these tasks are."""
    return [engine.sql("select dag_id from onceflow.run where id = %s", task.run)[0][0] for task in tasks]


def test_priority_alone_lets_what_is_low_wait(one: Engine) -> None:
    """Without ageing, as at first: whatever its age, a task of low priority comes after those of high priority."""
    register_all(one, low={"priority": -10}, high={"priority": 10})
    begin_runs(one, "low", 1)
    one.sql("update onceflow.ready set queued_at = queued_at - interval '1 day'")
    begin_runs(one, "high", 3)
    assert owners(one, one.claim(4)) == ["high"] * 3 + ["low"]
    assert one.sql("select ageing_s from onceflow.engine") == [(None,)]


def test_with_ageing_what_waits_gains_priority(one: Engine) -> None:
    """A point each minute: what has waited for 21 minutes passes what is 20 points above it and just came, what has waited for 19 does not; switched off, it does not either."""
    register_all(one, low={"priority": -10}, lower={"priority": -12}, high={"priority": 10})
    for dag_id in ("low", "lower"):
        begin_runs(one, dag_id, 1)
    one.sql("update onceflow.ready set queued_at = queued_at - interval '1261 s'")
    begin_runs(one, "high", 1)
    assert one.call(dag_calls.set_ageing(60)) == {"ageing_s": 60}
    begin_runs(one, "high", 1)
    assert owners(one, one.claim(1)) == ["low"]
    one.call(dag_calls.set_ageing(None))
    assert owners(one, one.claim(9)) == ["high", "high", "lower"]


def test_tasks_that_come_later_age_too(one: Engine) -> None:
    """The switch holds for all that becomes ready afterwards: the order of two tasks is settled when they come, and nothing is written while they wait."""
    register_all(one, low={"priority": 0}, high={"priority": 3})
    one.call(dag_calls.set_ageing(0.001))
    begin_runs(one, "low", 1)
    one.db.wait_for("select clock_timestamp() > queued_at + interval '10 ms' from onceflow.ready")
    begin_runs(one, "high", 1)
    assert owners(one, one.claim(1)) == ["low"]


@pytest.mark.parametrize("every_s", [-1.0, 1e10, float("nan")])
def test_ageing_by_no_sensible_number_is_refused(one: Engine, every_s: float) -> None:
    """InvalidArgument says what it may be."""
    with pytest.raises(InvalidArgument, match="gains a point of priority"):
        one.call(dag_calls.set_ageing(every_s))


def test_endless_other_work_does_not_starve_a_backfill(one: Engine) -> None:
    """There is always other work of higher priority, more than a worker takes; of ten claims one begins with what comes behind all, and no more than that."""
    register_all(one, fill={"priority": -1_000_000}, busy={"priority": 5})
    begin_runs(one, "fill", 3)
    got: Counter[str] = Counter()
    for _ in range(30):
        begin_runs(one, "busy", 2)
        (task,) = one.claim(1)
        got.update(owners(one, [task]))
        end(one, task, "success")
    assert got == {"busy": 27, "fill": 3}


def test_what_comes_behind_passes_no_pool_and_no_limit(db: TestDatabase, one: Engine) -> None:
    """Its share is a place in the order, not a slot: a pool whose head waits for slots gives it none, nor does the limit of its own task in a run."""
    db.sql("update onceflow.slot_pool set slots = 3 where pool_name = 'default_pool'")
    register_all(one, fill={"priority": -1_000_000, "task": {"max_in_run": 1}}, big={"task": {"pool_slots": 3}}, small={})
    begin_runs(one, "small", 1)
    (held,) = one.claim(1)
    begin_runs(one, "big", 1)
    begin_runs(one, "fill", 2)
    one.claims = 9
    assert one.claim(5) == []  # the tenth
    end(one, held, "success")
    one.claims = 10
    (held,) = one.claim(5)
    assert owners(one, [held]) == ["big"]
    end(one, held, "success")
    begin_runs(one, "small", 5)
    one.claims = 19
    assert sorted(owners(one, one.claim(5))) == ["fill", "small", "small"]


def test_teams_take_turns(one: Engine) -> None:
    """However much one team has ready, and of whatever priority: each next slot goes to the team of which the fewest tasks run; what one cannot use the others get."""
    register_all(one, a={"team": "a", "priority": 100}, a2={"team": "a"}, b={"team": "b"}, nobody={})
    for dag_id, count in {"a": 30, "a2": 5, "b": 3, "nobody": 8}.items():
        begin_runs(one, dag_id, count)
    first = one.claim(9)
    assert Counter(owners(one, first)) == {"a": 3, "b": 3, "nobody": 3}
    assert Counter(owners(one, one.claim(6))) == {"a": 3, "nobody": 3}
    for task in first:
        if owners(one, [task]) == ["a"]:
            end(one, task, "success")
    assert Counter(owners(one, one.claim(3))) == {"a": 3}
    assert Counter(owners(one, one.claim(50))) == {"a": 21, "a2": 5, "nobody": 2}


def test_of_teams_with_nothing_running_no_one_is_always_first(one: Engine) -> None:
    """One slot and short tasks: nothing runs when it is free, and yet both teams get their part."""
    register_all(one, a={"team": "a"}, b={"team": "b"})
    for dag_id in ("a", "b"):
        begin_runs(one, dag_id, 40)
    got: Counter[str] = Counter()
    for _ in range(40):
        (task,) = one.claim(1)
        got.update(owners(one, [task]))
        end(one, task, "success")
    assert min(got.values()) >= 5, got  # less by chance: once in a million


@pytest.mark.parametrize("seed", range(3))
def test_limits_hold_among_teams(db: TestDatabase, make_engine: Callable[..., Engine], seed: int) -> None:
    """Dags of random teams, priorities, pools and slots, claimed and ended at random: no pool is exceeded, a big task comes in time, and all ends."""
    dice = Random(seed)
    one = make_engine()
    db.sql("update onceflow.slot_pool set slots = 7 where pool_name = 'api_pool'")
    dags: dict[str, dict[str, object]] = {}
    for number in range(8):
        task = {"pool": "api_pool", "pool_slots": dice.choice([1, 1, 2, 5])}
        dags[f"d{number}"] = {"team": dice.choice(["x", "y", None]), "priority": dice.choice([0, 5, -1_000_000]), "task": task}
    register_all(one, **dags)
    for dag_id in dags:
        begin_runs(one, dag_id, dice.randrange(3, 9))
    held: list[Task] = []
    while db.sql("select 1 from onceflow.run where state is null limit 1"):
        held += one.claim(dice.randrange(1, 6))
        assert db.sql("select coalesce(sum(pool_slots), 0) from onceflow.lease")[0][0] <= 7
        dice.shuffle(held)
        for task in held[: dice.randrange(1, 4)]:
            end(one, task, "success")
            held.remove(task)


def test_a_dag_of_another_team_from_its_next_version_on(one: Engine) -> None:
    """The team is the dag's own, as its file last said."""
    register(one, {"t": Node()}, team="late")
    assert one.sql("select team from onceflow.dag where dag_id = 'graph'") == [(None,)]
    plan = make_plan({"t": Node()}) | {"team": "late"}
    one.call(calls.register_dags(json.dumps([{"dag_id": "graph", "kind": "dag", "code_version": "v1", "plan": plan}]), True))
    assert one.sql("select team from onceflow.dag where dag_id = 'graph'") == [("late",)]
    begin_run(one)
    assert len(one.claim(2)) == 1


def test_a_claim_begins_after_what_made_room_for_it(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A claim that waits for its turn to look at the limits begins when it has had it: read from the times of tasks, no pool was ever exceeded."""
    db.sql("update onceflow.slot_pool set slots = 1 where pool_name = 'default_pool'")
    register_all(one, narrow={})
    two.dags, two.lanes = one.dags, one.lanes
    begin_runs(one, "narrow", 2)
    (first,) = one.claim(5)
    with db.connect() as other:
        other.execute("select pg_advisory_lock(onceflow.wait_lock('limits', 0, ''))")
        waiting = two.blocks(lambda: two.claim(5))
        end(one, first, "success")
        other.execute("select pg_advisory_unlock(onceflow.wait_lock('limits', 0, ''))")
        (second,) = waiting.result(10)
    text = "select l.claimed_at > t.end_date from onceflow.lease l, onceflow.ti t where l.ti = %s and t.id = %s"
    assert db.sql(text, second.ti, first.ti) == [(True,)]
