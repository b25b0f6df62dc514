"""cancel_run and retry_run against everything that may run beside them: no deadlock, nothing left, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from onceflow.db import calls
from onceflow.errors import InvalidTransition, LeaseLost
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, look, make_silent, sqlstate_of


def check_cancelled(db: TestDatabase, run: int) -> None:
    """The run is over, all its tasks with it, and nothing of it lies anywhere."""
    assert look(db, run)[1] == "cancelled"
    assert db.sql("select from onceflow.ti where run = %s and (state is null or state = 'deferred')", run) == []
    for table in ("ready", "lease", "timer", "wait"):
        assert db.sql(f"select from onceflow.{table} where run = %s", run) == [], table


def test_a_claim_in_flight_is_cancelled(db: TestDatabase, one: Engine, two: Engine) -> None:
    """cancel_run waits for a claim that has taken the run's task, and takes the lease away."""
    run = one.start()
    one.begin()
    task = one.claim_one()
    cancelled = two.blocks(lambda: two.cancel(run))
    one.commit()
    cancelled.result(20)
    check_cancelled(db, run)
    assert sqlstate_of(lambda: one.complete(task)) == "OF001"


def test_a_claim_passes_over_a_run_being_cancelled(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A claim beside an uncommitted cancel_run gets nothing of that run and does not wait."""
    run = one.start()
    two.begin()
    two.cancel(run)
    assert one.claim() == []
    two.commit()
    check_cancelled(db, run)


def test_what_is_completing_wins_over_cancel(db: TestDatabase, one: Engine, two: Engine) -> None:
    """cancel_run waits for an uncommitted end of the last task and then says that the run has ended; it changes nothing."""
    task = one.start_and_claim()
    one.begin()
    one.complete(task)
    cancelled = two.blocks(lambda: two.cancel(task.run))
    one.commit()
    with pytest.raises(InvalidTransition, match="just ended"):
        cancelled.result(20)
    assert look(db, task.run) == ("success", "success")
    assert db.sql("select count(*) from onceflow.step_ledger") == [(1,)]


def test_a_run_that_is_just_going_on_is_cancelled(db: TestDatabase, one: Engine, two: Engine) -> None:
    """cancel_run beside an uncommitted continue_as waits for it, and cancels the run that goes on."""
    task = one.start_and_claim()
    one.begin()
    following = int(one.call(calls.continue_run(*task.owner, "flow", "{}", "h", '{"n": 2}', 0))["$continued"]["run"])
    cancelled = two.blocks(lambda: two.cancel(task.run))
    one.commit()
    assert cancelled.result(20) == {"state": "cancelled"}
    assert look(db, task.run) == ("success", "success")
    check_cancelled(db, following)


def test_a_late_completion_is_refused(db: TestDatabase, one: Engine, two: Engine) -> None:
    """complete_task beside an uncommitted cancel_run waits, and then its transaction cannot commit."""
    task = one.start_and_claim()
    two.begin()
    two.cancel(task.run)
    completed = one.blocks(lambda: one.complete(task))
    two.commit()
    with pytest.raises(LeaseLost):
        completed.result(20)
    check_cancelled(db, task.run)


def unclaim(engine: Engine, task: Task) -> None:
    engine.unclaim(task)


def retry_now(engine: Engine, task: Task) -> None:
    engine.fail(task, retry=True)


def retry_later(engine: Engine, task: Task) -> None:
    engine.fail(task, retry=True, delay_s=100)


def defer(engine: Engine, task: Task) -> None:
    engine.defer(task, ("message", task.run, "t"))


def start_task(engine: Engine, task: Task) -> None:
    engine.start_task(task, "work:start-0")


def start_later(engine: Engine, task: Task) -> None:
    engine.start_task(task, "work:start-0", delay_s=100)


def start_child(engine: Engine, task: Task) -> None:
    engine.start_child(task, "flow:start-0")


def rescue(engine: Engine, task: Task) -> None:
    make_silent(engine.db, engine)
    engine.rescue()


def stop_run(engine: Engine, task: Task) -> None:
    engine.stop_run(task, "v0")


@pytest.mark.parametrize("move", [unclaim, retry_now, retry_later, defer, start_task, start_later, start_child, rescue, stop_run])
@pytest.mark.parametrize("first", ["move", "cancel"])
def test_a_moving_task_is_cancelled(db: TestDatabase, one: Engine, two: Engine, move: Callable[[Engine, Task], None], first: str) -> None:
    """Whatever moves a running task elsewhere, before or after cancel_run took it: the run is cancelled with all it began, and nothing deadlocks."""
    task = one.start_and_claim(retries=1)
    if first == "move":
        one.begin()
        move(one, task)
        cancelled = two.blocks(lambda: two.cancel(task.run))
        one.commit()
        cancelled.result(20)
    else:
        two.begin()
        two.cancel(task.run)
        if move in (unclaim, rescue):  # they pass over
            move(one, task)
            two.commit()
        else:
            moved = one.blocks(lambda: move(one, task))
            two.commit()
            with pytest.raises(LeaseLost):
                moved.result(20)
    check_cancelled(db, task.run)
    assert db.sql("select count(*) from onceflow.run where state is null") == [(0,)]


def test_cancel_takes_the_leases_before_the_tasks(db: TestDatabase, one: Engine, two: Engine, make_engine: Callable[..., Engine]) -> None:
    """While cancel_run waits for a claim in flight it holds no task, so one that completes meanwhile does not deadlock with it."""
    body = one.start_and_claim()
    work = one.start_task(body, "work:start-0")
    two.begin()
    claimed = two.claim_one()
    assert claimed.ti == work
    canceller = make_engine()
    cancelled = canceller.blocks(lambda: canceller.cancel(body.run))
    assert one.later(lambda: one.complete(body)).exception(20) is None, "waited for cancel_run"
    two.commit()
    cancelled.result(20)
    assert db.sql("select state from onceflow.ti order by id") == [("success",), ("failed",)]
    assert look(db, body.run)[1] == "cancelled"


def test_a_cancelled_parent_takes_its_children_along(db: TestDatabase, one: Engine) -> None:
    """Child runs, and theirs, are cancelled in the same transaction."""
    body = one.start_and_claim()
    child = one.start_child(body, "flow:start-0")
    task = one.claim_one()
    grandchild = one.start_child(task, "flow:start-0")
    assert len({body.run, child, grandchild}) == 3
    one.cancel(body.run)
    for run in (body.run, child, grandchild):
        check_cancelled(db, run)


def test_cancelling_twice_is_harmless(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The second cancel_run, before or after the first commits, answers the same and writes nothing."""
    run = one.start()
    one.begin()
    one.cancel(run)
    again = two.blocks(lambda: two.cancel(run))
    one.commit()
    assert again.result(20) == {"state": "cancelled"} == two.cancel(run)
    assert db.sql("select count(*) from onceflow.step_ledger where kind = 'human'") == [(1,)]


def test_retry_while_a_lease_exists_is_refused(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A living run cannot be tried again, neither while it runs nor while its end is uncommitted and succeeds."""
    task = one.start_and_claim()
    assert sqlstate_of(lambda: two.retry(task.run)) == "OF005"
    one.begin()
    one.complete(task)
    retried = two.blocks(lambda: two.retry(task.run))
    one.commit()
    with pytest.raises(InvalidTransition):
        retried.result(20)
    assert db.sql("select count(*) from onceflow.ready") == [(0,)]


def test_retry_waits_for_the_failure(db: TestDatabase, one: Engine, two: Engine) -> None:
    """retry_run beside an uncommitted failure waits for it and tries the run again."""
    task = one.start_and_claim()
    one.begin()
    one.fail(task)
    retried = two.blocks(lambda: two.retry(task.run))
    one.commit()
    assert retried.result(20)["tasks"] == 1
    assert look(db, task.run)[0] == "queued"
    again = one.claim_one()
    assert (again.epoch, again.try_number) == (1, 2)


def test_a_stopped_run_is_retried_while_it_is_woken(db: TestDatabase, one: Engine, two: Engine) -> None:
    """retry_run and the wake-up of a run that needs code come at once: no deadlock, and it is queued once."""
    task = one.start_and_claim()
    one.stop_run(task, "v0")
    db.sql("insert into onceflow.wake_up (kind, target_run, target) values ('code', 0, 'flow@v0')")
    one.begin()
    one.sql("select from onceflow.ti for update")  # as drain_wake_ups holds it before it comes to the run
    retried = two.blocks(lambda: two.retry(task.run))
    assert one.drain_wake_ups() == 1
    one.commit()
    with pytest.raises(InvalidTransition, match="alive"):
        retried.result(20)
    assert db.sql("select count(*) from onceflow.ready") == [(1,)]


def test_a_stopped_run_with_running_tasks_is_retried(db: TestDatabase, one: Engine, two: Engine) -> None:
    """retry_run of a run that needs code leaves the tasks that still run alone: they end as ever, and the run with them."""
    body = one.start_and_claim()
    one.start_task(body, "work:start-0")
    work = one.claim_one()
    one.stop_run(body, "v1")
    assert two.retry(body.run)["tasks"] == 1
    one.complete(work)
    again = one.claim_one()
    one.complete(again)
    assert look(db, body.run) == ("success", "success")


def test_two_retries_try_it_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Of two retry_run at the same time one acts, the other finds the run alive."""
    task = one.start_and_claim()
    one.fail(task)
    one.begin()
    one.retry(task.run)
    again = two.blocks(lambda: two.retry(task.run))
    one.commit()
    with pytest.raises(InvalidTransition):
        again.result(20)
    assert db.sql("select count(*) from onceflow.ready") == [(1,)]


def test_the_code_a_stopped_run_needs_registers_at_the_same_moment(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """A worker that registers beside an uncommitted stop_run, in either order: the run goes on."""
    for order in ("worker first", "run first"):
        version = order.replace(" ", "-")
        late = make_engine(version="none")
        late.version = version
        db.sql("select onceflow.ensure_lane('default', 'flow', %s)", version)  # someone had this code before
        task = one.start_and_claim()
        one.begin()
        late.begin()
        if order == "worker first":
            late.register()
            stopped = one.blocks(partial(one.stop_run, task, version))
            late.commit()
            stopped.result(20)
            one.commit()
        else:
            one.stop_run(task, version)
            registered = late.blocks(late.register)
            one.commit()
            registered.result(20)
            late.commit()
        one.tick()
        assert look(db, task.run)[0] == "queued", order
        assert one.claim() == []
        (again,) = late.claim()
        late.complete(again)
        assert look(db, task.run) == ("success", "success")


def test_a_stopped_run_waits_for_its_code(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """A run that needs a version nobody has holds no lease and is listed so; the first worker that brings it goes on."""
    task = one.start_and_claim()
    one.stop_run(task, "v9")
    one.tick()
    assert look(db, task.run) == ("deferred", "needs_code")
    bringer = make_engine(version="v9")
    one.tick()
    assert [t.ti for t in bringer.claim()] == [task.ti]
