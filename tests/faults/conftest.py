"""The stage of a fault test: a database with a table of effects, gates to stop code at, workers and a client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from onceflow import Client, RunHandle, WaitTimeout
from tests.database import POLL_S, TestDatabase
from tests.faults.checker import check_exactly_once, check_nothing_left
from tests.processes import WorkerProcess, Workers

FLOWS = Path(__file__).with_name("flows")
TABLES = """
    create table effect (
        id bigint generated always as identity primary key, step text not null, key text not null, note text,
        -- who wrote it: the engine names each step's session after its worker
        worker bigint default nullif(split_part(current_setting('application_name'), ':', 2), '')::bigint);
    create table counter (id int primary key, value int not null default 0);
    insert into counter select generate_series(1, 20)
"""


def wait_until(condition: Callable[[], Any], what: str, timeout: float = 30) -> Any:
    """Poll a condition until it holds, and answer its value; fails after `timeout` seconds, saying what did not come."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(POLL_S)
    return value


def let_pass(seconds: float) -> None:
    """Let a fault last for so long: the duration is the fault itself, there is nothing to wait for."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, "the end of the fault", seconds + 5)


@dataclass
class Gates:
    """Where code in workers stops until the test lets it go on."""

    folder: Path

    def open(self, gate: str) -> None:
        """Let everybody through, now and later."""
        (self.folder / f"{gate}.open").touch()

    def make_exit(self, gate: str) -> None:
        """From now on whoever stands at the gate ends its process at once, with code 70."""
        (self.folder / f"{gate}.exit").touch()

    def clear(self, gate: str) -> None:
        """The gate as it was at first."""
        for file in self.folder.glob(f"{gate}[.@]*"):
            file.unlink()

    def who(self, gate: str) -> set[tuple[int, str]]:
        """Process ids and names of all that have come to the gate."""
        parts = [file.name.split("@", 2) for file in self.folder.glob(f"{gate}@*")]
        return {(int(pid), who) for _, pid, who in parts}

    def wait_for(self, gate: str, count: int = 1, timeout: float = 30) -> list[int]:
        """Wait until so many have come to the gate; answers their processes' ids."""
        wait_until(lambda: len(self.who(gate)) >= count, f"{count} at gate {gate}", timeout)
        return [pid for pid, _ in self.who(gate)]


@dataclass
class Stage:
    """What a fault test plays on."""

    db: TestDatabase
    workers: Workers
    gates: Gates
    client: Client
    runs: list[RunHandle[Any]] = field(default_factory=list)

    def start_worker(self, concurrency: int = 8, **settings: Any) -> WorkerProcess:
        """A worker with the workflows in tests/faults/flows; keyword arguments are settings of onceflow, like lease_s=2."""
        env = {"FAULT_GATES": str(self.gates.folder), **{f"ONCEFLOW_{name.upper()}": str(value) for name, value in settings.items()}}
        return self.workers.start(FLOWS, concurrency=concurrency, env=env)

    def start(self, name: str, *args: Any, **options: Any) -> RunHandle[Any]:
        """Start a run; `check` waits for it."""
        run = self.client.start(name, *args, **options)
        self.runs.append(run)
        return run

    def start_step(self, name: str, *args: Any, retries: int = 0, kind: str = "step") -> RunHandle[Any]:
        """Start a run that is a single step: the step's transaction ends the task and the run too."""
        sql = "select onceflow.start_run(%s, %s::jsonb, %s, task_kind => %s, max_tries => %s)"
        run_id = f"{name}-{len(self.runs)}"
        self.db.sql(sql, name, json.dumps(args), run_id, kind, retries)
        self.runs.append(self.client.find(run_id, name))
        return self.runs[-1]

    def start_many(self, name: str, count: int) -> None:
        """Start so many runs in one transaction, with arguments many-1, many-2, …"""
        sql = "select count(onceflow.start_run(%s, to_jsonb(array['many-' || n]), 'many-' || n)) from generate_series(1, %s) n"
        assert self.db.sql(sql, name, count) == [(count,)]

    def check(self, timeout: float = 60) -> int:
        """Every run started ends in success, and every effect happened exactly once; answers how many."""
        for run in self.runs:
            try:
                run.result(timeout)
            except WaitTimeout as stuck:
                stuck.add_note(self.db.dump())
                raise
        self.db.wait_for("select not exists (select from onceflow.run where state is null)")
        check_nothing_left(self.db)
        return check_exactly_once(self.db)

    def worker_id(self, worker: WorkerProcess) -> int:
        """The engine's id of a worker process."""
        return int(self.db.sql("select id from onceflow.worker where pid = %s order by id desc limit 1", worker.pid)[0][0])

    def entries(self, run: RunHandle[Any]) -> list[tuple[str, str, int, str]]:
        """(step key, end state, try, error message) of each ledger entry of a run, in order."""
        return self.db.sql(
            "select step_key, to_state, try_number, coalesce(error ->> 'message', '') from onceflow.step_ledger where dag_run = %s order by id", run.run
        )


@pytest.fixture
def stage(db: TestDatabase, workers: Workers, tmp_path: Path) -> Iterator[Stage]:
    """A stage on the test's own database."""
    with make_stage(db, workers, tmp_path) as made:
        yield made


class make_stage:
    """A stage on any database, with its tables; closes its client."""

    def __init__(self, db: TestDatabase, workers: Workers, folder: Path) -> None:
        gates = folder / "gates"
        gates.mkdir()
        db.sql(TABLES)
        self.stage = Stage(db, workers, Gates(gates), Client(db.app_dsn))

    def __enter__(self) -> Stage:
        return self.stage

    def __exit__(self, *_: object) -> None:
        self.stage.client.close()
