"""Code that leaves the recorded path is stopped by name, whatever it catches, and harms nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import AuthoringError, InvalidArgument, LostContext, NonDeterminismError, RunCancelled, WrongColour
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "misuse_flows.py"
flows = load_flows("misuse_flows")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("bare thread", LostContext, "outside any run"),
        ("pool", LostContext, "outside any run"),
        ("def step in async body", WrongColour, r"plain_step\.aio"),
        ("step inside a transaction", AuthoringError, r"note\.fn\(conn"),
        ("def step inside a transaction", AuthoringError, r"note_sync\.fn\(conn"),
        ("sleep inside a transaction", AuthoringError, "inside the transactional step"),
        ("sleep inside a step", AuthoringError, "cannot be suspended"),
        ("result inside a step", AuthoringError, "cannot be suspended"),
        ("gather of steps in a transaction", WrongColour, "async def body"),
        ("wait_for", NonDeterminismError, r"asyncio\.wait_for.*onceflow\.timeout"),
        ("wait_for a coroutine", NonDeterminismError, r"asyncio\.wait_for.*onceflow\.timeout"),
        ("wait_for a task", NonDeterminismError, r"asyncio\.wait_for.*onceflow\.timeout"),
        ("as_completed", NonDeterminismError, r"asyncio\.as_completed.*onceflow\.gather"),
        ("asyncio.timeout", NonDeterminismError, r"asyncio\.timeout.*onceflow\.timeout"),
        ("asyncio.wait", NonDeterminismError, r"asyncio\.wait.*onceflow\.first_of"),
        ("direct call", AuthoringError, "called directly"),
        ("bad arguments", TypeError, "note"),
        ("negative sleep", InvalidArgument, "from 0 up to 100 years; not -1"),
        ("commit_with in the body", AuthoringError, "inside an external step"),
    ],
)
def test_misuse_has_a_name(engine: Engine, name: str, error: type[Exception], message: str) -> None:
    """Every way to leave the recorded path fails the run with an error that says what to write instead."""
    run = engine.client.start(flows.misuse, name)
    with pytest.raises(error, match=message):
        run.result(20)
    assert run.state == "failed"
    assert engine.db.sql("select count(*) from effect where what in ('misuse', %s) and note in ('inside', 'inner')", run.run_id) == [(0,)]


@pytest.mark.parametrize("name", ["async step in def body", "gather in def body"])
def test_misuse_in_a_def_body(engine: Engine, name: str) -> None:
    """A def body can neither call async steps nor gather coroutines."""
    with pytest.raises(WrongColour, match="async def"):
        engine.run(flows.misuse_sync, name)


@pytest.mark.parametrize("name", ["wait_for", "wait_for a coroutine", "wait_for a task", "as_completed", "asyncio.timeout", "asyncio.wait"])
def test_a_body_that_swallows_cannot_hide_an_unrecorded_wait(engine: Engine, name: str) -> None:
    """`except BaseException` around it does not make the run a success."""
    with pytest.raises(NonDeterminismError):
        engine.run(flows.misuse_swallowed, name)


def test_an_async_generator_of_the_body(engine: Engine) -> None:
    """A body may iterate over its own generator of steps."""
    assert engine.run(flows.using_generator) == [1, 2]


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (flows.unsteady, r'note#0.*"first".*note.*"second"'),
        (flows.unsteady_swallowed, r'note#0.*"first".*note.*"second"'),
        (flows.unsteady_names, r'note#0.*"first".*keep.*"another"'),
        (flows.unsteady_order, r'note#0.*"first".*never calls'),
    ],
)
def test_another_path_on_replay_names_both_calls(engine: Engine, tmp_path: Path, flow: Any, message: str) -> None:
    """Other inputs, another step, a step left out: NonDeterminismError tells what is recorded and what was called, also past a catch-all."""
    run = engine.client.start(flow, str(tmp_path))
    with pytest.raises(NonDeterminismError, match=message):
        run.result(20)
    assert run.state == "failed"


def test_code_that_cancels_itself_fails(engine: Engine) -> None:
    """A CancelledError that nobody asked for is the body's failure, or its step's, not a lost run."""
    with pytest.raises(RuntimeError, match="cancelled by its own code"):
        engine.run(flows.cancels_itself)
    assert "cancelled by its own code" in engine.run(flows.step_of_it_cancelled)


@pytest.mark.parametrize("flow", [flows.stubborn, flows.stubborn_sync])
def test_a_body_that_catches_everything_for_ever_harms_nobody(engine: Engine, flow: Any) -> None:
    """It is suspended all the same, its neighbours run, and it can be cancelled; it writes nothing meanwhile."""
    gate = engine.make_gate()
    run = engine.client.start(flow, str(gate))
    engine.wait_for_state(run, "deferred")
    assert engine.run(flows.patched_twice) == [True, True, True]
    before = len(run.steps())
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result(20)
    assert len(run.steps()) == before + 1
    gate.touch()


def test_a_worker_with_endless_bodies_ends(idle_engine: Engine) -> None:
    """SIGTERM ends it in time, with exit code 0, though a body catches whatever it is told."""
    worker = idle_engine.start_worker(queues=["endless"])
    gate = idle_engine.make_gate()
    runs = [idle_engine.client.start(flow, str(gate), queue="endless") for flow in (flows.stubborn, flows.stubborn_sync)]
    for run in runs:
        idle_engine.wait_for_state(run, "deferred")
    assert worker.terminate(timeout=20) == 0
    gate.touch()


def test_a_deaf_body_cannot_hide_a_lost_lease(engine: Engine) -> None:
    """It catches LeaseLost and goes on: nothing it does is recorded, and the run is done by whoever holds the lease."""
    gate = engine.make_gate()
    run = engine.client.start(flows.deaf, str(gate))
    engine.wait_for_entry(run, "hold#0", "started")
    engine.db.sql("update onceflow.lease set token = gen_random_uuid() where run = %s", run.run)
    gate.touch()
    assert run.result(20) == "hidden"
    assert engine.effects(run) == ["after"]
    assert [e["to_state"] for e in run.steps()] == ["started", "started", "success", "success", "success"]


def test_a_deaf_body_cannot_hide_a_cancel(engine: Engine) -> None:
    """The run stays cancelled, and no step of it commits any more."""
    gate = engine.make_gate()
    run = engine.client.start(flows.deaf, str(gate))
    engine.wait_for_entry(run, "hold#0", "started")
    run.cancel("stop")
    gate.touch()
    with pytest.raises(RunCancelled, match="stop"):
        run.result(20)
    assert engine.run(flows.patched_twice) == [True, True, True]
    assert run.state == "cancelled"
    assert engine.effects(run) == []
