"""The show: statement files, two workers, a SIGKILL in the middle of open transactions, and the proof afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psycopg

from onceflow import Client
from onceflow.db.embedded import ensure_database, stop_server
from onceflow.demo import proof
from onceflow.demo.expectation import Expectation, find_statements, foresee
from onceflow.demo.flows import import_statement
from onceflow.demo.processes import kill_worker, lay_out_dags, start_worker, stop_worker
from onceflow.demo.report import Report
from onceflow.errors import OnceflowError

SCHEMA = Path(__file__).with_name("schema.sql")
# How many runs are stopped half-way, so that the killed worker surely is inside a transaction.
HELD_RUNS = 3
WAIT_S = 20.0

WORKERS = "select pid, id from onceflow.worker"
UNFINISHED = "select count(*) from onceflow.dag_run where dag_id = 'import_statement' and state not in ('success', 'failed')"
# Which run is stuck in a step behind our lock, who has its lease, and that worker's stuck transactions: a step's
# connection names its worker. backend_xid is there once the transaction has written something.
STUCK = """
select l.run_id, w.pid, l.worker, stuck.xids from onceflow.lease l
join onceflow.worker w on w.id = l.worker
cross join lateral (
    select array_agg(a.backend_xid::text) as xids from pg_stat_activity a
    where starts_with(a.application_name, 'onceflow-step:' || l.worker || ':') and %(holder)s = any(pg_blocking_pids(a.pid))) as stuck
where l.run_id = any(%(runs)s)
and cardinality(stuck.xids) = (select count(*) from onceflow.lease m where m.worker = l.worker and m.run_id = any(%(runs)s))"""


@dataclass(frozen=True)
class Server:
    """The logins of one running database, as DSNs."""

    admin: str
    app: str
    worker: str
    step: str
    auditor: str


def run_demo(*, verbose: bool = False) -> int:
    """Run the whole show; 0 only if every claim of the proof holds. Leaves no process and no file behind."""
    report = Report(verbose=verbose)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _leave)  # so that a `timeout` or a closing terminal cleans up too
    try:
        holds = _perform(report)
    except KeyboardInterrupt:
        report.say("Interrupted; everything was stopped and removed.")
        return 130
    except (OnceflowError, psycopg.Error, OSError, RuntimeError, subprocess.SubprocessError) as error:
        report.fail(error)
        return 1
    report.close(holds, time.monotonic() - started)
    return 0 if holds else 1


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _perform(report: Report) -> bool:
    expected = [foresee(path) for path in find_statements()]
    with ExitStack() as stack:
        folder = make_folder(stack)
        server = start_server(folder / "postgres", stack)
        with psycopg.connect(server.app) as app:
            app.execute(SCHEMA.read_bytes())
        report.open(expected, folder)
        stack.enter_context(_logs_on_failure(report, folder))
        workers = _start_workers(folder, server, stack)
        kill = _kill_in_the_middle(server, workers, expected)
        report.show_kill(kill)
        with psycopg.connect(server.auditor, autocommit=True) as auditor:
            _wait_until(lambda: _value(auditor, UNFINISHED) == 0, "all runs have ended", 40)
            return report.show_proof(auditor, expected, kill)


def make_folder(stack: ExitStack) -> Path:
    """A temporary folder, removed when the stack unwinds."""
    folder = Path(tempfile.mkdtemp(prefix="onceflow-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    if os.geteuid() == 0:
        folder.chmod(0o711)  # Postgres does not run as root: the account it gets must be able to pass through
    return folder


@contextmanager
def _logs_on_failure(report: Report, folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception:
        report.show_logs(sorted(folder.glob("*.log")))
        raise


def start_server(folder: Path, stack: ExitStack) -> Server:
    """The bundled Postgres in the folder, migrated; stopped when the stack unwinds."""
    stack.callback(stop_server, folder, "immediate")
    server = ensure_database(folder)
    return Server(
        admin=server.dsn(),
        app=server.dsn("app"),
        worker=server.dsn("worker"),
        step=server.dsn("onceflow_step"),
        auditor=server.dsn("auditor"),
    )


def _start_workers(folder: Path, server: Server, stack: ExitStack) -> dict[int, subprocess.Popen[bytes]]:
    dags = lay_out_dags(folder)
    workers: dict[int, subprocess.Popen[bytes]] = {}
    for name in ("first", "second"):
        worker = start_worker(dags, folder / f"{name}.log", dsn=server.worker, step_dsn=server.step)
        stack.callback(stop_worker, worker)
        workers[worker.pid] = worker

    def are_registered() -> bool:
        ended = [worker.args for worker in workers.values() if worker.poll() is not None]
        if ended:
            raise RuntimeError(f"a worker ended before its first task: {ended[0]!r}")
        return workers.keys() <= dict(conn.execute(WORKERS).fetchall()).keys()

    with psycopg.connect(server.admin, autocommit=True) as conn:
        _wait_until(are_registered, "both workers are registered")
    return workers


def _kill_in_the_middle(server: Server, workers: dict[int, subprocess.Popen[bytes]], expected: Sequence[Expectation]) -> proof.Kill:
    """Start every run, stop some half-way, SIGKILL the worker that has most of them."""
    half_way = [want for want in expected if len(want.accounts) > 1][:HELD_RUNS]
    with (
        hold_accounts(server.app, [want.accounts[1] for want in half_way]) as holder,
        psycopg.connect(server.admin, autocommit=True) as conn,
        Client(server.app) as client,
    ):
        for want in expected:
            client.using(run_id=want.run_id).start(import_statement, str(want.path))
        query = {"runs": [want.run_id for want in half_way], "holder": holder}
        _wait_until(lambda: len(conn.execute(STUCK, query).fetchall()) == len(half_way), "runs are inside a step")
        stuck = conn.execute(STUCK, query).fetchall()
        holders = [pid for _, pid, _, _ in stuck]
        victim = max(workers.keys() & set(holders), key=holders.count)
        kill_worker(workers[victim])
        at = conn.execute("select clock_timestamp()").fetchall()[0][0]
    held = [row for row in stuck if row[1] == victim]
    return proof.Kill(worker=held[0][2], pid=victim, at=at, runs=frozenset(row[0] for row in held), xids=tuple(held[0][3]))


@contextmanager
def hold_accounts(dsn: str, accounts: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Keep the rows of these accounts locked: steps that post on them wait, inside their own transactions.

    Yields the process id of the locking backend. Whoever waits goes on when the block ends.
    """
    with psycopg.connect(dsn) as conn:
        for account in accounts:
            conn.execute("insert into account (number, currency) values (%s, %s) on conflict do nothing", account)
        conn.commit()
        for account in sorted(accounts):
            conn.execute("select from account where number = %s and currency = %s for update", account)
        yield conn.info.backend_pid
        conn.rollback()


def _wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout_s:.0f} s in vain until {what}")
        time.sleep(0.005)


def _value(conn: proof.Connection, query: str) -> int:
    return int(conn.execute(query.encode()).fetchall()[0][0])
