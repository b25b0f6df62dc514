"""One worker process for a whole test module: many workflows on one database, so that a test costs milliseconds.

The workflows lie in `flows/`; the test process imports the same files, so a test starts `step_flows.all_kinds` itself.
With `suspend_after_s=0` every durable wait is a suspension: the body leaves memory and is replayed from the ledger.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceflow import Client, RunHandle
from onceflow.engine.loader import load_dags
from tests.database import Template, TestDatabase
from tests.processes import WorkerProcess, Workers
from tests.servers import Server

FLOWS = Path(__file__).parent / "flows"


def load_flows(name: str) -> Any:
    """A module of `flows/`, imported as a worker imports it: its steps and exceptions have the same names here and there."""
    load_dags(FLOWS / f"{name}.py")
    return sys.modules[name]


TABLES = """
create table effect (id bigint generated always as identity primary key, what text not null, note text, xid xid8 not null default pg_current_xact_id());
create table account (id int primary key, balance numeric not null);
insert into account select i, 100 from generate_series(1, 9) i;
"""


@dataclass
class Engine:
    """A module's database, its client and its workers."""

    db: TestDatabase
    workers: Workers
    client: Client
    folder: Path
    dags: Path = FLOWS
    _gates: int = field(default=0)

    def start_worker(self, dags: Path | None = None, **options: Any) -> WorkerProcess:
        """Starts a worker; by default one that suspends a body at its first durable wait."""
        env = {"ONCEFLOW_SUSPEND_AFTER_S": "0", "ONCEFLOW_POLL_S": "0.3", **options.pop("env", {})}
        return self.workers.start(dags or self.dags, env=env, **{"concurrency": 16, **options})

    def run(self, target: Any, *args: Any, timeout_s: float = 20, **kwargs: Any) -> Any:
        """Starts a run and waits for its result."""
        return self.client.start(target, *args, **kwargs).result(timeout_s)

    def effects(self, run: RunHandle[Any]) -> list[str]:
        """What the run's steps have written to `effect`, in order; its name is the run id."""
        return [str(note) for (note,) in self.db.sql("select note from effect where what = %s order by id", run.run_id)]

    def make_gate(self) -> Path:
        """A file that is not there yet: steps called `hold` wait for it."""
        self._gates += 1
        return self.folder / f"gate-{self._gates}"

    def wait_for_entry(self, run: RunHandle[Any], step_key: str, to_state: str, timeout: float = 20) -> None:
        """Waits until the ledger holds that entry."""
        self.db.wait_for(
            "select count(*) from onceflow.step_ledger where dag_run = %s and step_key = %s and to_state = %s", run.run, step_key, to_state, timeout=timeout
        )

    def wait_for_state(self, run: RunHandle[Any], state: str, timeout: float = 20) -> None:
        """Waits until the body's task has that state (deferred, up_for_retry, …)."""
        self.db.wait_for("select count(*) from onceflow.task_instance where run = %s and id = run and state = %s", run.run, state, timeout=timeout)

    def replays(self, run: RunHandle[Any]) -> int:
        """How often the body was suspended, so replayed."""
        return sum(e["to_state"] in ("deferred", "rescued") for e in run.steps())


@pytest.fixture(scope="module")
def idle_engine(request: pytest.FixtureRequest, server: Server, template: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database of the module's own, without a worker. Workers take the module's DAGS, or all of `flows/`."""
    db = template.clone(server)
    folder = tmp_path_factory.mktemp("engine")
    with psycopg.connect(db.app_dsn, autocommit=True) as app:
        app.execute(TABLES)
    workers = Workers(db, folder)
    with Client(db.app_dsn) as client:
        yield Engine(db, workers, client, folder, getattr(request.module, "DAGS", FLOWS))
    workers.end_all()
    template.drop(db)


@pytest.fixture(scope="module")
def engine(idle_engine: Engine) -> Engine:
    """The module's database with one worker."""
    idle_engine.start_worker()
    return idle_engine


@pytest.fixture(autouse=True)
def show_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints what the workers logged during a test, which pytest shows when it fails."""
    found = next((request.getfixturevalue(name) for name in ("engine", "idle_engine") if name in request.fixturenames), None)
    before = {worker.pid: len(worker.log_text()) for worker in found.workers.started} if found else {}
    yield
    if found:
        for worker in found.workers.started:
            print(f"--- {worker.log.name} ---\n{worker.log_text()[before.get(worker.pid, 0) :][-6000:]}")


def wait_until(condition: Callable[[], Any], timeout: float = 20) -> Any:
    """Polls until the condition is truthy; answers its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
    return value
