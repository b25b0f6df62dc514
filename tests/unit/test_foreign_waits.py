"""What asyncio decides by its clock, or by which is first, is refused on every Python that is here; the rest of asyncio is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands alone: the other interpreters have none of our dependencies.
SCRIPT = """
import asyncio, json, sys, types
sys.modules["onceflow"] = package = types.ModuleType("onceflow")
package.__path__ = [sys.argv[1] + "/onceflow"]
sys.modules["onceflow.engine"] = engine = types.ModuleType("onceflow.engine")
engine.__path__ = [sys.argv[1] + "/onceflow/engine"]
from onceflow.engine import foreign_waits as watch
from onceflow.errors import NonDeterminismError

class Strand(asyncio.Task):
    def add_done_callback(self, fn, /, *, context=None):
        watch.refuse_waiting_for_strand(sys._getframe(1))
        super().add_done_callback(fn, context=context)

def make_task(loop, coro, *, context=None, **options):
    try:
        watch.refuse_unrecorded_waits()
    except NonDeterminismError:
        coro.close()
        raise
    return Strand(coro, loop=loop, context=context, **options)

def refuse(error):
    raise error

async def call(n=0):
    watch.refuse_unrecorded_waits()
    await asyncio.sleep(0)
    return n

async def deep(n):
    return await deep(n - 1) if n else await call()

async def first_as_completed(make):
    for one in asyncio.as_completed([make(call(1)), make(call(2))]):
        return await one

async def aiter_as_completed():
    async for one in asyncio.as_completed([asyncio.create_task(call(1))]):
        return await one

async def in_timeout(seconds):
    async with asyncio.timeout(seconds):
        return await call(7)

async def in_group():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(i)) for i in range(3)]
    return [t.result() for t in tasks]

async def wait(**options):
    done, _ = await asyncio.wait([asyncio.create_task(call(i)) for i in range(2)], **options)
    return sorted(t.result() for t in done)

USES = {
    "wait_for": lambda: asyncio.wait_for(call(), 9), "wait_for deep": lambda: asyncio.wait_for(deep(40), 9),
    "wait_for task": lambda: asyncio.wait_for(asyncio.create_task(call()), 9),
    "as_completed": lambda: first_as_completed(lambda c: c), "as_completed tasks": lambda: first_as_completed(asyncio.create_task),
    "timeout": lambda: in_timeout(9), "wait first": lambda: wait(return_when=asyncio.FIRST_COMPLETED), "wait timeout": lambda: wait(timeout=9),
    "ok gather": lambda: asyncio.gather(call(1), call(2)), "ok group": in_group, "ok task": lambda: asyncio.create_task(call(3)), "ok wait": wait,
    "ok shield": lambda: asyncio.shield(asyncio.create_task(call(4))), "ok no timeout": lambda: in_timeout(None), "ok deep": lambda: deep(40),
}
if sys.version_info >= (3, 13):
    USES["as_completed async"] = aiter_as_completed

async def main():
    asyncio.get_running_loop().set_task_factory(make_task)
    watch.watch_timeouts(refuse)
    found = {}
    for name, use in USES.items():
        try:
            found[name] = await use()
        except NonDeterminismError as error:
            found[name] = str(error).split()[0]
    print(json.dumps(found))

asyncio.run(main())
"""


def find_interpreters() -> list[str]:
    """This Python, and each of 3.11 to 3.14 that is on the path or with pyenv."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for version in ("3.11", "3.12", "3.13", "3.14"):
        installed = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
        for path in [*map(str, installed), shutil.which(f"python{version}")]:
            if path and version not in found and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                found[version] = path
    return [found[version] for version in sorted(found)]


@pytest.mark.parametrize("python", find_interpreters())
def test_waits_that_no_replay_could_repeat_are_refused(python: str) -> None:
    """wait_for, as_completed, timeout and wait for the first, around coroutines and tasks, at any depth; gather, groups and tasks pass."""
    said = subprocess.run([python, "-W", "error", "-c", SCRIPT, str(ROOT / "src")], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert {name: answer for name, answer in found.items() if not name.startswith("ok")} == {
        name: f"asyncio.{name.split()[0]}" for name in found if not name.startswith("ok")
    }
    assert {name: answer for name, answer in found.items() if name.startswith("ok")} == {
        "ok gather": [1, 2],
        "ok group": [0, 1, 2],
        "ok task": 3,
        "ok wait": [0, 1],
        "ok shield": 4,
        "ok no timeout": 7,
        "ok deep": 0,
    }
