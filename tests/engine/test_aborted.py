"""A step that catches an error of the database and goes on: its failure says what was caught, and what to write instead."""

from __future__ import annotations

import pytest

from onceflow import StepAborted
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "aborted_flows.py"
flows = load_flows("aborted_flows")


@pytest.mark.parametrize("goes_on", [True, False], ids=["writes more", "returns"])
@pytest.mark.parametrize("kind", flows.KINDS)
def test_going_on_after_a_caught_error_is_named(engine: Engine, kind: str, goes_on: bool) -> None:
    """The original error, and the savepoint as that driver writes it, with every kind of connection; nothing is written."""
    if "async_s" in kind or "sa_async" in kind:
        pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio extension needs it")
    run = engine.client.start(flows.going_on, kind, goes_on)
    with pytest.raises(StepAborted) as caught:
        run.result(20)
    message = str(caught.value)
    assert "UniqueViolation" in message and 'duplicate key value violates unique constraint "account_pkey"' in message
    assert f"use a savepoint: {flows.KINDS[kind][1]}" in message
    assert "UniqueViolation" in type(caught.value.__cause__).__name__
    assert engine.effects(run) == []


def test_a_savepoint_is_what_helps(engine: Engine) -> None:
    """Written as the error says, the step goes on and commits."""
    run = engine.client.start(flows.in_a_savepoint)
    run.result(20)
    assert engine.effects(run) == ["after"]


def test_a_caught_serialization_failure_is_run_again(engine: Engine) -> None:
    """Whatever the step makes of it, it burns no try."""
    engine.db.sql("create sequence tries")
    engine.db.sql("grant usage on sequence tries to public")
    run = engine.client.start(flows.swallow_serialization, 1)
    assert run.result(20) == "done"
    assert engine.effects(run) == ["after"]
    assert [e["to_state"] for e in run.steps()] == ["success"]
