"""Messages, events and starts inside a step's transaction: for every kind of connection they happen once, with the step, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import AuthoringError, RunHandle
from onceflow.errors import NotFound
from tests.engine.local_worker import FLOWS, Engine, load_flows, wait_until

pytestmark = pytest.mark.server("18", "15", "pgbouncer")
DAGS = FLOWS / "inside_flows.py"
flows = load_flows("inside_flows")


def start_reader(engine: Engine, count: int) -> RunHandle[Any]:
    return engine.client.start(flows.reading, count)


def check_nothing_else(engine: Engine, run: RunHandle[Any]) -> None:
    """No message is left, and no child or task beside those that were committed."""
    assert engine.db.sql("select count(*) from onceflow.message") == [(0,)]
    assert engine.db.sql("select count(*) from effect where note like '%%lost%%'") == [(0,)]
    assert engine.db.sql("select count(*) from onceflow.run_key where run_id like %s", f"%{run.run_id}%") == [(2,)], "the run and its one child"
    assert engine.db.sql("select * from onceflow.verify_ledger()") == []


@pytest.mark.parametrize("name", [s.name for s in flows.ONE_BY_ONE])
def test_every_kind_acts_once_with_its_step(engine: Engine, name: str) -> None:
    """A failing step leaves nothing of all it did, and puts back what it took; the next one commits it once; the handles it returned are waited for."""
    reader = start_reader(engine, 1)
    run = engine.client.start(flows.acting, name, reader.run)
    run.send("for me", "inbox")
    run.send("", "go")
    assert run.result(20)[:5] == ["for me", None, "for me", f"{name} is on its way", f"{name} delivered"]
    child_id = run.result()[5]
    assert reader.result(20) == [f"{name} got for me"]
    assert run.get_event(name) == "for me" and run.get_event("lost") is None
    assert engine.effects(run) == [name, f"delivered {name}"]
    assert engine.db.sql("select note from effect where what = %s", child_id) == [(f"shipped {name}",)]
    assert f".{name}#1/ship:start#0." in child_id
    check_nothing_else(engine, run)


@pytest.mark.parametrize("failing", [-1, 2])
@pytest.mark.parametrize("name", ["grouped", "grouped_sync"])
def test_members_of_a_group_act_in_its_transaction(engine: Engine, name: str, failing: int) -> None:
    """Each member's messages, events and starts are there once; with a member that fails all run again one by one, and only its own are missing."""
    members = [i for i in range(5) if i != failing]
    reader = start_reader(engine, len(members))
    run = engine.client.start(flows.acting_in_groups, name, reader.run, failing)
    assert run.result(20) == [f"member {i} is on its way" if i in members else "failed" for i in range(5)]
    assert sorted(reader.result(20)) == [f"member {i} got None" for i in members]
    engine.db.wait_for("select state is not null from onceflow.run where id = %s", run.run)
    assert sorted(engine.effects(run)) == sorted([f"delivered member {i}" for i in members] + [f"member {i}" for i in members])
    assert engine.db.sql("select count(*) from onceflow.run where parent_run = %s", run.run) == [(len(members),)]
    assert engine.db.sql("select * from onceflow.verify_ledger()") == []


def test_a_def_body_waits_for_handles_from_its_step(engine: Engine) -> None:
    """The same in a def body; no message was there to take."""
    reader = start_reader(engine, 1)
    run = engine.client.start(flows.acting_sync, reader.run)
    assert run.result(20) == [None, None, None, "sync is on its way", "sync delivered"]
    assert reader.result(20) == ["sync got None"]


def test_a_handle_is_a_value(engine: Engine) -> None:
    """A handle that a step returned can be an argument of another run, which waits for it; and whoever asks for a run's result can read it."""
    reader = start_reader(engine, 2)
    run = engine.client.start(flows.handing_on, reader.run)
    assert run.result(20) == "heard: passed is on its way"
    alone = engine.client.start(flows.on_asyncpg, "alone", reader.run, False)
    *_, child, task = alone.result(20)
    assert engine.client.find(child.run_id, "ship").result(20) == "alone is on its way"
    assert (child.name, task.name, task.run) == ("ship", "deliver", alone.run)
    assert engine.effects(alone) == ["alone", "delivered alone"]


@pytest.mark.parametrize(("fails", "found"), [(True, ["put it back", "one"]), (False, ["one", "None"])])
def test_a_body_is_after_the_message_that_a_step_has_taken(engine: Engine, fails: bool, found: list[str]) -> None:
    """It goes to the step if that commits; if it rolls back the body has it, though nobody sends it again."""
    gate = engine.make_gate()
    run = engine.client.start(flows.sharing, str(gate), fails)
    run.send("one", "shared")
    run.send("", "go")
    wait_until(Path(f"{gate}-taken").exists)
    if not fails:
        engine.wait_for_entry(run, "gather#0[1]/recv#0", "success")
    gate.touch()
    assert run.result(20) == found
    assert engine.db.sql("select count(*) from onceflow.message") == [(0,)]


def test_who_waits_is_woken_after_the_commit(idle_engine: Engine) -> None:
    """Nobody waits for a poll: the receiver of a message has it right after the commit of the step that sent it (a tick in between comes after 5 s)."""
    workers = [idle_engine.start_worker(queues=["still"], concurrency=1, env={"ONCEFLOW_POLL_S": "600"}) for _ in range(2)]
    delays = []
    for _ in range(5):
        reader = idle_engine.client.start(flows.reading, 1, queue="still")
        idle_engine.wait_for_state(reader, "deferred")
        gate = idle_engine.make_gate()
        run = idle_engine.client.start(flows.announcing, reader.run, str(gate), queue="still")
        wait_until(Path(f"{gate}-sent").exists)
        gate.touch()
        assert reader.result(20) == ["now"]
        at = "select at from onceflow.step_ledger where dag_run = %s and step_key = %s"
        ((sent,),), ((received,),) = (idle_engine.db.sql(at, r.run, key) for r, key in ((run, "announce#0"), (reader, "recv#0")))
        delays.append((received - sent).total_seconds())
    for worker in workers:
        worker.end()
    print(f"received after {sorted(round(d, 3) for d in delays)} s")
    assert sorted(delays)[2] < 0.5


def test_an_external_step_acts_once_per_input(engine: Engine) -> None:
    """What it sends, sets and starts is recorded under it at once: another try does the same things no second time, and other things anew."""
    reader = start_reader(engine, 3)
    run = engine.client.start(flows.acting_outside, reader.run)
    assert run.result(20) == ["outside is on its way", "outside delivered"]
    assert sorted(reader.result(20)) == ["same", "try 2", "try 3"]
    assert run.get_event("outside") == 3
    assert engine.effects(run) == ["delivered outside"]
    check_nothing_else(engine, run)


def test_an_external_step_may_take_another_way_after_a_crash(engine: Engine, tmp_path: Path) -> None:
    """What its lost try sent stays sent; its next one need not do the same, as the body must."""
    reader = start_reader(engine, 2)
    victim = engine.start_worker(queues=["doomed"], env={"ONCEFLOW_LEASE_S": "1"})
    run = engine.client.start(flows.waver, str(tmp_path), reader.run, queue="doomed")
    wait_until((tmp_path / "was-here").exists)
    victim.kill()
    heir = engine.start_worker(queues=["doomed"], env={"ONCEFLOW_LEASE_S": "1"})
    assert run.result(30) == "second"
    assert reader.result(20) == ["first way", "second way"]
    heir.end()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("recv that waits", AuthoringError, "recv would wait inside the open transaction of step takes_patiently#0.*timeout=0"),
        ("get_event that waits", AuthoringError, "get_event would wait inside the open transaction of step waits_for_event#0.*timeout=0"),
        ("now", AuthoringError, "now was called inside the transactional step"),
        ("recv in an external step", AuthoringError, "cannot be suspended.*commit_with"),
        ("send from a process", AuthoringError, "process of its own"),
        ("send to nobody", NotFound, "no run 42"),
        ("send to nobody, sync", NotFound, "no run 42"),
    ],
)
def test_what_cannot_be_has_a_name(engine: Engine, name: str, error: type[Exception], message: str) -> None:
    """Waiting in an open transaction, what has no transaction, and a receiver that is not there fail the step by name; nothing is written."""
    run = engine.client.start(flows.misuse_inside, name)
    with pytest.raises(error, match=message):
        run.result(20)
    assert engine.effects(run) == []


def test_a_task_that_a_step_left_behind_sends_nothing(engine: Engine) -> None:
    """After the end of its step it hears LostContext."""
    reader = start_reader(engine, 1)
    (error,) = engine.run(flows.leaving_a_task, reader.run)
    assert error.startswith("LostContext: send was called for step leaves_a_task#0 after the step ended")
    assert engine.db.sql("select count(*) from onceflow.message") == [(0,)]
    reader.cancel()
