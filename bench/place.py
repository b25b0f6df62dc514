"""The server and the processes of a measurement: everything durable is on, as in production."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from onceflow.db.embedded import EmbeddedServer, ensure_database, start_server, stop_server

FLOWS = Path(__file__).with_name("flows.py")
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SERVER = {"max_connections": "700"}  # a hundred idle workers
TEMPLATE = "onceflow"


@dataclass
class BenchPlace:
    """A bundled server, and on it a database with the engine's schema and one table of effects. `renew` makes a fresh one: no row feels the rows before it."""

    folder: Path
    server: EmbeddedServer
    made: int = 0

    @property
    def database(self) -> str:
        return f"bench_{self.made}"

    def dsn(self, user: str = "postgres") -> str:
        return self.server.dsn(user, self.database)

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(user), autocommit=True)

    def sql(self, text: str, *args: Any) -> list[Any]:
        with self.connect() as conn:
            cursor = conn.execute(text, args)
            return cursor.fetchall() if cursor.description else []

    def renew(self) -> None:
        """Another database, as it is after migrate; the one before is dropped."""
        with psycopg.connect(self.server.dsn("postgres", "postgres"), autocommit=True) as conn:
            conn.execute(f"drop database if exists {self.database} with (force)".encode())
            self.made += 1
            conn.execute(f"create database {self.database} template {TEMPLATE}".encode())

    def ceiling(self, seconds: int = 5, clients: int = 16) -> float:
        """Transactions per second of pgbench doing BEGIN, INSERT, COMMIT."""
        script = self.folder / "ceiling.sql"
        script.write_text("begin;\ninsert into effect(n) values (1);\ncommit;\n")
        command = [str(self.server.bin("pgbench")), "-n", "-f", str(script), "-c", str(clients), "-j", "2", "-T", str(seconds), self.dsn()]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.sql("truncate effect")
        found = re.search(r"tps = ([\d.]+)", out)
        assert found, out
        return float(found[1])

    @contextlib.contextmanager
    def worker(self, concurrency: int = 32, count: int = 1, **settings: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Worker processes that are ready, ended by their ids."""
        environment = {
            **os.environ,
            "ONCEFLOW_DSN": self.dsn("worker"),
            "ONCEFLOW_STEP_DSN": self.dsn("onceflow_step"),
            "ONCEFLOW_LOG_LEVEL": "warning",
            **settings,
        }
        command = [sys.executable, "-m", "onceflow", "worker", "--dags", str(FLOWS), "--concurrency", str(concurrency)]
        processes = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
        try:
            self.await_ready(processes)
            yield processes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                end_process(process)

    def await_ready(self, processes: list[subprocess.Popen[bytes]]) -> None:
        pids = [process.pid for process in processes]
        while self.sql("select count(*) from onceflow.worker where pid = any(%s)", pids) != [(len(pids),)]:
            if ended := [process.returncode for process in processes if process.poll() is not None]:
                raise RuntimeError(f"a worker ended with exit code {ended[0]} before it was ready; what it said stands above")
            time.sleep(0.05)

    def await_true(self, query: str, *args: Any, timeout_s: float = 300.0, every_s: float = 0.05) -> None:
        """Asks again and again until the answer is true."""
        until = time.monotonic() + timeout_s
        with self.connect() as conn:
            while not conn.execute(query, args).fetchone()[0]:  # type: ignore[index]
                if time.monotonic() > until:
                    raise TimeoutError(f"not true after {timeout_s} s: {query}")
                time.sleep(every_s)

    def crash_and_recover(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """kill -9 of Postgres and of the processes, then a start from its write-ahead log: what is counted after it was durable."""
        for pid in (self.server.pid, *[process.pid for process in processes]):
            os.kill(pid, signal.SIGKILL)
        self.server = start_server(self.folder, settings=SERVER)


def end_process(process: subprocess.Popen[bytes], patience_s: float = 30.0) -> None:
    """Waits for the end of a process that was told to end, and kills it when it does not."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def bench_place() -> Iterator[BenchPlace]:
    with tempfile.TemporaryDirectory(prefix="onceflow-bench-") as name:
        folder = Path(name) / "server"
        try:
            start_server(folder, settings=SERVER)
            server = ensure_database(folder)
            with psycopg.connect(server.dsn("postgres", TEMPLATE), autocommit=True) as conn:
                for setting, value in DURABLE.items():
                    assert conn.execute("select current_setting(%s)", [setting]).fetchone() == (value,), setting
                conn.execute("create table effect(id bigint generated always as identity primary key, n int)")
                conn.execute("grant all on effect to onceflow_step")
            place = BenchPlace(folder, server)
            place.renew()
            yield place
        finally:
            stop_server(folder, mode="immediate")
