"""Two files may have a step of the same name: a start by the step itself means that one, a start by the name alone is refused by name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from onceflow import NotFound, RunConflict
from onceflow.engine.loader import load_dags
from tests.engine.local_worker import Engine
from tests.processes import write_dags

SOURCE = """
import asyncpg
from onceflow import current_run, sql_step, step

@step
async def namesake(conn: asyncpg.Connection, n: int) -> str:
    await conn.execute("insert into effect (what, note) values ($1, '{file}')", current_run().run_id)
    return "{file}"

namesake_sql = sql_step("select '{file}' as file", name="namesake_sql")
"""


@pytest.fixture(scope="module")
def files(idle_engine: Engine) -> list[ModuleType]:
    """One folder with two such files and its worker; the test process has them too."""
    for name in ("namesake_one", "namesake_two"):
        folder = write_dags(idle_engine.folder, name, SOURCE.replace("{file}", name))
    load_dags(folder)
    idle_engine.start_worker(folder)
    return [sys.modules[name] for name in ("namesake_one", "namesake_two")]


def test_a_start_by_the_step_runs_that_step(idle_engine: Engine, files: list[ModuleType]) -> None:
    """Each runs its own code and records under the shared name; forks of it too."""
    for module in files:
        run = idle_engine.client.start(module.namesake, 1)
        assert run.result(20) == module.__name__
        assert idle_engine.effects(run) == [module.__name__]
        assert idle_engine.run(module.namesake_sql) == [{"file": module.__name__}]
        assert run.fork("namesake").result(20) == module.__name__


def test_a_start_by_the_name_alone_is_told_apart_by_nobody(idle_engine: Engine, files: list[ModuleType]) -> None:
    """The run fails, and its error names both and what to do."""
    with pytest.raises(NotFound, match=r"several steps 'namesake': namesake_one:namesake, namesake_two:namesake\. .*client\.start"):
        idle_engine.run("namesake", 1)


@pytest.mark.parametrize("option", ["run_id", "deduplicate"])
def test_a_run_id_is_not_shared_by_both(idle_engine: Engine, files: list[ModuleType], option: str) -> None:
    """The same id, or the same text, and the same arguments: the run of that step, but a conflict for the other one."""
    one, two = files
    first = idle_engine.client.start(one.namesake, 7, **{option: f"shared-{option}"}, delay=3600)
    again = idle_engine.client.start(one.namesake, 7, **{option: f"shared-{option}"}, delay=3600)
    assert (again.run, again.created) == (first.run, False)
    with pytest.raises(RunConflict, match="is of step namesake_one:namesake, not of namesake_two:namesake"):
        idle_engine.client.start(two.namesake, 7, **{option: f"shared-{option}"}, delay=3600)


@pytest.mark.parametrize("reference", ["namesake_one:namesake", "flows.namesake_one:namesake"])
def test_a_step_is_found_whatever_its_module_is_called_where_it_was_started(idle_engine: Engine, files: list[ModuleType], reference: str) -> None:
    """An application may import the file as a part of its package; the worker has the folder only."""
    run_id = reference.replace(":", "-")
    idle_engine.db.sql("select onceflow.start_run('namesake', '[1]', %s, task_kind => 'step', fn => %s)", run_id, reference)
    assert idle_engine.client.find(run_id, "namesake").result(20) == "namesake_one"
