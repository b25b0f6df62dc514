"""Starts: run ids are idempotency keys in any interleaving, and what an open transaction has started or sent is not there before it commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from onceflow.db import calls
from onceflow.errors import LeaseLost, NotFound, RunConflict
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, move_clock, sqlstate_of, stop_clock

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def test_two_open_transactions_start_the_same_run(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The second start of a run id waits for the first to commit and answers its run."""
    one.begin()
    run = one.start(run_id="pay-42", args='{"a": 1}')
    again = two.blocks(lambda: two.start(run_id="pay-42", args='{"a": 1}'))
    one.commit()
    assert again.result(20) == run
    assert db.sql("select count(*) from onceflow.run") == [(1,)] == db.sql("select count(*) from onceflow.ready")


def test_the_first_of_two_starts_rolls_back(db: TestDatabase, one: Engine, two: Engine) -> None:
    """When the first start never happened, the waiting second one makes the run."""
    one.begin()
    first = one.start(run_id="pay-42", args='{"a": 1}')
    again = two.blocks(lambda: two.start(run_id="pay-42", args='{"a": 2}'))
    one.rollback()
    assert again.result(20) != first
    assert db.sql("select conf from onceflow.run") == [({"a": 2},)]


def test_two_starts_with_other_arguments_conflict(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The same run id with other arguments is refused with OF002, also when the first start was uncommitted."""
    one.begin()
    one.start(run_id="pay-42", args='{"a": 1}')
    again = two.blocks(lambda: two.start(run_id="pay-42", args='{"a": 2}'))
    one.commit()
    with pytest.raises(RunConflict):
        again.result(20)


def test_the_run_id_holds_whatever_the_runs_state(db: TestDatabase, one: Engine) -> None:
    """A run that ended long ago still answers its id; another dag may have the same one."""
    task = one.start_and_claim(run_id="pay-42")
    one.complete(task)
    assert one.start(run_id="pay-42") == task.run
    one.dags = ("flow", "other")
    one.register()
    assert one.start("other", run_id="pay-42") != task.run


def test_starts_that_only_share_the_moment_are_all_made(db: TestDatabase, one: Engine) -> None:
    """Runs without a logical date take the present moment, moved on when it is taken: none of them is lost, none shared."""
    stop_clock(db)
    one.register()
    runs = {one.start() for _ in range(5)} | {one.start(run_id=f"r{i}") for i in range(5)}
    assert len(runs) == 10
    assert db.sql("select count(distinct logical_date), count(distinct run_id) from onceflow.run") == [(10, 10)]


def test_a_given_logical_date_is_unique(db: TestDatabase, one: Engine) -> None:
    """One run for each dag and logical date: the same start answers it, another is refused; it is never moved to another date."""
    run = one.start(args='{"a": 1}', logical_date=DAY.isoformat())
    assert one.start(args='{"a": 1}', logical_date=DAY.isoformat()) == run
    assert sqlstate_of(lambda: one.start(args='{"a": 2}', logical_date=DAY.isoformat())) == "OF002"
    assert sqlstate_of(lambda: one.start(run_id="other", logical_date=DAY.isoformat())) == "OF002"
    assert db.sql("select logical_date from onceflow.run") == [(DAY,)]


def test_a_bad_start_is_refused(db: TestDatabase, one: Engine) -> None:
    """An unknown dag, an empty or overlong run id, arguments that are no object: an error with its SQLSTATE, and nothing is written."""
    assert sqlstate_of(lambda: one.start("nobody")) == "OF004"
    assert sqlstate_of(lambda: one.start(run_id="")) == "OF008"
    assert sqlstate_of(lambda: one.start(run_id="x" * 251)) == "OF008"
    assert sqlstate_of(lambda: one.start(args="7")) == "OF008"
    assert db.sql("select count(*) from onceflow.run_key") == [(0,)]


def test_a_start_in_an_open_transaction_is_not_there_yet(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Started inside the caller's transaction the run is claimable after its commit, and after a roll-back it never existed."""
    two.begin()
    two.start(run_id="never")
    assert one.claim() == []
    two.rollback()
    two.begin()
    run = two.start(run_id="later")
    assert one.claim() == []
    two.commit()
    assert one.claim_one().run == run


def test_a_message_in_an_open_transaction_is_not_there_yet(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Sent inside the caller's transaction it wakes nobody before the commit, and is received once after it."""
    task = one.start_and_claim()
    two.begin()
    assert two.send(task.run, "t", '"hello"')
    assert one.receive(task, "recv-0", "t") is None
    one.defer(task, ("message", task.run, "t"))
    one.tick()
    assert look(db, task.run)[0] == "deferred"
    two.commit()
    one.tick()
    again = one.claim_one()
    assert one.receive(again, "recv-0", "t") == {"body": "hello"}
    assert one.receive(again, "recv-1", "t") is None


def test_a_message_key_is_sent_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The same key from two open transactions: the second waits and sends nothing; after the message was consumed too."""
    task = one.start_and_claim()
    one.begin()
    assert one.send(task.run, "t", key="k")
    again = two.blocks(lambda: two.send(task.run, "t", key="k"))
    one.commit()
    assert again.result(20) is False
    one.receive(task, "recv-0", "t")
    assert not two.send(task.run, "t", key="k")
    assert db.sql("select count(*) from onceflow.message") == [(0,)]


def test_a_message_is_received_by_one(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Two branches receive at the same time: each gets a message of its own, and what is rolled back is there again."""
    task = one.start_and_claim()
    for i in (1, 2):
        one.send(task.run, "t", str(i))
    one.begin()
    assert one.receive(task, "recv-0", "t") == {"body": 1}
    one.rollback()
    assert one.receive(task, "recv-0", "t") == {"body": 1}
    assert two.receive(task, "recv-1", "t") == {"body": 2}


def test_a_message_to_nobody_is_refused(db: TestDatabase, one: Engine) -> None:
    """Sending to a run that does not exist is an error, not a message that nobody will ever read."""
    assert sqlstate_of(lambda: one.send(42)) == "OF004"


def test_children_of_different_parents_are_different(db: TestDatabase, make_engine: Callable[..., Engine]) -> None:
    """Two dags with runs of one id, and two tasks of one run, may each start a child under the same key: all are runs of their own."""
    one = make_engine(dags=("flow", "other", "child"))
    bodies = [one.start_and_claim(dag_id=dag, run_id="scheduled__2026-01-01", args=f'{{"n": {n}}}') for n, dag in enumerate(("flow", "other"))]
    for i in range(2):
        one.start_task(bodies[0], f"work:start-{i}")
    parents = [*bodies, *one.claim(2)]
    children = [one.start_child(parent, "child:start-0", "child") for parent in parents]
    assert len(set(children)) == 4


def test_children_of_deep_branches_are_different(db: TestDatabase, make_engine: Callable[..., Engine]) -> None:
    """Keys that differ only at the front, however long, make different child runs; a run id of full length has room for one."""
    one = make_engine(dags=("flow", "child"))
    body = one.start_and_claim(run_id="r" * 250)
    keys = [f"gather-0[{i}]/" + "branch-0/" * 30 + "child:start-0" for i in range(3)]
    assert len({one.start_child(body, key, "child") for key in keys}) == 3


def test_a_child_started_twice_is_recorded_once(db: TestDatabase, one: Engine) -> None:
    """The start of a child repeated after a lost reply is refused with OF007 and leaves one child."""
    body = one.start_and_claim()
    one.start_child(body, "flow:start-0")
    assert sqlstate_of(lambda: one.start_child(body, "flow:start-0")) == "OF007"
    assert db.sql("select count(*) from onceflow.run where parent_run = %s", body.run) == [(1,)]


def go_on(engine: Engine, task: Task, args: str = '{"n": 2}') -> int:
    answer = engine.call(calls.continue_run(*task.owner, task.task_id, "{}", "h", args, 0))
    return int(answer["$continued"]["run"])


def test_a_run_goes_on_as_another(db: TestDatabase, one: Engine) -> None:
    """continue_run ends this run and queues the next in one transaction; the chain's ids are numbered."""
    task = one.start_and_claim(run_id="loop")
    following = go_on(one, task)
    assert look(db, task.run) == ("success", "success") and look(db, following) == ("queued", "queued")
    last = go_on(one, one.claim_one(), '{"n": 3}')
    assert db.sql("select run_id from onceflow.run where id in (%s, %s) order by id", following, last) == [("loop~2",), ("loop~3",)]


def test_a_run_goes_on_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Two continue_run of one task at the same time: the second has lost its lease, and there is one next run."""
    task = one.start_and_claim()
    one.begin()
    go_on(one, task)
    again = two.blocks(lambda: go_on(two, task))
    one.commit()
    with pytest.raises(LeaseLost):
        again.result(20)
    assert db.sql("select count(*) from onceflow.run") == [(2,)]


def test_a_cancelled_run_does_not_go_on(db: TestDatabase, one: Engine, two: Engine) -> None:
    """continue_run beside an uncommitted cancel_run waits and is refused; no next run is left behind."""
    task = one.start_and_claim()
    two.begin()
    two.cancel(task.run)
    going = one.blocks(lambda: go_on(one, task))
    two.commit()
    with pytest.raises(LeaseLost):
        going.result(20)
    assert db.sql("select count(*) from onceflow.run") == [(1,)]


def fork(engine: Engine, run: int, key: str, run_id: str = "fork") -> int:
    return int(engine.call(calls.fork_run(run, key, run_id, "tester"))["run"])


def test_a_fork_takes_over_what_came_before(db: TestDatabase, one: Engine) -> None:
    """fork_run copies the successes recorded before the named step into a new run that is queued; the old run is untouched."""
    task = one.start_and_claim()
    for key in ("a-0", "b-0", "c-0"):
        one.complete_step(task, key)
    one.fail(task)
    run = fork(one, task.run, "c-0")
    assert look(db, run) == ("queued", "queued") and look(db, task.run) == ("failed", "failed")
    history = one.call(calls.load_history(run, run))
    assert [o["key"] for o in history["outcomes"]] == ["a-0", "b-0"]
    assert db.sql("select entries from onceflow.ti where run = %s", run) == [(2,)]
    again = one.claim_one()
    one.complete(again)
    assert look(db, run) == ("success", "success")


def test_two_forks_with_one_id_make_one_run(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A fork's run id is an idempotency key too: the second waits and answers the first's run, copied once."""
    task = one.start_and_claim()
    one.complete_step(task, "a-0")
    one.complete_step(task, "b-0")
    one.begin()
    run = fork(one, task.run, "b-0")
    again = two.blocks(lambda: fork(two, task.run, "b-0"))
    one.commit()
    assert again.result(20) == run
    assert db.sql("select count(*) from onceflow.step_ledger where dag_run = %s and step_key = 'a-0'", run) == [(1,)]


def test_a_fork_at_an_unknown_step_is_refused(db: TestDatabase, one: Engine) -> None:
    """fork_run names the step it did not find and makes no run."""
    run = one.start()
    with pytest.raises(NotFound, match="no step nowhere-0"):
        fork(one, run, "nowhere-0")
    with pytest.raises(NotFound):
        fork(one, 42, "a-0")
    assert db.sql("select count(*) from onceflow.run") == [(1,)]


def test_a_delayed_start_waits_for_its_time(db: TestDatabase, one: Engine) -> None:
    """A run or task started with a delay is claimable when the one clock says so, not before."""
    stop_clock(db)
    one.register()
    run = one.start(delay_s=10)
    move_clock(db, 9)
    assert (one.tick()["readied"], one.claim()) == (0, [])
    assert look(db, run) == ("scheduled", "queued")
    move_clock(db, 1)
    assert one.tick()["readied"] == 1
    task = one.claim_one()
    assert task.run == run
    one.start_task(task, "work:start-0", delay_s=5)
    assert one.claim() == []
    move_clock(db, 5)
    one.tick()
    assert len(one.claim()) == 1


def test_a_retry_waits_for_its_time(db: TestDatabase, one: Engine) -> None:
    """A failed try with a delay is up for retry until then; the number of tries is that of the policy."""
    stop_clock(db)
    one.register()
    run = one.start(retries=2)
    states = []
    for _ in range(3):
        states.append(one.fail(one.claim_one(), retry=True, delay_s=10))
        assert one.claim() == []
        move_clock(db, 10)
        one.tick()
    assert states == ["up_for_retry", "up_for_retry", "failed"]
    assert look(db, run) == ("failed", "failed")


def test_the_next_tick_is_asked_for_in_time(db: TestDatabase, one: Engine) -> None:
    """run_tick answers how long until the first timer, and does not ask to be called over and over for what others hold."""
    stop_clock(db)
    one.register()
    run = one.start(delay_s=3)
    assert one.tick()["next_s"] == 3
    move_clock(db, 5)
    one.begin()
    one.cancel(run)
    other = Engine(db)
    assert other.tick()["next_s"] in (None, 0.05)
    other.close()
    one.rollback()
    assert one.tick()["readied"] == 1


def test_waits_checked_in_memory_agree(db: TestDatabase, one: Engine) -> None:
    """check_waits says of each kind of wait whether it is over: not while what it waits for lives, and not before its moment."""
    task = one.start_and_claim()
    other = one.start()
    child = one.start_task(task, "work:start-0")
    moments = [(DAY + timedelta(days=36500 * i)).isoformat() for i in (0, 1)]
    asked = [("time", 0, moments[0]), ("time", 0, moments[1]), ("run", other, ""), ("task", task.run, str(child)), ("event", other, "e"), ("message", 0, "t")]
    waits = json.dumps([{"run": task.run, "kind": k, "target_run": r, "target": t} for k, r, t in asked])
    assert one.call(calls.check_waits(waits)) == [True, False, False, False, False, False]
    one.cancel(other)
    one.complete(next(t for t in one.claim(5) if t.ti == child))
    one.send(task.run, "t")
    assert one.call(calls.check_waits(waits)) == [True, False, True, True, True, True]
