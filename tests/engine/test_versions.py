"""New code beside old runs: it goes on with them where it can, and stops by name, holding nothing, where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow import RunStopped
from tests.engine.local_worker import Engine
from tests.processes import WorkerProcess, write_dags

HEAD = """
import asyncio
from pathlib import Path
from typing import Any
import asyncpg
from onceflow import current_run, gather, patch, recv, sleep, step, workflow

@step
async def note(conn: asyncpg.Connection, text: str) -> str:
    await conn.execute("insert into effect (what, note) values ($1, $2)", current_run().run_id, {text})
    return {text}

@step
async def extra(conn: asyncpg.Connection, text: str) -> str:
    return await note.fn(conn, text)

@step
async def hold(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)

@workflow
async def settle(gate: str) -> list[str]:
"""
OLD = """
    found = [await note("a"), await note("b")]
    await hold(gate)
    return [*found, await note("c")]
"""


def write_version(engine: Engine, name: str, body: str, text: str = "text") -> Path:
    """A dags folder with a version of the workflow `settle`."""
    folder = engine.folder / name
    folder.mkdir(exist_ok=True)
    return write_dags(folder, "settling", HEAD.replace("{text}", text) + body)


def start_on(engine: Engine, folder: Path, queue: str) -> WorkerProcess:
    return engine.start_worker(folder, queues=[queue], concurrency=4, env={"ONCEFLOW_LEASE_S": "1"})


def leave_in_the_middle(engine: Engine, queue: str, body: str = OLD, step_key: str = "hold#0") -> tuple[Any, Path]:
    """A run of the old code that stands in a step when its worker is killed."""
    gate = engine.make_gate()
    worker = start_on(engine, write_version(engine, f"{queue}-old", body), queue)
    run = engine.client.start("settle", str(gate), queue=queue, run_id=queue)
    engine.wait_for_entry(run, step_key, "started")
    worker.kill()
    return run, gate


def test_a_changed_step_body_is_no_obstacle(idle_engine: Engine) -> None:
    """What was recorded stays; what is still to be done is done by the new code; the ledger tells which code did what."""
    run, gate = leave_in_the_middle(idle_engine, "changed")
    gate.touch()
    worker = start_on(idle_engine, write_version(idle_engine, "changed-new", OLD, "text.upper()"), "changed")
    assert run.result(20) == ["a", "b", "C"]
    assert len({e["code_version"] for e in run.steps() if e["step_key"].startswith("note")}) == 2
    worker.end()


PATCHED_BEHIND = """
    found = [await note("a")]
    if await patch("fee"):
        found.append(await note("fee"))
    found.append(await note("b"))
    await hold(gate)
    if await patch("bonus"):
        found.append(await note("bonus"))
    return [*found, await note("c")]
"""


def test_a_step_added_under_patch(idle_engine: Engine) -> None:
    """False at a place that the old run has passed, True at one still before it; True everywhere in new runs, and so on every replay."""
    run, gate = leave_in_the_middle(idle_engine, "patched")
    worker = start_on(idle_engine, write_version(idle_engine, "patched-new", PATCHED_BEHIND), "patched")
    fresh = idle_engine.client.start("settle", str(gate), queue="patched")
    for one in (run, fresh):
        idle_engine.db.wait_for(
            "select count(*) from onceflow.step_ledger where dag_run = %s and step_key = 'hold#0' and try_number = %s", one.run, 2 if one is run else 1
        )
    worker.kill()
    gate.touch()
    worker = start_on(idle_engine, write_version(idle_engine, "patched-new", PATCHED_BEHIND), "patched")
    assert run.result(20) == ["a", "b", "bonus", "c"]
    assert fresh.result(20) == ["a", "fee", "b", "bonus", "c"]
    worker.end()


OLD_BRANCHES = """
    async def branch(name):
        await note(name)
        await hold(gate)
        return name
    await gather(branch("x"), branch("y"))
    return ["end", await note("c")]
"""
PATCHED_BRANCHES = """
    async def branch(name):
        await note(name)
        await hold(gate)
        return name
    if await patch("first"):
        await note("new first")
    await gather(branch("x"), branch("y"))
    return ["end", await note("c")]
"""


def test_patch_before_branches_that_have_begun(idle_engine: Engine) -> None:
    """A run whose ledger holds steps of a gather has passed what stands before the gather."""
    run, gate = leave_in_the_middle(idle_engine, "branches", OLD_BRANCHES, "gather#0[1]/hold#0")
    gate.touch()
    worker = start_on(idle_engine, write_version(idle_engine, "branches-new", PATCHED_BRANCHES), "branches")
    assert run.result(20) == ["end", "c"]
    assert sorted(idle_engine.effects(run)) == ["c", "x", "y"]
    worker.end()


WITHOUT_B = """
    found = [await note("a")]
    await hold(gate)
    return [*found, await note("c")]
"""
OTHER_INPUT = """
    found = [await note("a"), await note("b, but not as before")]
    await hold(gate)
    return [*found, await note("c")]
"""


@pytest.mark.parametrize(
    ("queue", "body", "difference"),
    [
        ("removed", WITHOUT_B, r'note#1\({"text": "b"}\).*left out.*hold'),
        ("altered", OTHER_INPUT, r'note\({"text": "b"}\).*note\({"text":"b, but not as before"}\)'),
    ],
)
def test_an_incompatible_change_stops_the_run_by_name(idle_engine: Engine, queue: str, body: str, difference: str) -> None:
    """State needs_code with the difference in stop_reason, no lease, no slot; a worker with the old code resumes and ends it."""
    run, gate = leave_in_the_middle(idle_engine, queue)
    new = start_on(idle_engine, write_version(idle_engine, f"{queue}-new", body), queue)
    idle_engine.db.wait_for("select state = 'needs_code' from onceflow.dag_run where id = %s", run.run)
    assert run.state == "needs_code"
    with pytest.raises(RunStopped, match=difference):
        run.result(5)
    reason, version = idle_engine.db.sql("select stop_reason, code_version from onceflow.dag_run where state = 'needs_code' and id = %s", run.run)[0]
    recorded = {e["code_version"] for e in run.steps() if e["step_key"] == "note#0"}
    assert recorded == {version} and version in reason
    assert idle_engine.db.sql("select count(*) from onceflow.lease where run = %s", run.run) == [(0,)]
    fresh = idle_engine.client.start("settle", str(gate), queue=queue)
    idle_engine.wait_for_entry(fresh, "hold#0", "started")
    gate.touch()
    assert fresh.result(20)[0] == "a"
    assert run.state == "needs_code"
    old = start_on(idle_engine, write_version(idle_engine, f"{queue}-old", OLD), queue)
    idle_engine.db.wait_for("select state = 'success' from onceflow.dag_run where id = %s", run.run)
    assert run.result(5) == ["a", "b", "c"]
    assert idle_engine.effects(run) == ["a", "b", "c"]
    for worker in (new, old):
        worker.end()


WITH_EXTRA = OLD.replace('note("b")', 'extra("b")')


def test_a_stopped_run_goes_on_with_new_code_when_somebody_decides_so(idle_engine: Engine) -> None:
    """retry() of a stopped run: the new code's path, reusing what fits; a stopped run can be cancelled too."""
    run, gate = leave_in_the_middle(idle_engine, "decided", WITH_EXTRA)
    other = idle_engine.client.start("settle", str(gate), queue="decided", run_id="decided-2")
    gate.touch()
    worker = start_on(idle_engine, write_version(idle_engine, "decided-new", WITHOUT_B), "decided")
    idle_engine.db.wait_for("select state = 'needs_code' from onceflow.dag_run where id = %s", run.run)
    run.retry()
    assert run.result(20) == ["a", "c"]
    assert idle_engine.effects(run) == ["a", "b", "c"]
    assert other.result(20) == ["a", "c"]
    worker.end()


def test_a_pinned_version_waits_for_its_code(idle_engine: Engine) -> None:
    """A run started for one code version is claimed by nobody else."""
    new = write_version(idle_engine, "pin-new", OLD, "'new ' + text")
    old = write_version(idle_engine, "pin-old", OLD, "'old ' + text")
    gate = idle_engine.make_gate()
    gate.touch()
    first = idle_engine.start_worker(new, queues=["pin"], env={"ONCEFLOW_CODE_VERSION": "v2"})
    run = idle_engine.client.using(queue="pin", code_version="v1", run_id="pinned").start("settle", str(gate))  # type: ignore[arg-type]
    free = idle_engine.client.start("settle", str(gate), queue="pin")
    assert free.result(20) == ["new a", "new b", "new c"]
    assert run.state == "queued"
    second = idle_engine.start_worker(old, queues=["pin"], env={"ONCEFLOW_CODE_VERSION": "v1"})
    assert run.result(20) == ["old a", "old b", "old c"]
    for worker in (first, second):
        worker.end()
