"""Waiting bodies: they free their lease and slot, are replayed when the wait is over, and record nothing when they are forgotten."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from onceflow.errors import NotFound
from tests.engine.local_worker import FLOWS, Engine, load_flows, wait_until

DAGS = FLOWS / "wait_flows.py"
flows = load_flows("wait_flows")


def held_leases(engine: Engine, run: Any) -> int:
    return int(engine.db.sql("select count(*) from onceflow.lease where run = %s", run.run)[0][0])


@pytest.mark.parametrize(("flow", "notes", "replays"), [(flows.sleeping, ["before", "between", "after"], 2), (flows.sleeping_sync, ["before", "after"], 1)])
def test_sleep(engine: Engine, flow: Any, notes: list[str], replays: int) -> None:
    """The body is forgotten while it sleeps, in either colour, and sleeps its time once, however often it is replayed."""
    run = engine.client.start(flow, 0.3)
    assert run.result(20) == notes
    assert engine.effects(run) == notes
    assert engine.replays(run) == replays
    took = engine.db.sql("select extract(epoch from end_date - start_date)::float8 from onceflow.dag_run where id = %s", run.run)[0][0]
    assert took >= 0.3 * replays


def test_a_long_sleep_holds_neither_lease_nor_slot(engine: Engine) -> None:
    """State deferred, no lease, a timer; and it can be cancelled."""
    run = engine.client.start(flows.sleeping, 3600)
    engine.wait_for_state(run, "deferred")
    assert held_leases(engine, run) == 0
    assert engine.db.sql("select kind from onceflow.timer where run = %s", run.run) == [("wait",)]
    run.cancel()
    assert run.state == "cancelled"
    assert engine.db.sql("select count(*) from onceflow.timer where run = %s", run.run) == [(0,)]


def test_messages_sent_before_and_after_the_receiver_waits(engine: Engine) -> None:
    """In order within a topic, each once, whenever they come."""
    run = engine.client.start(flows.receiving, ["a", "a", "b"], None, delay=0.2)
    run.send({"n": 1}, "a")
    run.send((2, "two"), topic="b")
    engine.wait_for_state(run, "deferred")
    run.send(None, "a")
    assert run.result(20) == [{"n": 1}, None, (2, "two")]
    assert engine.replays(run) >= 2
    assert engine.db.sql("select count(*) from onceflow.message where run = %s", run.run) == [(0,)]


def test_recv_times_out(engine: Engine) -> None:
    """None after its time; zero asks once; a message in time wins."""
    run = engine.client.start(flows.receiving, ["never", "never"], 0.2)
    assert run.result(20) == [None, None]
    assert engine.run(flows.receiving, ["never"], 0) == [None]
    run = engine.client.start(flows.receiving, ["soon"], 20)
    engine.wait_for_state(run, "deferred")
    run.send("here", "soon")
    assert run.result(10) == ["here"]


def test_recv_in_a_def_body_and_in_branches(engine: Engine) -> None:
    """Threads, gather and asyncio.gather each get their topic's message."""
    run = engine.client.start(flows.receiving_sync, ["x", "y"])
    engine.wait_for_state(run, "deferred")
    run.send(2, "y")
    run.send(1, "x")
    assert run.result(20) == [1, 2]
    run = engine.client.start(flows.receiving_in_branches)
    engine.wait_for_state(run, "deferred")
    for topic in "dbca":
        run.send(topic, topic)
    assert run.result(20) == ["a", "b", ["c", "d"]]


def test_messages_from_another_run_are_sent_once(engine: Engine) -> None:
    """The sender is replayed after every send; each message arrives once."""
    receiver = engine.client.start(flows.receiving, ["t"] * 3, None)
    sender = engine.client.start(flows.sending, receiver.run, "t", [1, 2, 3])
    assert receiver.result(20) == [1, 2, 3]
    assert sender.result(20) is None
    assert engine.replays(sender) == 3
    assert engine.db.sql("select count(*) from onceflow.message where run = %s", receiver.run) == [(0,)]


def test_an_idempotency_key_is_delivered_once(engine: Engine) -> None:
    """A second send of the same key says False and delivers nothing, even after the first was received."""
    run = engine.client.start(flows.receiving, ["k", "k"], None)
    assert run.send("first", "k", key="pay-1") is True
    assert run.send("again", "k", key="pay-1") is False
    engine.db.wait_for("select count(*) from onceflow.step_ledger where dag_run = %s and step_key = 'recv#0'", run.run)
    assert run.send("late duplicate", "k", key="pay-1") is False
    assert run.send("second", "k", key="pay-2") is True
    assert run.result(20) == ["first", "second"]


def test_a_message_to_nobody_is_refused(engine: Engine) -> None:
    """send to a run that does not exist: NotFound, from the client and as the body's error."""
    with pytest.raises(NotFound):
        engine.run(flows.sending, 4711, "t", [1])


def test_events(engine: Engine) -> None:
    """A reader waits for an event, sees the value of its time for ever, and gets None when the run ends without it."""
    gate = engine.make_gate()
    publisher = engine.client.start(flows.publishing, str(gate))
    watcher = engine.client.start(flows.watching, publisher.run)
    engine.wait_for_state(watcher, "deferred")
    wait_until(lambda: publisher.get_event("stage") == {"n": 1})
    engine.db.wait_for("select count(*) from onceflow.step_ledger where dag_run = %s and step_key = 'get_event#0'", watcher.run)
    gate.touch()
    assert watcher.result(20) == [{"n": 1}, (1, 2), None]
    assert publisher.get_event("stage") == {"n": 2}
    assert publisher.get_event("never") is None
    assert engine.run(flows.watching_in_vain, engine.client.start(flows.sleeping, 3600).run) is None


@pytest.mark.parametrize(("flow", "topics"), [(flows.tidy, ["go"]), (flows.tidy_sync, ["go"]), (flows.tidy_in_group, ["go", "stop"])])
def test_a_finally_writes_nothing_when_its_body_is_forgotten(engine: Engine, flow: Any, topics: list[str]) -> None:
    """Steps in finally: run at the real end, once; never on a suspension. Also in def bodies and task groups."""
    run = engine.client.start(flow)
    engine.wait_for_state(run, "deferred")
    assert not [n for n in engine.effects(run) if n.startswith("clean")]
    assert not [e for e in run.steps() if "leave" in e["step_key"] and e["inputs"]["text"] != "work"]
    for topic in topics:
        run.send("now", topic)
    assert run.result(20) is None
    assert sorted(n for n in engine.effects(run) if n.startswith("clean")) == sorted(
        ["cleaned up"] + ([f"cleaned {t}" for t in topics] if len(topics) > 1 else [])
    )


def test_a_body_in_memory_frees_its_slot_too(idle_engine: Engine) -> None:
    """With concurrency 1 and no suspension at all: waiting bodies, by any means of asyncio's, block nobody."""
    worker = idle_engine.start_worker(concurrency=1, queues=["one"], env={"ONCEFLOW_SUSPEND_AFTER_S": "3600"})
    waiting = {way: idle_engine.client.start(flows.waiting_by, way, queue="one") for way in ("gather", "task", "group", "queue", "onceflow")}
    asleep = idle_engine.client.start(flows.receiving_sync, ["x"], queue="one")
    for run in [*waiting.values(), asleep]:
        idle_engine.db.wait_for("select count(*) from onceflow.lease where run = %s", run.run)
    assert idle_engine.run(flows.quick, queue="one") == "quick"
    for run in waiting.values():
        run.send(1, "x")
        run.send(2, "y")
    asleep.send(1, "x")
    assert [list(run.result(20)) for run in waiting.values()] == [[1, 2]] * 5
    assert asleep.result(20) == [1]
    assert all(idle_engine.replays(run) == 0 for run in waiting.values())
    worker.end()


@pytest.mark.parametrize("suspend_after_s", ["0", "3600"])
def test_waiting_bodies_do_not_starve_their_own_steps(idle_engine: Engine, suspend_after_s: str) -> None:
    """Twelve bodies that wait for steps they have started, on a worker with one slot: all end."""
    queue = f"starve-{suspend_after_s}"
    worker = idle_engine.start_worker(concurrency=1, queues=[queue], env={"ONCEFLOW_SUSPEND_AFTER_S": suspend_after_s})
    runs = [idle_engine.client.start(flows.fanning, 4, queue=queue) for _ in range(12)]
    assert [run.result(40) for run in runs] == [12] * 12
    worker.end()


def test_a_branch_at_work_keeps_its_body_in_memory(engine: Engine) -> None:
    """One branch waits, another one is in a step: the body is not forgotten until the step has ended."""
    gate = engine.make_gate()
    run = engine.client.start(flows.busy_beside_waiting, str(gate))
    engine.wait_for_entry(run, "pause_at#0", "started")
    engine.run(flows.sleeping, 0.2)
    assert engine.replays(run) == 0
    assert held_leases(engine, run) == 1
    gate.touch()
    engine.wait_for_state(run, "deferred")
    run.send("z", "z")
    assert run.result(20) == ["z", None, None, None]
    assert [e["to_state"] for e in run.steps() if e["step_key"] == "pause_at#0"] == ["started", "success"]


def test_a_worker_that_drains_gives_waiting_bodies_back(idle_engine: Engine) -> None:
    """SIGTERM with waiting bodies in memory, async and def: it exits at once, nothing of theirs is recorded, no try is burnt."""
    env = {"ONCEFLOW_SUSPEND_AFTER_S": "3600"}
    worker = idle_engine.start_worker(queues=["drained"], env=env)
    runs = [idle_engine.client.start(flow, queue="drained") for flow in (flows.tidy, flows.tidy_sync, flows.tidy_in_group)]
    for run in runs[:2]:
        idle_engine.db.wait_for("select count(*) from effect where what = %s", run.run_id)
    idle_engine.db.wait_for("select count(*) from onceflow.lease where run = %s", runs[2].run)
    assert worker.terminate(timeout=10) == 0
    assert [idle_engine.effects(run) for run in runs] == [["work"], ["work"], []]
    assert idle_engine.db.sql("select count(*) from onceflow.lease") == [(0,)]
    heir = idle_engine.start_worker(queues=["drained"], env=env)
    for run in runs:
        run.send("now", "go")
        run.send("now", "stop")
        assert run.result(20) is None
    assert [idle_engine.effects(run) for run in runs[:2]] == [["work", "cleaned up"]] * 2
    assert idle_engine.db.sql("select max(try_number) from onceflow.task_instance where run = any(%s)", [run.run for run in runs]) == [(1,)]
    heir.end()


def test_a_body_that_begins_to_wait_during_the_drain_is_given_back(idle_engine: Engine) -> None:
    """SIGTERM while a step is at work: as soon as it has ended and its body waits, the worker exits."""
    gate = idle_engine.make_gate()
    worker = idle_engine.start_worker(queues=["late"], env={"ONCEFLOW_SUSPEND_AFTER_S": "3600"})
    run = idle_engine.client.start(flows.busy_beside_waiting, str(gate), queue="late")
    idle_engine.wait_for_entry(run, "pause_at#0", "started")
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker draining" in worker.log_text(), 10)
    gate.touch()
    assert worker.process.wait(10) == 0
    assert idle_engine.db.sql("select count(*) from onceflow.lease") == [(0,)]
    heir = idle_engine.start_worker(queues=["late"])
    run.send("z", "z")
    assert run.result(20) == ["z", None, None, None]
    heir.end()


def test_a_kill_while_bodies_wait(engine: Engine) -> None:
    """The worker dies with waiting bodies in its memory; another replays them, and no message is lost or taken twice."""
    victim = engine.start_worker(queues=["mortal"], env={"ONCEFLOW_SUSPEND_AFTER_S": "3600", "ONCEFLOW_LEASE_S": "1"})
    runs = [engine.client.start(flows.receiving, ["m", "m"], None, queue="mortal") for _ in range(5)]
    for run in runs:
        run.send("first", "m")
        engine.db.wait_for("select count(*) from onceflow.step_ledger where dag_run = %s and step_key = 'recv#0'", run.run)
    victim.kill()
    for run in runs:
        run.send("second", "m")
    heir = engine.start_worker(queues=["mortal"], env={"ONCEFLOW_SUSPEND_AFTER_S": "3600", "ONCEFLOW_LEASE_S": "1"})
    assert [run.result(30) for run in runs] == [["first", "second"]] * 5
    heir.end()
