"""Large values of dags lie in a folder; the ledger holds references to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from onceflow.db.upkeep import find_orphans
from onceflow.engine.stored_values import open_store
from onceflow.errors import NotFound, SettingsError
from onceflow.settings import Settings
from onceflow.storage.orphans import delete_orphans
from onceflow.storage.url_backend import FolderBackend, ObjectBackend, open_url
from tests.engine.local_worker import Engine
from tests.engine.test_dag_context import outputs
from tests.engine.test_dag_operators import run_dag

DAGS = Path(__file__).parent / "flows" / "stored_flows.py"
SIZES = "select task_id, map_index, pg_column_size(output) from onceflow.step_ledger where dag_run = %s and final"


@pytest.fixture(scope="module")
def engine(idle_engine: Engine) -> Engine:
    """Its worker keeps what is larger than 1,000 bytes in a folder."""
    env = {"ONCEFLOW_XCOM_BACKEND": f"file://{idle_engine.folder}/values", "ONCEFLOW_XCOM_THRESHOLD_BYTES": "1000"}
    idle_engine.start_worker(env=env)
    return idle_engine


class Shelf(dict[str, bytes]):
    """A backend of one's own."""

    def write(self, name: str, data: bytes) -> str:
        self[name] = data
        return name

    def read(self, reference: str) -> bytes:
        return self[reference]

    def delete(self, reference: str) -> None:
        del self[reference]

    def list_old(self, older_than_s: float) -> Any:
        return iter(self)


def folder(engine: Engine) -> FolderBackend:
    return FolderBackend(engine.folder / "values")


def test_large_values_go_through_the_folder(engine: Engine) -> None:
    """Returned, pushed, by key, one of several, of mapped tasks; what a task is expanded over stays in the database, which reads it."""
    found = run_dag(engine, "large_values")
    assert found["state"] == "success", found
    assert outputs(engine, found["run"], "total") == [[50, 50, 1, 50, 50, 1, 2, 50, 50]]
    sizes = {(task, index): size for task, index, size in engine.db.sql(SIZES, found["run"])}
    assert {name for name, size in sizes.items() if size > 1000} <= {("items", -1)}
    assert len(list((folder(engine).folder / str(found["run"])).rglob("*.json"))) == 6
    assert engine.db.sql("select count(*) from onceflow.pushed where run = %s and length(value::text) > 1000", found["run"]) == [(0,)]


def test_a_spoilt_or_lost_value_is_told(engine: Engine) -> None:
    """A changed file is not what the task wrote; a missing one is named with its folder."""
    for spoil, message in ((lambda path: path.write_text("[]"), "is not what the task wrote"), (lambda path: path.unlink(), "cannot be read in")):
        gate = engine.make_gate()
        run = engine.client.trigger("lost_value", params={"gate": str(gate)})
        engine.db.wait_for("select count(*) from onceflow.ti where run = %s and task_id = 'give' and state = 'success'", run.run)
        (path,) = (folder(engine).folder / str(run.run)).rglob("*.json")
        spoil(path)
        gate.touch()
        engine.db.wait_for("select state = 'failed' from onceflow.run where id = %s", run.run)
        assert message in engine.db.sql("select error from onceflow.task_instance where run = %s and task_id = 'take'", run.run)[0][0]


def test_what_a_lost_try_wrote_is_deleted(engine: Engine) -> None:
    """Nothing refers to it, and it is old enough; what is referred to, or young, stays."""
    found, backend = run_dag(engine, "large_values"), folder(engine)
    orphan, young = backend.write(f"{found['run']}/7/1-ab.json", b"1"), backend.write(f"{found['run']}/7/2-ab.json", b"1")
    for path in backend.folder.rglob("*.json"):
        if path.as_posix().endswith(young) is False:
            os.utime(path, (0, 0))
    before = set(backend.list_old(60))
    assert orphan in before and young not in before and find_orphans(engine.db.app_dsn, [orphan, "not/ours"]) == [orphan]
    delete_orphans(engine.db.app_dsn, backend, 60)
    left = set(backend.list_old(60))
    assert before - left == {orphan} and backend.read(young) == b"1"


def test_object_storage_by_its_url() -> None:
    """Any store that fsspec knows."""
    backend = open_url("memory://bucket/values")
    assert isinstance(backend, ObjectBackend)
    reference = backend.write("1/2/3.json", b"[1]")
    assert backend.read(reference) == b"[1]" and list(backend.list_old(-60)) == [reference]
    backend.delete(reference)
    backend.delete(reference)
    with pytest.raises(NotFound, match=r"1/2/3.json is not in"):
        backend.read(reference)


def test_a_reference_cannot_leave_the_folder(tmp_path: Path) -> None:
    """What stands in the database is no path to anywhere."""
    with pytest.raises(NotFound, match="lies outside"):
        FolderBackend(tmp_path / "values").read("../secret")


def test_a_backend_of_ones_own_is_named_by_its_class() -> None:
    """It is made without arguments; a name that leads nowhere is refused at the worker's start."""
    store = open_store(Settings(xcom_backend=f"{__name__}:Shelf"))
    assert store is not None and store.backend.read(store.backend.write("a", b"1")) == b"1"
    with pytest.raises(SettingsError, match="cannot be imported"):
        open_store(Settings(xcom_backend="nowhere:Shelf"))
