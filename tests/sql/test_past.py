"""depends_on_past and wait_for_downstream: a task is claimable once it is done in the run before, whatever the order of events."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.database import TestDatabase
from tests.sql.dag_plans import Node, end, make_plan, register, states
from tests.sql.engine_calls import Engine, Task, sqlstate_of
from tests.sql.test_schedules import at, unpause

PAST = {"depends_on_past": True}
WHOLE = PAST | {"wait_for_downstream": True}


def begin_days(engine: Engine, count: int, dag_id: str = "graph", **options: str) -> list[int]:
    """Runs of consecutive days, all with their tasks."""
    runs = [engine.start(dag_id, logical_date=at(f"2026-01-{day:02}T00:00Z").isoformat(), **options) for day in range(1, count + 1)]
    engine.tick()
    return runs


def claim_all(engine: Engine) -> dict[tuple[int, str], Task]:
    return {(task.run, task.task_id): task for task in engine.claim(50)}


def waiting(db: TestDatabase) -> int:
    (count,) = db.sql("select count(*) from onceflow.past_wait")[0]
    return int(count)


@pytest.mark.parametrize("ended", ["success", "skipped"])
def test_the_end_in_the_run_before_releases_the_task_in_its_transaction(one: Engine, ended: str) -> None:
    """The first run waits for none. Success lets the next go on, and so does a skip, with the commit that records it and not before."""
    register(one, {"a": Node(options=PAST)})
    first, second, third = begin_days(one, 3)
    (task,) = one.claim(9)
    assert task.run == first
    assert states(one, second) == states(one, third) == {"a": "no_status"}
    one.begin()
    if ended == "success":
        one.complete(task, kind="external")
    else:
        one.sql("select onceflow.skip_task(%s, %s, %s, 'a', 'external', '{}', 'h', '{}', 0)", *task.owner)
    assert states(one, second) == {"a": "queued"}
    one.rollback()
    assert states(one, second) == {"a": "no_status"}
    one.complete(task, kind="external")
    assert (states(one, second), states(one, third)) == ({"a": "queued"}, {"a": "no_status"})


def test_a_failure_holds_later_runs_up_until_it_is_mended(one: Engine) -> None:
    """Nothing is lost and nothing runs out of turn: a later retry, or a person's word, lets the next run go on."""
    register(one, {"a": Node(options=PAST)})
    first, second, third = begin_days(one, 3)
    one.fail(one.claim_one())
    assert one.claim(9) == []
    one.retry(first)
    one.tick()
    again = one.claim_one()
    assert again.run == first
    one.complete(again, kind="external")
    one.fail(one.claim_one())
    assert one.claim(9) == []
    one.sql("select onceflow.mark_task(%s, 'a', 'success')", second)
    assert one.claim_one().run == third


def test_downstream_of_the_task_in_the_run_before_is_waited_for_too(one: Engine) -> None:
    """With wait_for_downstream a's next turn comes when b is done, which is directly below it; c, below that, is not waited for."""
    register(one, {"a": Node(options=WHOLE), "b": Node(("a",)), "c": Node(("b",))})
    first, second = begin_days(one, 2)
    end(one, one.claim_one(), "success")
    (b,) = one.claim(9)
    assert (b.run, b.task_id) == (first, "b")
    end(one, b, "success")
    assert claim_all(one).keys() == {(first, "c"), (second, "a")}


def test_rules_decide_as_ever_and_the_past_comes_after_them(one: Engine) -> None:
    """A task in the middle waits for its upstream and for its past; what its rule skips is skipped without waiting."""
    register(one, {"a": Node(), "b": Node(("a",), options=PAST), "c": Node(("b",))})
    first, second = begin_days(one, 2)
    a1, a2 = sorted(one.claim(9), key=lambda task: task.run)
    end(one, a2, "success")
    assert states(one, second) == {"a": "success", "b": "no_status", "c": "no_status"}
    end(one, a1, "failed")  # b fails by its upstream in the first run: that is no success
    assert states(one, first) == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}
    assert states(one, second)["b"] == "no_status"
    one.sql("select onceflow.mark_task(%s, 'a', 'success')", first)
    one.tick()
    end(one, one.claim_one(), "success")
    assert claim_all(one).keys() == {(first, "c"), (second, "b")}


def test_mapped_tasks_and_joints_wait_as_well(one: Engine) -> None:
    """All instances of the run before must be done; a joint whose past is met is done without a worker."""
    mapped = Node(mapping=(("x", [1, 2]),), options=PAST)
    register(one, {"m": mapped, "joint": Node(("m",), options=PAST | {"operator": "EmptyOperator"}), "last": Node(("joint",))})
    first, second = begin_days(one, 2)
    tasks = one.claim(9)
    assert [task.run for task in tasks] == [first, first]
    end(one, tasks[0], "success")
    assert states(one, second)["m[0]"] == "no_status"
    end(one, tasks[1], "success")
    assert states(one, first)["joint"] == "success"
    later = [task for task in one.claim(9) if task.run == second]
    assert len(later) == 2
    for task in later:
        end(one, task, "success")
    assert states(one, second)["joint"] == "success"  # its past was met when its turn came: no worker was asked


def test_a_joint_that_has_waited_goes_to_a_worker(one: Engine) -> None:
    """Only its own run's lock may settle a task, and the run before does not hold it: so the joint becomes claimable, and the run goes on from there."""
    register(one, {"work": Node(), "joint": Node(("work",), options=PAST | {"operator": "EmptyOperator"}), "b": Node(("joint",))})
    first, second = begin_days(one, 2)
    tasks = claim_all(one)
    end(one, tasks[second, "work"], "success")
    assert states(one, second)["joint"] == "no_status"
    end(one, tasks[first, "work"], "success")
    assert (states(one, first)["joint"], states(one, second)["joint"]) == ("success", "queued")
    end(one, claim_all(one)[second, "joint"], "success")
    assert states(one, second) == {"work": "success", "joint": "success", "b": "queued"}


def test_a_mapped_group_waits_instance_by_instance_for_the_whole_task(one: Engine) -> None:
    """Each instance whose rule says run is held until all instances of its task are done in the run before."""
    mapping = (("x", [1, 2]),)
    register(one, {"g.a": Node(mapping=mapping, group="g", options=PAST), "g.b": Node(("g.a",), mapping=mapping, group="g")})
    first, second = begin_days(one, 2)
    tasks = one.claim(9)
    assert {(task.run, task.task_id) for task in tasks} == {(first, "g.a")}
    end(one, tasks[0], "success")
    assert states(one, second)["g.a[0]"] == "no_status"
    end(one, tasks[1], "success")
    assert [states(one, second)[f"g.a[{n}]"] for n in (0, 1)] == ["queued", "queued"]


def test_two_ends_at_once_lose_no_release(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The next run's turn comes while the end it waits for is being committed: neither waits for the other, and the next tick lets it go."""
    nodes = {"a": Node(), "b": Node(("a",), options=PAST)}
    register(one, nodes)
    register(two, nodes)
    first, second = begin_days(one, 2)
    tasks = claim_all(one)
    end(one, tasks[first, "a"], "success")
    b = one.claim_one()
    one.begin()
    end(one, b, "success")  # sees nobody wait
    end(two, tasks[second, "a"], "success")  # sees no end yet, and does not block
    one.commit()
    assert waiting(db) == 1
    one.tick()
    assert (waiting(db), states(one, second)["b"]) == (0, "queued")


def test_a_decision_in_flight_is_told_of_the_end(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The other order: who decides to wait has not committed yet when the end comes. Nobody blocks, and the tick lets it go."""
    nodes = {"a": Node(), "b": Node(("a",), options=PAST)}
    register(one, nodes)
    register(two, nodes)
    first, second = begin_days(one, 2)
    tasks = claim_all(one)
    end(one, tasks[first, "a"], "success")
    b = one.claim_one()
    two.begin()
    end(two, tasks[second, "a"], "success")
    end(one, b, "success")
    one.tick()
    assert db.sql("select kind from onceflow.wake_up") == [("past",)]  # stays until the other has committed
    two.commit()
    one.tick()
    assert (waiting(db), states(one, second)["b"]) == (0, "queued")


def test_a_rolled_back_release_is_found_again(db: TestDatabase, one: Engine, two: Engine) -> None:
    """What no end lets go any more, the tick finds within seconds: quick releases are a convenience, the look is the guarantee."""
    register(one, {"a": Node(options=PAST)})
    _, second = begin_days(one, 2)
    task = one.claim_one()
    two.begin()
    two.sql("select from onceflow.past_wait for update")  # in another's hands, so the end passes it over
    end(one, task, "success")
    two.rollback()
    assert states(one, second) == {"a": "no_status"}
    one.sql("select onceflow.find_missed_past(500)")
    one.drain_wake_ups()
    assert states(one, second) == {"a": "queued"}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_each_task_runs_after_its_past(make_engine: Callable[..., Engine], seed: int) -> None:
    """Three workers, six runs, ends in a random order, ticks in between: every task runs once, in the order of the runs, and all runs end."""
    chance = random.Random(seed)
    nodes = {"a": Node(options=WHOLE), "b": Node(("a",), options=PAST), "c": Node(("a", "b"), options=PAST | {"operator": "EmptyOperator"}), "d": Node(("c",))}
    engines = [make_engine() for _ in range(3)]
    for engine in engines:
        register(engine, nodes)
    runs = begin_days(engines[0], 6)
    held: list[Task] = []
    ran: dict[str, list[int]] = {}
    for _ in range(400):
        engine = chance.choice(engines)
        held += engine.claim(chance.randint(1, 3))
        if held and chance.random() < 0.8:
            task = held.pop(chance.randrange(len(held)))
            ran.setdefault(task.task_id, []).append(runs.index(task.run))
            end(engine, task, "success")
        if chance.random() < 0.2:
            engine.tick()
    assert ran["a"] == ran["b"] == [0, 1, 2, 3, 4, 5]
    assert sorted(ran["d"]) == [0, 1, 2, 3, 4, 5]
    assert {state for run in runs for state in states(engines[0], run).values()} == {"success"}
    assert waiting(engines[0].db) == 0


def test_clear_and_cancel_take_what_waits_with_them(db: TestDatabase, one: Engine) -> None:
    """A cleared task that waits is decided anew; of a cancelled run nothing waits on, and it lets the next run go on."""
    register(one, {"a": Node(options=PAST)})
    first, second, third = begin_days(one, 3)
    one.sql("select onceflow.clear_tasks('graph', run_id => (select run_id from onceflow.run where id = %s))", second)
    assert waiting(db) == 2
    one.cancel(second)
    assert (states(one, second), waiting(db)) == ({"a": "skipped"}, 0)
    assert states(one, third) == {"a": "queued"}
    assert claim_all(one).keys() == {(first, "a"), (third, "a")}


def test_a_cleared_run_that_others_wait_for_gets_a_place_at_once(one: Engine) -> None:
    """max_active_runs 1 and the next run active: neither could ever end, so the one before is admitted beside it."""
    register(one, {"a": Node(options=PAST)})
    one.db.sql("update onceflow.dag set max_active_runs = 1")
    first, second = begin_days(one, 2)
    one.fail(one.claim_one())
    one.tick()
    assert states(one, second) == {"a": "no_status"}
    one.sql("select onceflow.clear_tasks('graph', run_id => (select run_id from onceflow.run where id = %s))", first)
    one.tick()
    again = one.claim_one()
    assert again.run == first
    end(one, again, "success")
    assert one.claim_one().run == second


def test_who_the_run_before_is(one: Engine) -> None:
    """By logical date. With catchup manual runs are passed over; a test waits for nothing; a task that the run before does not have is free."""
    plan = make_plan({"a": Node(options=PAST)})
    register(one, {"a": Node(options=PAST)}, plan=plan | {"schedule": {"catchup": True}})
    unpause(one)
    before = "select onceflow.find_previous_run(r) from onceflow.run r where id = %s"
    dates = {day: at(f"2026-01-0{day}T00:00Z").isoformat() for day in range(1, 6)}
    scheduled = one.start("graph", logical_date=dates[1], run_type="scheduled")
    manual = one.start("graph", logical_date=dates[2])
    later = one.start("graph", logical_date=dates[3], run_type="backfill")
    tested = one.start("graph", logical_date=dates[4], run_type="test")
    last = one.start("graph", logical_date=dates[5], run_type="scheduled")
    assert [one.sql(before, run)[0][0] for run in (scheduled, manual, later, tested, last)] == [None, scheduled, scheduled, None, later]
    register(one, {"a": Node(options=PAST), "b": Node(options=PAST)})
    fresh = one.start("graph", logical_date=at("2026-01-06T00:00Z").isoformat())
    one.tick()
    assert states(one, fresh) == {"a": "no_status", "b": "queued"}


def test_a_backfill_in_reverse_is_refused(one: Engine) -> None:
    """It could never go on: each run waits for one that comes after it."""
    register(one, {"a": Node(options=PAST)})
    make = "select onceflow.create_backfill('graph', 'k', '2026-01-01', '2026-01-02', '[]', p_is_reverse => true)"
    assert sqlstate_of(partial(one.sql, make)) == "OF008"
