"""What a step sends, sets, starts and takes in its own open transaction: there when it commits, never there when it does not, and nobody waits for it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from onceflow.db import calls
from onceflow.db.calls import Call, render
from onceflow.db.tokens import prove_token
from onceflow.errors import LeaseLost, RunConflict
from tests.database import TestDatabase
from tests.sql.drive import Drive
from tests.sql.engine_calls import Engine, Task, look, make_silent, sqlstate_of

KEY = "pay#0"
CHILD = "pay#0/flow:start#0"
FORGED = "00000000-0000-4000-8000-000000000000"


def do_all(engine: Engine, task: Task, to: int) -> None:
    """Every kind of act, and a write of the step's own."""
    engine.sql("insert into payments values (1)")
    engine.call(calls.send_message(to, "t", '"hello"', None, False))
    engine.set_event_in_step(task, "paid", "7")
    engine.start_child_in_step(task, CHILD)
    engine.start_task(task, None)


def count_all(db: TestDatabase, task: Task) -> dict[str, int]:
    """How much of it is there."""
    counts = {
        "payments": "payments",
        "messages": "onceflow.message",
        "events": "onceflow.run_event",
        "wake-ups": "onceflow.wake_up",
        "children": f"onceflow.run where parent_run = {task.run}",
        "keys": f"onceflow.run_key where run_id like '%{CHILD}%'",
        "tasks": f"onceflow.ti where run = {task.run} and detached",
        "entries": f"onceflow.step_ledger where step_key = '{KEY}'",
    }
    return {name: db.sql(f"select count(*) from {where}")[0][0] for name, where in counts.items()}


NOTHING = {"payments": 0, "messages": 0, "events": 0, "wake-ups": 0, "children": 0, "keys": 0, "tasks": 0, "entries": 0}
EVERYTHING = NOTHING | {"payments": 1, "messages": 1, "events": 1, "wake-ups": 2, "children": 1, "keys": 1, "tasks": 1, "entries": 1}


@pytest.fixture
def task(db: TestDatabase, one: Engine) -> Task:
    """A running body, one of whose steps is about to run; and a table for its writes."""
    db.sql("create table payments (id int)")
    return one.start_and_claim()


@pytest.mark.server("18", "15", "pgbouncer")
def test_all_of_it_commits_with_the_step(db: TestDatabase, one: Engine, task: Task) -> None:
    """Nobody sees any of it before; then the write, the record and every act are there once, of one transaction."""
    to = one.start(delay_s=1000)
    one.begin_step(task, KEY)
    do_all(one, task, to)
    assert count_all(db, task) == NOTHING
    one.complete_step(task, KEY, kind="transactional")
    assert count_all(db, task) == NOTHING
    one.commit()
    assert count_all(db, task) == EVERYTHING
    xids = "select xmin from payments union select xmin from onceflow.message union select xmin from onceflow.run where parent_run is not null"
    assert len(db.sql(f"{xids} union select xmin from onceflow.step_ledger where step_key = '{KEY}'")) == 1
    assert db.sql("select tis from onceflow.run where id = %s", task.run) == [(2,)]


@pytest.mark.server("18", "15", "pgbouncer")
def test_a_step_that_rolls_back_leaves_nothing(db: TestDatabase, one: Engine, task: Task) -> None:
    """Neither a message nor an event, nor the id of a child; what it had taken is there again. Tried again, it starts the same child, once."""
    to = one.start(delay_s=1000)
    one.send(task.run, "inbox", '"for me"')
    db.sql("truncate onceflow.wake_up")
    ids = []
    for end in (one.rollback, one.commit):
        one.begin_step(task, KEY)
        do_all(one, task, to)
        assert one.take(task, "inbox") == {"body": "for me"}
        assert one.take(task, "inbox") is None
        ids.append(one.sql("select run_id from onceflow.run where parent_run = %s", task.run))
        if end == one.commit:
            one.complete_step(task, KEY, kind="transactional")
        end()
        if end == one.rollback:
            assert count_all(db, task) == NOTHING | {"messages": 1}
    assert count_all(db, task) == EVERYTHING
    assert ids[0] == ids[1] != []


def test_a_savepoint_takes_back_its_own(db: TestDatabase, one: Engine, task: Task) -> None:
    """What was done under a savepoint that is rolled back never happened; the rest commits."""
    to = one.start(delay_s=1000)
    one.begin_step(task, KEY)
    one.sql("savepoint a")
    do_all(one, task, to)
    one.sql("rollback to savepoint a")
    one.set_event_in_step(task, "paid", "8")
    one.complete_step(task, KEY, kind="transactional")
    one.commit()
    assert count_all(db, task) == NOTHING | {"events": 1, "wake-ups": 1, "entries": 1}
    assert db.sql("select value from onceflow.run_event") == [(8,)]


Wait = tuple[str, int, str]


def send(engine: Engine, task: Task, to: int) -> None:
    engine.call(calls.send_message(to, "t", "1", None, False))


def set_event(engine: Engine, task: Task, to: int) -> None:
    engine.set_event_in_step(task, "paid")


@pytest.mark.parametrize(("act", "kind"), [(send, "message"), (set_event, "event")])
@pytest.mark.parametrize("order", ["waiter between act and commit", "waiter commits after", "waiter before", "waiter after"])
def test_no_wake_up_is_lost(db: TestDatabase, one: Engine, two: Engine, task: Task, act: Callable[[Engine, Task, int], None], kind: str, order: str) -> None:
    """However the step's transaction and that of a body that begins to wait lie to each other, after a tick the body is queued."""
    waiter = two.start_and_claim()
    wait = ("message", waiter.run, "t") if kind == "message" else ("event", task.run, "paid")
    if order == "waiter before":
        two.defer(waiter, wait)
    if order == "waiter commits after":
        two.begin()
        two.sql("select 1")
    one.begin_step(task, KEY)
    act(one, task, waiter.run)
    if order == "waiter between act and commit":
        two.defer(waiter, wait)
        two.tick()
        assert look(db, waiter.run)[0] == "deferred"
    if order == "waiter commits after":
        two.defer(waiter, wait)
    one.complete_step(task, KEY, kind="transactional")
    one.commit()
    if order == "waiter commits after":
        ticked = one.blocks(one.tick)  # it waits for those who are just about to wait
        two.commit()
        ticked.result(20)
    if order == "waiter after":
        two.defer(waiter, wait)
    one.tick()
    assert look(db, waiter.run)[0] == "queued"


def test_a_handed_on_task_wakes_whoever_waits_for_it(db: TestDatabase, one: Engine, two: Engine, task: Task) -> None:
    """A task of the outbox whose handle a body waits for: its end queues the body, in both orders."""
    one.begin_step(task, KEY)
    tis = [one.start_task(task, None) for _ in range(2)]
    one.complete_step(task, KEY, kind="transactional")
    one.commit()
    first, second = sorted(two.claim(2), key=lambda t: t.ti)
    assert [first.ti, second.ti] == tis
    one.begin()
    one.defer(task, ("task", task.run, str(first.ti)))
    two.complete(first)
    one.commit()
    one.tick()
    assert look(db, task.run)[0] == "queued"
    task = one.claim_one()
    one.defer(task, ("task", task.run, str(second.ti)))
    assert db.sql("select from onceflow.wake_up") == []
    two.complete(second)
    one.tick()
    assert look(db, task.run)[0] == "queued"


def test_nothing_of_the_engine_s_is_locked_meanwhile(db: TestDatabase, one: Engine, two: Engine, task: Task) -> None:
    """While the step's transaction is open its task can be rescued and its run cancelled, at once; then the step cannot commit, and nothing is left."""
    to = one.start(delay_s=1000)
    run = task.run
    for take_away in (two.rescue, lambda: two.cancel(run)):
        one.begin_step(task, KEY)
        do_all(one, task, to)
        one.take(task, "inbox")
        make_silent(db, one)
        two.later(take_away).result(20)
        with pytest.raises(LeaseLost):
            one.complete_step(task, KEY, kind="transactional")
        one.rollback()
        db.sql("delete from onceflow.wake_up")
        assert count_all(db, task) == NOTHING
        one.register()
        if again := one.claim():
            (task,) = again


def test_a_child_is_cancelled_with_its_parent(db: TestDatabase, one: Engine, two: Engine, task: Task) -> None:
    """cancel_run that comes while the step commits waits for it, and takes the child along."""
    one.begin_step(task, KEY)
    child = one.start_child_in_step(task, CHILD)
    one.complete_step(task, KEY, kind="transactional")
    cancelled = two.blocks(lambda: two.cancel(task.run))
    one.commit()
    cancelled.result(20)
    assert look(db, child)[1] == "cancelled"


def test_a_taken_message_stops_nobody(db: TestDatabase, one: Engine, two: Engine, task: Task) -> None:
    """Another receiver passes over a message that an open step has taken, gets the next one, and this one too once the step has rolled back."""
    for body in "12":
        one.send(task.run, "t", body)
    one.begin_step(task, KEY)
    assert one.take(task, "t") == {"body": 1}
    assert two.later(lambda: two.receive(task, "recv#0", "t")).result(20) == {"body": 2}
    assert two.receive(task, "recv#1", "t") is None
    one.rollback()
    assert two.receive(task, "recv#1", "t") == {"body": 1}


def test_the_body_sets_what_its_step_has_set(db: TestDatabase, one: Engine, two: Engine, task: Task) -> None:
    """A branch of the body that sets the same event waits for the step without holding the lease, so the step can complete: no deadlock."""
    one.begin_step(task, KEY)
    one.set_event_in_step(task, "paid", "1")
    branch = two.blocks(lambda: two.set_event(task, "set_event#0", "paid", "2"))
    one.complete_step(task, KEY, kind="transactional")
    one.commit()
    branch.result(20)
    assert db.sql("select value from onceflow.run_event") == [(2,)]


def test_a_child_of_the_same_id_with_other_arguments_is_refused(one: Engine, task: Task) -> None:
    """The id of a child is an idempotency key: the same arguments answer the same run, others are a conflict."""
    one.begin_step(task, KEY)
    first = one.start_child_in_step(task, CHILD)
    assert one.start_child_in_step(task, CHILD) == first
    with pytest.raises(RunConflict):
        one.start_child_in_step(task, CHILD, args='{"n": 2}')


def proven(task: Task, token: str) -> dict[str, tuple[Call, str]]:
    """Each act as a step's connection sends it, with a proof made of that token; and the same proof on another act of its kind."""
    owner = task.run, task.ti

    def prove(what: str) -> str:
        return prove_token(token, what)

    child, event, take, start = prove(f"child/{CHILD}/flow/{{}}"), prove("event/paid/1"), prove("take/t"), prove("start/m:f/{}")
    return {
        "child": (calls.start_child_in_step(*owner, child, CHILD, "flow", "{}", None, 0, "body"), child),
        "other child": (calls.start_child_in_step(*owner, child, CHILD, "flow", '{"n": 2}', None, 0, "body"), child),
        "event": (calls.set_event_in_step(*owner, event, "paid", "1"), event),
        "other event": (calls.set_event_in_step(*owner, event, "paid", "2"), event),
        "take": (calls.take_message(*owner, take, "t"), take),
        "other take": (calls.take_message(*owner, take, "u"), take),
        "start": (calls.start_task(*owner, start, None, "f", "m:f", "{}", "h", 0, None), start),
        "other start": (calls.start_task(*owner, start, None, "f", "m:f", '{"n": 2}', "h", 0, None), start),
    }


def try_acts(drive: Drive, task: Task, token: str, marked: Task) -> dict[str, str | None]:
    """What becomes of each act in a transaction of the step's login that carries the mark of a step."""
    found: dict[str, str | None] = {}
    for name, (call, _) in proven(task, token).items():

        def act(call: Call = call) -> None:
            with drive.transaction(marked, KEY) as conn, conn.transaction():
                conn.execute(render(call).encode())

        found[name] = sqlstate_of(act)
    return found


GOOD = {"child": None, "event": None, "take": None, "start": None}


@pytest.mark.server("18", "15")
def test_a_proof_is_good_for_one_act(drive: Drive) -> None:
    """The step's login needs no token: a proof of it will do, for this act and no other."""
    task = drive.start()
    assert try_acts(drive, task, task.token, task) == {name: GOOD.get(name, "OF001") for name in proven(task, "")}


def test_forged_old_and_other_tasks_proofs_are_refused(drive: Drive) -> None:
    """Neither a made-up token's, nor another task's, nor the present one's in another run's name, nor one from before a rescue."""
    task, other = drive.start(), drive.start()
    refused = dict.fromkeys(proven(task, ""), "OF001")
    for of, token in ((task, FORGED), (task, other.token), (replace(task, run=other.run), task.token), (replace(task, ti=other.ti), task.token)):
        assert try_acts(drive, of, token, task) == refused
    drive.lose()
    drive.engine.claim(2)
    assert try_acts(drive, task, task.token, task) == refused
    assert drive.db.sql("select count(*) from onceflow.ti") == [(2,)]


def test_an_act_outside_of_the_step_s_transaction_is_refused(drive: Drive) -> None:
    """A step that has ended its own transaction sends and starts nothing any more: it would stand without the step."""
    task = drive.start()
    for name, (call, _) in proven(task, task.token).items():
        if name in GOOD:
            with pytest.raises(psycopg.Error, match="ended its own transaction") as caught:
                drive.step.execute(render(call).encode())
            assert caught.value.sqlstate == "OF003"


def test_no_proof_shows_the_token(drive: Drive) -> None:
    """What other steps can read of these statements holds no token."""
    task: Any = drive.start()
    assert all(task.token not in render(call) for call, _ in proven(task, task.token).values())
