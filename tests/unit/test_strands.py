"""The strands of a body in an order of events that the test decides; what they do on a database is proved by the engine's tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from onceflow import Workflow, first_of, gather, random, recv, sleep, step, workflow
from onceflow.db.calls import Call
from onceflow.engine.claimed import Claimed
from onceflow.engine.history import History
from onceflow.engine.place import make_task
from onceflow.engine.record import Record
from onceflow.engine.run_task import _call_body as call_body
from onceflow.engine.services import Services
from onceflow.engine.task_run import TaskRun
from onceflow.engine.waits import Suspended, WaitKeeper
from onceflow.settings import Settings


class Paper:
    """Stands in for the services: which waits are over, and when a call is answered, is the test's to say."""

    def __init__(self) -> None:
        self.settings = Settings(suspend_after_s=0)
        self.waits = WaitKeeper(self.call_again)
        self.over: set[str] = set()  # kinds of waits
        self.entries: list[str] = []
        self.gate = asyncio.Event()
        self._held = ""

    async def hold(self, entry: str) -> None:
        """From now on this call is not answered before the gate is open; returns when it has been sent."""
        self._held = entry
        await until(lambda: entry in self.entries)

    async def record(self, record: Record, make: Callable[[], Call]) -> Any:
        entry = f"{make().name} {record.key}"
        self.entries.append(entry)
        if entry == self._held:
            await self.gate.wait()
        return '"2026-01-01T00:00:00+00:00"' if entry.startswith("record_time") else None

    async def call_again(self, call: Call) -> Any:
        return [w["kind"] in self.over for w in json.loads(str(call.args[0]))]

    def slots_changed(self, claimed: Claimed) -> None:
        """Nobody claims here."""


@pytest.fixture
async def paper() -> AsyncIterator[Paper]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(make_task)  # type: ignore[arg-type]
    yield Paper()
    loop.set_task_factory(None)


async def until(condition: Callable[[], Any]) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def begin(paper: Paper, flow: Workflow[..., Any]) -> tuple[TaskRun, asyncio.Task[Any]]:
    """Begins the body; its task ends with it, or raises Suspended."""
    claimed = Claimed(1, 1, "0-0", flow.name, "r", flow.name, -1, "body", None, 0, 1, 0, "{}", None)
    task = TaskRun(cast(Services, paper), claimed, History())
    return task, asyncio.get_running_loop().create_task(call_body(task, flow, {}))


async def see_waits(task: TaskRun, body: asyncio.Task[Any]) -> list[str]:
    """Waits until the body has left memory; answers the kinds of what it waits for."""
    async with asyncio.timeout(5):
        with suppress(Suspended):
            await body
    assert task.is_suspended
    return sorted(wait["kind"] for wait in task.suspended_on)


async def see_a_strand_cancelled() -> None:
    await until(lambda: any(task.cancelling() for task in asyncio.all_tasks()))


@workflow
async def race_for_message() -> Any:
    return await first_of(recv("never"), sleep(0))


async def test_a_branch_cut_while_it_asks_for_a_message_does_not_go_on_to_wait(paper: Paper) -> None:
    """It loses the race while its call is under way, and no message is there: the body is not suspended on the loser's wait alone."""
    paper.over.add("time")
    _, body = begin(paper, race_for_message)
    await paper.hold("receive_message recv#0")
    await see_a_strand_cancelled()
    paper.gate.set()
    async with asyncio.timeout(5):
        assert await body == (1, None)


async def draw_and_hang() -> None:
    await random()
    await asyncio.Event().wait()


@workflow
async def race_with_hanging() -> Any:
    return await first_of(draw_and_hang(), sleep(0))


async def test_a_branch_cut_while_it_writes_is_cancelled_where_it_waits_next(paper: Paper) -> None:
    """It loses the race while its record is being written, and calls nothing of the engine's any more: it ends all the same."""
    paper.over.add("time")
    _, body = begin(paper, race_with_hanging)
    await paper.hold("complete_step first_of#0[0]/random#0")
    await see_a_strand_cancelled()
    paper.gate.set()
    async with asyncio.timeout(5):
        assert await body == (1, None)


@workflow
async def race_of_two() -> Any:
    return await first_of(random(), sleep(0))


async def test_a_branch_that_ends_with_what_it_wrote_keeps_it(paper: Paper) -> None:
    """Cut while its record is being written, which is the last it has to do: its result counts, and it is the first in order."""
    paper.over.add("time")
    _, body = begin(paper, race_of_two)
    await paper.hold("complete_step random#0")
    await see_a_strand_cancelled()
    paper.gate.set()
    async with asyncio.timeout(5):
        winner, drawn = await body
    assert winner == 0 and 0 <= drawn < 1


@workflow
async def wait_twice() -> Any:
    return await gather(recv("never"), sleep(60))


async def test_a_body_is_not_suspended_while_a_branch_writes(paper: Paper) -> None:
    """One branch waits, the other has its wait's record under way: when both wait the body is suspended on both."""
    task, body = begin(paper, wait_twice)
    await paper.hold("record_time sleep#0")
    await until(lambda: [w.is_asked for w in task._waits] == [True])
    task.consider_suspending()
    assert not task.claimed.is_idle
    paper.gate.set()
    assert await see_waits(task, body) == ["message", "time"]


reached, opened = asyncio.Event(), asyncio.Event()


@step
async def draw_and_wait() -> None:
    await random()
    reached.set()
    await opened.wait()


@workflow
async def wait_beside_step() -> Any:
    return await gather(recv("never"), draw_and_wait())


async def test_a_body_is_not_suspended_while_a_step_runs_that_has_called_the_engine(paper: Paper) -> None:
    """An external step has recorded something on its way, and then waits by means of asyncio's: it still runs."""
    reached.clear()
    opened.clear()
    task, body = begin(paper, wait_beside_step)
    await until(reached.is_set)
    task.consider_suspending()
    assert not task.claimed.is_idle
    opened.set()
    assert await see_waits(task, body) == ["message"]
    assert paper.entries[-1] == "complete_step draw_and_wait#0"
