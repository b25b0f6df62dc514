"""The demo's worker processes: real ones, started as anybody would start them, ended by their own process id only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from onceflow.demo import flows

# Shorter than the default (10 s), so that nobody waits long for the rescue of the killed worker's tasks.
LEASE_S = 3.0


def lay_out_dags(folder: Path) -> Path:
    """A folder with the demo's workflow file alone, for `--dags`."""
    dags = folder / "dags"
    dags.mkdir()
    shutil.copy(Path(str(flows.__file__)), dags / "import_statement.py")
    return dags


def start_worker(dags: Path, log: Path, *, dsn: str, step_dsn: str, concurrency: int = 4) -> subprocess.Popen[bytes]:
    """Start one worker process in its own process group; its output goes to the log file.

    The caller's own ONCEFLOW_ variables and onceflow.toml are left out: the demo never touches another database.
    """
    command = [sys.executable, "-m", "onceflow", "worker", "--dags", str(dags), "--concurrency", str(concurrency)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEFLOW_", "PG"))}
    ours = {"ONCEFLOW_DSN": dsn, "ONCEFLOW_STEP_DSN": step_dsn, "ONCEFLOW_LEASE_S": str(LEASE_S)}
    with log.open("wb") as out:
        return subprocess.Popen(command, env=inherited | ours, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def kill_worker(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL: no handler, no farewell; returns when the process is gone."""
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=10)


def stop_worker(worker: subprocess.Popen[bytes]) -> None:
    """Ask the worker to drain and end; kill it if it does not within five seconds. Safe on one that has ended."""
    if worker.poll() is not None:
        return
    worker.terminate()
    try:
        worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        kill_worker(worker)
