"""Real worker processes for tests: started, stopped, frozen and killed by pid, never by name.

A test writes its dag file with `write_dags`, starts workers through the `workers` fixture and does to them what
operating systems do: `kill()` is SIGKILL, `stop()` is SIGSTOP. Whatever happens, nothing outlives the test.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.database import TestDatabase

LOG_TAIL_LINES = 60
PR_SET_PDEATHSIG = 1


def die_with_parent(signal_number: int) -> Callable[[], None] | None:
    """What a child runs before exec so that it gets `signal_number` when the test session dies, even by SIGKILL.

    Only Linux can do this; elsewhere None, and a killed session leaves its processes behind.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal_number)


def write_dags(tmp_path: Path, name: str, source: str) -> Path:
    """Write the dedented source as module `name` under tmp_path/dags; return that folder."""
    folder = tmp_path / "dags"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(source).lstrip("\n"))
    return folder


@dataclass
class WorkerProcess:
    """One `onceflow worker` of this test, with its log in a file."""

    process: subprocess.Popen[bytes]
    log: Path
    stopped: bool = False

    @property
    def pid(self) -> int:
        """The operating system's pid; `onceflow.worker` shows the same one."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Is the process there (frozen counts as there)?"""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has it: no code of the worker runs after this returns."""
        self._send(signal.SIGKILL)
        self.process.wait(timeout=10)

    def stop(self) -> None:
        """SIGSTOP: freeze the worker as a long pause of its machine would."""
        self._send(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT: let a frozen worker go on where it was."""
        self._send(signal.SIGCONT)
        self.stopped = False

    def terminate(self, timeout: float = 30) -> int:
        """SIGTERM, and wait for the drained exit; returns the exit code. Fails with the log if it does not come."""
        self._send(signal.SIGTERM)
        try:
            return self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {self.pid} did not exit within {timeout} s after SIGTERM; its log ends:\n{self.log_tail()}") from None

    def end(self) -> None:
        """Be gone, whatever the state: used at teardown."""
        if self.running:
            self.kill()

    def log_text(self) -> str:
        """All the worker wrote to stdout and stderr up to now."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """The last lines of the log, for messages."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def wait_ready(self, db: TestDatabase, timeout: float = 30) -> WorkerProcess:
        """Wait until the worker has registered itself in `onceflow.worker`; fails at once if it exited."""
        db.wait_for(
            "select count(*) from onceflow.worker where pid = %s and host = %s",
            self.pid,
            os.uname().nodename,
            timeout=timeout,
            unless=self._exit_report,
        )
        return self

    def _exit_report(self) -> str | None:
        if self.running:
            return None
        return f"worker {self.pid} exited with code {self.process.returncode}; its log ends:\n{self.log_tail()}"

    def _send(self, signal_number: int) -> None:
        if self.running:
            self.process.send_signal(signal_number)


def start_worker(
    db: TestDatabase,
    dags: Path,
    *,
    concurrency: int = 4,
    queues: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    log: Path,
) -> WorkerProcess:
    """Start `onceflow worker` on the test's database, with the login roles of a real installation."""
    command = [sys.executable, "-m", "onceflow", "worker", "--dags", str(dags), "--concurrency", str(concurrency)]
    if queues:
        command += ["--queues", ",".join(queues)]
    return start_process(command, env={**worker_environment(db), **(env or {})}, log=log)


def worker_environment(db: TestDatabase) -> dict[str, str]:
    """The variables that point a process at the test's database; the caller's own ONCEFLOW_* are left out."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ONCEFLOW_", "PG"))}
    return {
        **inherited,
        "ONCEFLOW_DSN": db.worker_dsn,
        "ONCEFLOW_STEP_DSN": db.step_dsn,
        "ONCEFLOW_DIRECT_DSN": db.direct_dsn,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def start_process(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> WorkerProcess:
    """Start any command as a child that dies with the test session; its output is appended to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=log.parent,
            start_new_session=True,  # a Ctrl-C in the terminal ends the tests; the tests end the workers
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    return WorkerProcess(process, log)


@dataclass
class Workers:
    """What the `workers` fixture gives: starts worker processes and knows them all until teardown."""

    db: TestDatabase
    folder: Path
    started: list[WorkerProcess] = field(default_factory=list)

    def start(
        self,
        dags: Path,
        *,
        concurrency: int = 4,
        queues: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        wait_ready: bool = True,
    ) -> WorkerProcess:
        """Start one worker; by default return once it is registered."""
        log = self.folder / f"worker-{len(self.started) + 1}.log"
        worker = start_worker(self.db, dags, concurrency=concurrency, queues=queues, env=env, log=log)
        self.started.append(worker)
        return worker.wait_ready(self.db) if wait_ready else worker

    def end_all(self) -> None:
        """End every worker of the test, frozen ones too (SIGKILL needs no SIGCONT)."""
        for worker in self.started:
            worker.end()

    def log_report(self) -> str:
        """The tail of every log, for the report of a failed test."""
        return "\n".join(f"--- {one.log.name} (pid {one.pid}) ---\n{one.log_tail()}" for one in self.started)
