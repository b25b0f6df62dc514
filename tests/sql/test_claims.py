"""Claims: one order over all lanes, no task twice, limits kept, repeated claims answer the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceflow.errors import LeaseLost
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, look, make_silent, sqlstate_of

LANES = ("flow", "rates", "report")
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def three(make_engine: Callable[..., Engine]) -> Callable[[], Engine]:
    """Makes a worker that has the code of three workflows: each has a lane of its own."""
    return lambda: make_engine(dags=LANES)


def mix(engine: Engine, count: int) -> list[int]:
    """Runs in several lanes, with priorities and logical dates all mixed; answers their ids in the order they must be claimed in."""
    rows = [(i * 7 % 3 - 1, START + timedelta(hours=i * 5 % 7), i) for i in range(count)]
    runs = [engine.start(LANES[i * 11 % 3], f"r{i}", priority=p, logical_date=(d + timedelta(seconds=i)).isoformat()) for p, d, i in rows]
    ordered = sorted(range(count), key=lambda i: (-rows[i][0], rows[i][1] + timedelta(seconds=i), i))
    return [runs[i] for i in ordered]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_order_is_global_over_lanes(three: Callable[[], Engine], limit: int) -> None:
    """Whatever the limit, claims take by priority, logical date and arrival over all lanes of the worker."""
    worker = three()
    expected = mix(worker, 24)
    claimed: list[int] = []
    while got := worker.claim(limit):
        assert len(got) <= limit
        claimed += [t.run for t in got]
    assert claimed == expected


def test_arrival_decides_among_equals(db: TestDatabase, one: Engine) -> None:
    """Tasks of one run, alike in priority and date, are claimed in the order in which they were queued."""
    body = one.start_and_claim()
    tis = [one.start_task(body, f"work:start-{i}") for i in range(6)]
    assert [t.ti for _ in range(3) for t in sorted(one.claim(2), key=lambda t: t.ti)] == tis


def test_two_claims_never_take_the_same(db: TestDatabase, three: Callable[[], Engine]) -> None:
    """A claim beside an open one passes over what that has taken, goes on in the global order, and does not wait."""
    one, two = three(), three()
    expected = mix(one, 20)
    one.begin()
    two.begin()
    first = [t.run for t in one.claim(5)]
    second = [t.run for t in two.claim(5)]
    third = [t.run for t in one.claim(5)]
    two.commit()
    one.commit()
    assert [*first, *second, *third] == expected[:15]


def test_a_claim_finds_what_lies_behind_taken_heads(db: TestDatabase, three: Callable[[], Engine]) -> None:
    """Where another claim holds the heads of all lanes, the rows behind them are claimed at once, in their order."""
    one, two = three(), three()
    runs = [one.start(LANES[i % 2], f"r{i}", logical_date=(START + timedelta(days=i)).isoformat()) for i in range(6)]
    one.begin()
    one.sql("select from onceflow.ready order by logical_date limit 3 for update")
    assert [t.run for t in two.claim(2)] == runs[3:5]
    one.rollback()
    assert [t.run for t in two.claim(50)] == [*runs[:3], runs[5]]


def test_a_rolled_back_claim_leaves_all(db: TestDatabase, one: Engine) -> None:
    """A claim that did not commit has taken nothing."""
    run = one.start()
    one.begin()
    assert len(one.claim()) == 1
    one.rollback()
    assert look(db, run)[0] == "queued"
    assert db.sql("select from onceflow.lease") == []


def test_a_worker_claims_only_from_its_lanes(db: TestDatabase, make_engine: Callable[..., Engine], one: Engine) -> None:
    """Nobody claims a queue it does not serve, a workflow it lacks, or a code version it has not."""
    other = make_engine(dags=("rates",), queues=("fast",), version="v2")
    one.start(queue="fast")
    other.start("rates")
    one.start("rates", "pinned", queue="fast", code_version="v1")
    assert one.claim(50) == other.claim(50) == []
    run = other.start("rates", "mine", queue="fast", code_version="v2")
    assert [t.run for t in other.claim(50)] == [run]


def test_a_repeated_claim_answers_the_same(db: TestDatabase, one: Engine, two: Engine) -> None:
    """After a lost reply the same claim number gives the same tasks with the same tokens, and takes no more."""
    for _ in range(4):
        one.start()
    got = one.claim(2)
    assert sorted(t.token for t in one.claim(2, again=True)) == sorted(t.token for t in got)
    assert db.sql("select count(*) from onceflow.lease") == [(2,)]


def test_a_claim_repeated_before_the_first_commits_orphans_nothing(db: TestDatabase, one: Engine, make_engine: Callable[..., Engine]) -> None:
    """The first attempt commits after the repeated one was answered: the next heartbeat gives back what the worker does not know of."""
    runs = {one.start() for _ in range(2)}
    slow = make_engine()
    slow.worker, slow.lanes = one.worker, one.lanes
    slow.begin()
    (lost,) = slow.claim()
    one.claims = slow.claims
    (known,) = one.claim(again=True)
    slow.commit()
    assert {lost.run, known.run} == runs
    assert one.heartbeat([known]) == {"revoked": [], "unclaimed": 1}
    assert (look(db, lost.run)[0], look(db, known.run)[0]) == ("queued", "running")


def test_a_heartbeat_leaves_a_claim_in_flight_alone(db: TestDatabase, one: Engine) -> None:
    """A lease of a later claim than the worker has seen is still on its way: the heartbeat does not unclaim it."""
    one.start()
    task = one.claim_one()
    assert one.heartbeat([], claim=one.claims - 1) == {"revoked": [], "unclaimed": 0}
    assert look(db, task.run)[0] == "running"
    assert one.heartbeat([], claim=one.claims)["unclaimed"] == 1
    assert look(db, task.run)[0] == "queued"


def test_a_heartbeat_tells_what_was_revoked(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The worker learns which of its tokens are worth nothing any more, and of those only."""
    lost, kept = one.start_and_claim(), one.start_and_claim()
    two.cancel(lost.run)
    assert one.heartbeat([lost, kept])["revoked"] == [lost.token]


@pytest.mark.parametrize("late", ["silent", "ended", "unknown"])
def test_a_worker_that_is_not_alive_claims_nothing(db: TestDatabase, one: Engine, late: str) -> None:
    """A worker without a heartbeat for its lease, one that has ended, one never registered: an empty answer."""
    one.start()
    if late == "silent":
        make_silent(db, one)
    elif late == "ended":
        one.sql("select onceflow.end_worker(%s)", one.worker)
    else:
        one.worker += 1
    assert one.claim(5) == []


def test_an_ended_worker_gives_all_back(db: TestDatabase, one: Engine) -> None:
    """A worker that ends in good order needs no rescue; no try is burnt."""
    task = one.start_and_claim()
    one.sql("select onceflow.end_worker(%s)", one.worker)
    assert look(db, task.run)[0] == "queued"
    assert db.sql("select try_number, rescues from onceflow.ti") == [(0, 0)]


def finish(engine: Engine, how: str, task: Any) -> None:
    getattr(engine, how)(task)


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_unclaim_passes_over_a_task_that_is_ending(db: TestDatabase, one: Engine, two: Engine, how: str) -> None:
    """unclaim_tasks beside an uncommitted end does not wait; the end counts, and the task is not queued again."""
    task = one.start_and_claim()
    two.worker = one.worker
    one.begin()
    finish(one, how, task)
    assert two.unclaim(task) == 0
    one.commit()
    assert look(db, task.run)[0] == {"complete": "success", "fail": "failed"}[how]
    assert db.sql("select from onceflow.ready") == []


def test_ending_after_unclaim_is_refused(db: TestDatabase, one: Engine, two: Engine) -> None:
    """complete_task that comes while unclaim_tasks is uncommitted waits, and then fails: the task is queued for others."""
    task = one.start_and_claim()
    two.worker = one.worker
    two.begin()
    assert two.unclaim(task) == 1
    completed = one.blocks(lambda: one.complete(task))
    two.commit()
    with pytest.raises(LeaseLost):
        completed.result(20)
    assert look(db, task.run)[0] == "queued"
    again = one.claim_one()
    assert (again.try_number, again.token != task.token) == (1, True)


def test_rescue_passes_over_a_task_that_is_ending(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A lease whose end is just being committed is not rescued, even if its worker counts as lost."""
    task = one.start_and_claim()
    make_silent(db, one)
    one.begin()
    one.complete(task)
    assert two.rescue() == 0
    one.commit()
    assert look(db, task.run) == ("success", "success")


def test_a_rescued_task_cannot_be_ended_by_the_lost_worker(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Whoever lost its lease gets OF001 from every call, while the rescue is uncommitted and after; the new holder ends the task."""
    task = one.start_and_claim()
    make_silent(db, one)
    two.begin()
    assert two.rescue() == 1
    completed = one.blocks(lambda: one.complete(task))
    two.commit()
    with pytest.raises(LeaseLost, match="was rescued from this worker"):
        completed.result(20)
    again = two.claim_one()
    assert (again.ti, again.try_number) == (task.ti, 2)
    assert sqlstate_of(lambda: one.complete(task)) == "OF001"
    two.complete(again)
    assert db.sql("select from_state, to_state, final from onceflow.step_ledger order by id") == [("running", "rescued", False), ("running", "success", True)]


def test_a_heartbeat_on_its_way_in_saves_its_worker(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A worker whose heartbeat is about to commit is not rescued."""
    task = one.start_and_claim()
    make_silent(db, one)
    one.begin()
    one.heartbeat([task])
    assert two.rescue() == 0
    one.commit()
    assert two.rescue() == 0
    assert look(db, task.run)[0] == "running"


def test_two_rescues_share_the_lost(db: TestDatabase, one: Engine, two: Engine, make_engine: Callable[..., Engine]) -> None:
    """Each lost task is rescued once, whoever looks at the same time."""
    lost = make_engine()
    for _ in range(4):
        lost.start_and_claim()
    make_silent(db, lost)
    one.begin()
    two.begin()
    assert (one.rescue(), two.rescue()) == (4, 0)
    two.commit()
    one.commit()
    assert db.sql("select count(*), max(rescues) from onceflow.ti where state is null") == [(4, 1)]


def test_rescued_too_often_it_fails(db: TestDatabase, one: Engine) -> None:
    """After max_rescues the task fails as WorkerLost, so code that kills its worker does not kill all workers for ever."""
    run = one.start()
    for _ in range(3):
        one.sql("update onceflow.worker set heartbeat_at = clock_timestamp()")
        one.claim_one()
        make_silent(db, one)
        assert one.rescue(max_rescues=2) == 1
    assert look(db, run) == ("failed", "failed")
    assert db.sql("select error ->> '$error' from onceflow.step_ledger where final") == [("onceflow.errors:WorkerLost",)]


def test_a_rescue_uses_no_retry(db: TestDatabase, one: Engine) -> None:
    """A task with one retry may fail once, be rescued in between, and is tried again: the lost try does not count against it."""
    one.start(retries=1)
    one.claim_one()
    make_silent(db, one)
    one.rescue()
    one.sql("update onceflow.worker set heartbeat_at = clock_timestamp()")
    assert one.fail(one.claim_one(), retry=True) == "up_for_retry"
    assert one.fail(one.claim_one(), retry=True) == "failed"
    assert db.sql("select try_number, rescues from onceflow.ti") == [(3, 1)]
