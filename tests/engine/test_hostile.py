"""Code and settings that would break the engine, and what comes of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onceflow import AuthoringError
from onceflow.db.calls import Call
from onceflow.engine.group import GroupCommitter
from onceflow.engine.waits import Wait, WaitKeeper
from onceflow.engine.worker import Worker
from onceflow.errors import AlreadyRecorded, InvalidArgument, LeaseLost
from onceflow.settings import Settings
from tests.engine.local_worker import Engine, load_flows

flows = load_flows("hostile_flows")


@pytest.mark.parametrize("what", ["leave", "cancelled", "future", "group", "closing"])
@pytest.mark.parametrize("kind", ["leave_thread", "leave_transaction"])
def test_what_a_step_raises_in_a_thread_ends_its_run(engine: Engine, kind: str, what: str) -> None:
    """An error that is no Exception, and a CancelledError of the step's own, are the step's outcome: it runs once, and fails."""
    run = engine.client.start(getattr(flows, kind), what)
    with pytest.raises(RuntimeError, match=rf"step {kind} raised .* cannot end its worker"):
        run.result(20)
    assert engine.effects(run) == []


@pytest.mark.parametrize("what", ["leave", "group", "closing"])
def test_what_an_async_step_raises_ends_its_run(engine: Engine, what: str) -> None:
    """The same on the worker's loop."""
    with pytest.raises(RuntimeError, match=r"step leave_async raised .* cannot end its worker"):
        engine.run(flows.leave_async, what)


@pytest.mark.parametrize("what", ["cancelled", "future"])
def test_a_body_in_a_thread_that_raises_a_cancelled_error_fails(engine: Engine, what: str) -> None:
    """Nobody but the body itself can have raised it: the run fails, and is not tried for ever."""
    with pytest.raises(RuntimeError, match=r"raised CancelledError\(\)"):
        engine.run(flows.leave_body, what)


SAID = {
    "lease lost": "LeaseLost: said by the step itself",
    "suspended": "RuntimeError: step {} raised Suspended(): it cannot end its worker; raise an ordinary exception instead",
    "recorded": "AlreadyRecorded: said by the step itself",
    "continue": "RuntimeError: step {} raised ContinueAs(): it cannot end its worker; raise an ordinary exception instead",
}


@pytest.mark.parametrize("what", SAID)
@pytest.mark.parametrize("kind", flows.SIGNALLERS)
def test_a_signal_of_the_engine_s_that_a_step_raises_itself_is_its_error(engine: Engine, kind: str, what: str) -> None:
    """Its lease is not lost by saying so, nor is its body suspended: the step is tried by its policy, fails, and leaves nothing."""
    run = engine.client.start(flows.signal_in_step, kind, what)
    assert run.result(20) == [SAID[what].format(f"signal_{kind}")] * 3
    steps = [e["to_state"] for e in run.steps() if e["step_name"] == f"signal_{kind}" and e["to_state"] != "started"]
    assert sorted(steps) == ["failed"] * 3 + ["up_for_retry"] * 3
    assert engine.effects(run) == []


@pytest.mark.parametrize("what", ["lease lost", "suspended", "recorded"])
@pytest.mark.parametrize("kind", ["signal_async", "signal_thread", "signal_transaction", "signal_psycopg", "signal_in_body", "signal_in_def_body"])
def test_a_task_that_raises_a_signal_of_the_engine_s_fails(engine: Engine, kind: str, what: str) -> None:
    """A step that is a task of its own, and a body: the run fails with what was raised; it is not taken up again for ever."""
    run = engine.client.start(getattr(flows, kind), what)
    with pytest.raises(Exception, match="raised Suspended" if what == "suspended" else "said by the step itself") as caught:
        run.result(20)
    assert type(caught.value) is {"lease lost": LeaseLost, "suspended": RuntimeError, "recorded": AlreadyRecorded}[what]
    assert engine.effects(run) == []


@pytest.mark.parametrize("state", ["OF001", "OF007", "OF003"])
def test_a_sqlstate_of_the_engine_s_that_a_step_raises_itself_is_its_error(engine: Engine, state: str) -> None:
    """The same where the step's own SQL raises it."""
    run = engine.client.start(flows.raise_sqlstate, state)
    with pytest.raises(Exception, match="said by the step itself"):
        run.result(20)
    assert len(run.steps()) == (1 if state == "OF003" else 2), "it is tried by its policy; a split step is not tried again"
    assert engine.effects(run) == []


def test_an_error_without_a_text_is_recorded_as_what_it_is(engine: Engine) -> None:
    """An exception whose __str__ fails is the outcome of a transactional step, not the failure of its __str__."""
    with pytest.raises(flows.BadText):
        engine.run(flows.raise_bad_text)


def test_what_is_printed_below_an_isolated_step_is_no_answer(engine: Engine) -> None:
    """A program that the step runs may write to standard output, text or not: the step's result comes back."""
    assert engine.run(flows.print_below) == "answer"


@pytest.mark.parametrize("number", [0, -1, 2**63, 10**30])
def test_a_number_that_is_no_run(engine: Engine, number: int) -> None:
    """send and get_event refuse it by name, and the waits of the worker go on."""
    errors = engine.run(flows.ask_no_run, number)
    assert errors == [f"{what}: {number} is no run; pass a run's handle, or its numeric id" for what in ("send", "get_event")]


def test_first_of_nothing(engine: Engine) -> None:
    """first_of() names its mistake."""
    with pytest.raises(AuthoringError, match="without a branch"):
        engine.run(flows.first_of_none)


def test_an_empty_run_id_is_refused(engine: Engine) -> None:
    """An id that came out empty must not become a random one: the same start twice would be two runs."""
    with pytest.raises(InvalidArgument, match="run_id must have 1 to 250 characters"):
        engine.client.start(flows.outbox_at_the_end, "n", run_id="")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_run_ends_whatever_the_default_isolation(idle_engine: Engine, level: str) -> None:
    """With another default_transaction_isolation of the database, a run whose last task is one of its outbox ends."""
    db = idle_engine.db
    db.sql(f"alter database {db.name} set default_transaction_isolation = '{level}'")
    worker = idle_engine.start_worker()
    try:
        run = idle_engine.client.start(flows.outbox_at_the_end, level)
        run.result(20)
        assert idle_engine.effects(run) == [level, f"after {level}"]
        assert db.sql("select * from onceflow.verify_ledger()") == []
    finally:
        worker.end()
        db.sql(f"alter database {db.name} reset default_transaction_isolation")


class Refused(Exception):
    sqlstate = "22003"


async def test_a_wait_that_cannot_be_asked_does_not_hold_up_the_others() -> None:
    """Its own body hears the error; every other wait of the worker comes true."""

    async def check(call: Call) -> Any:
        targets = [wait["target"] for wait in json.loads(str(call.args[0]))]
        if "bad" in targets:
            raise Refused
        return [True for _ in targets]

    keeper = WaitKeeper(check)
    waits = [Wait(1, "event", 2, target) for target in ("one", "bad", "two")]
    for wait in waits:
        keeper.add(wait)
    async with asyncio.timeout(5):
        await asyncio.wait([wait.future for wait in waits])
    assert [wait.future.exception() is None for wait in waits] == [True, False, True]


class Closed:
    """A binding whose database refuses the login."""

    async def open(self, step: str = "") -> Any:
        raise PermissionError("no")


async def submit(group: GroupCommitter, binding: Any) -> bool:
    return await group.submit(object(), binding)  # type: ignore[arg-type]


async def test_steps_that_wait_for_a_group_commit_outlive_a_cancelled_one() -> None:
    """A caller that is cancelled while it waits for a group takes nobody with it: the others are answered."""
    group, binding = GroupCommitter(50), Closed()
    for cancelled in range(4):
        members = [asyncio.ensure_future(submit(group, binding)) for _ in range(4)]
        await asyncio.sleep(0)
        members[cancelled].cancel()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*members, return_exceptions=True)
        assert [answer for answer in answers if not isinstance(answer, BaseException)] == [False] * 3


async def test_a_group_without_a_connection_lets_its_members_run_alone() -> None:
    """Where no connection can be opened nobody waits in the queue: alone, each step hears why."""
    group, binding = GroupCommitter(50), Closed()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*(submit(group, binding) for _ in range(10))) == [False] * 10


async def test_no_wake_up_is_left_out() -> None:
    """Work that was put there just after a wake-up went out is told by one of its own, not found by the next poll."""
    worker: Any = Worker(Settings(dsn="postgresql:///nowhere"))
    sent: asyncio.Queue[str] = asyncio.Queue()
    worker._wake = asyncio.Event()

    class Told:
        class link:
            @staticmethod
            async def call(call: Call) -> None:
                sent.put_nowait(call.name)

    worker.services = Told
    telling = asyncio.create_task(worker._tell_for_ever())
    async with asyncio.timeout(5):
        for _ in range(3):
            worker._wake_soon()
            worker._wake_soon()
            assert await sent.get() == "wake_workers"
    telling.cancel()
    assert sent.empty()
