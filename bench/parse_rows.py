"""The dag processor: 10,000 small files, all of them once, then none of them, then one that is edited."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures

DAG = """
from datetime import datetime
from onceflow import dag, task

@dag(dag_id="many_{number}", schedule="0 6 * * *", start_date=datetime(2026, 1, 1))
def many():
    @task
    def extract() -> list[int]:
        return [1, 2, 3]

    @task
    def load(rows: list[int]) -> int:
        return sum(rows)

    load(extract())
"""


@contextlib.contextmanager
def scheduler(place: BenchPlace, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler process on that folder, ended by its id."""
    environment = {**os.environ, "ONCEFLOW_DSN": place.dsn("worker"), "ONCEFLOW_LOG_LEVEL": "warning"}
    process = subprocess.Popen([sys.executable, "-m", "onceflow", "scheduler", "--dags", str(folder)], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def many_files(place: BenchPlace, count: int) -> Iterator[Path]:
    place.sql("truncate onceflow.dag_file, onceflow.dag_folder")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        for number in range(count):
            (folder / f"many_{number}.py").write_text(DAG.format(number=number))
        yield folder


def parse_all(place: BenchPlace, size: Size) -> Figures:
    """Seconds from the start of a scheduler that has never seen the folder until every file is in the database."""
    with many_files(place, files := size.files) as folder:
        started = time.monotonic()
        with scheduler(place, folder):
            place.await_true("select count(*) >= %s from onceflow.dag_file", files)
            return {"parse_10000": (time.monotonic() - started, "s")}


def watch_all(place: BenchPlace, size: Size) -> Figures:
    """Per cent of a core that a scheduler needs while no file changes: everything it does, its ticks too."""
    with many_files(place, files := size.files) as folder, scheduler(place, folder) as process:
        place.await_true("select count(*) >= %s from onceflow.dag_file", files)
        time.sleep(size.settle_s)
        before = read_cpu_s(process.pid)
        time.sleep(size.steady_s)
        return {"parse_10000_steady": (100 * (read_cpu_s(process.pid) - before) / size.steady_s, "% of a core")}


def see_edit(place: BenchPlace, size: Size) -> Figures:
    """Seconds from the edit of one of the files to its new version, the worst of ten."""
    with many_files(place, files := size.files) as folder, scheduler(place, folder):
        place.await_true("select count(*) >= %s from onceflow.dag_file", files)
        worst = 0.0
        for number in range(2 * size.repeats):
            file = folder / f"many_{number}.py"
            started = time.monotonic()
            file.write_text(file.read_text().replace("load(extract())", "load(extract()) >> extract()"))
            place.await_true("select max(number) = 2 from onceflow.dag_version where dag_id = %s", f"many_{number}")
            worst = max(worst, time.monotonic() - started)
        return {"parse_10000_edit": (worst, "s")}


def read_cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
