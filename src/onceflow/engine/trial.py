"""Trying workflows out: a worker in this process, on a throw-away database whose clock skips what only waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import psycopg

from onceflow.authoring import registry
from onceflow.authoring.context import worker_process
from onceflow.authoring.step import Step
from onceflow.authoring.testing import Setup
from onceflow.authoring.workflow import Workflow
from onceflow.codec.exceptions import find_user_frames
from onceflow.db.migrate import check_schema
from onceflow.db.sync_runner import connect
from onceflow.db.throw_away import throw_away
from onceflow.engine import requests
from onceflow.engine.client import Client, RunHandle
from onceflow.engine.requests import Pause, Request, StartOptions
from onceflow.engine.worker import Worker
from onceflow.errors import AuthoringError, InvalidArgument, WaitTimeout
from onceflow.settings import Settings, check_dsn, load_settings, mask_dsn

P = ParamSpec("P")
R = TypeVar("R")
LOOK_S = 0.02
A_DAY_S = 86_400.0
LEAVE_S = 15.0

# Without a configuration Python would print the engine's warnings bare; what they tell of is raised in the test anyway.
logging.getLogger("onceflow").addHandler(logging.NullHandler())

# Whatever works, or may be claimed, is a row of ready, lease or wake_up. With none of them nothing happens before the first moment that is due.
_STANDS_STILL = """
    with due(at) as (
        select due_at from onceflow.timer union all select due_at from onceflow.callback union all
        select q.due_at from onceflow.queued_run q join onceflow.dag d on d.dag_id = q.dag_id
        where not d.is_paused and (select count(*) from onceflow.active_run a where a.dag_id = q.dag_id) < d.max_active_runs)
    select (select min(at) from due), (select array_agg(distinct w.kind || case when w.target <> '' then ' ' || w.target else '' end) from onceflow.wait w)
    where not exists (select from onceflow.ready) and not exists (select from onceflow.lease) and not exists (select from onceflow.wake_up)
        and not exists (select from onceflow.trigger where not is_manual)"""
_SKIP = """
    with skipped as (update onceflow.skipped set by = by + greatest(interval '0', %s - clock_timestamp() - by) returning clock_timestamp() + by as now)
    update onceflow.worker set heartbeat_at = skipped.now from skipped where ended_at is null"""


class Trial:
    """A throw-away database with a worker, for the `with` block: run workflows and steps on it, look into it, throw it away.

    `setup` prepares the database, as login app: SQL text, the Path of a file of SQL, a function of a psycopg connection, or several of these.
    `client` starts runs there, `dsn` is the login app. Bodies are suspended at every durable wait, so each wait replays them; waits
    for a time are skipped.

    >>> with Trial(setup="create table account (id int primary key, balance int)") as trial:  # doctest: +SKIP
    ...     trial.run(transfer, 1, 2, 10)
    ...     trial.query("select balance from account order by id")
    'moved 10'
    [(90,), (110,)]
    """

    client: Client
    dsn: str

    def __init__(self, setup: Setup | Sequence[Setup] = ()) -> None:
        self._setup = [setup] if isinstance(setup, str | Path) or callable(setup) else list(setup)

    def __enter__(self) -> Trial:
        settings = load_settings()
        with ExitStack() as stack:
            database = stack.enter_context(throw_away(settings.embedded_dir))
            self.dsn = database.dsn("app")
            with connect(self.dsn, "onceflow-trial", autocommit=False) as conn:
                for part in self._setup:
                    _prepare(conn, part)
            self._admin = stack.enter_context(connect(database.dsn("postgres"), "onceflow-trial"))
            self.client = stack.enter_context(Client(self.dsn))
            self.client.pause_new_dags = False
            self._worker = stack.enter_context(worker_thread(Worker(_settings_for(settings, database.dsn("worker"), database.dsn("onceflow_step")))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def run(self, target: Workflow[P, R] | Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Starts a run and answers its result, or raises its error."""
        return self.wait(self.client.using(run_type="test").start(target, *args, **kwargs))

    def wait(self, run: RunHandle[R]) -> R:
        """The result of a run that `client` started, or its error. Time is skipped when nothing but time is waited for; WaitTimeout when nothing can come."""
        return cast(R, await_run(self.client, run, self._worker, self._let_time_pass))

    def query(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, run and committed as login app; arguments stand at %s."""
        with connect(self.dsn, "onceflow-trial") as conn:
            cursor = conn.execute(text.encode(), args or None)
            return cursor.fetchall() if cursor.description else []

    def _let_time_pass(self, run: RunHandle[Any]) -> None:
        found = self._admin.execute(_STANDS_STILL).fetchone()
        if found is None:
            return
        due, waits = found
        if due is not None:
            self._admin.execute(_SKIP, (due,))
            self._admin.execute("select pg_notify('onceflow_ready', '')")
        elif run.state not in requests.ENDED:
            raise WaitTimeout(
                f"run {run.run_id} of {run.dag_id} waits for ever, for {', '.join(waits or ['a worker'])}: nothing else runs that could end the wait. "
                "Start it with trial.client, send what it waits for, then call trial.wait(run); or give the wait a timeout."
            )


def run_test(
    workflow: Workflow[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    setup: Setup | Sequence[Setup] = (),
    dsn: str | None = None,
    timeout: float | timedelta | None = None,
) -> R:
    """What `workflow.test(...)` does."""
    workflow.bind(args, kwargs)  # a mistake in the call is told before a server is started
    options = StartOptions(run_id=requests.make_run_id("test"), timeout=timeout, run_type="test")
    if dsn is not None:
        if setup != ():
            raise AuthoringError(f"{workflow.name}.test: setup prepares a throw-away database; with dsn the run works on yours as it is. Drop one of them.")
        return _run_on_real_database(check_dsn(dsn, f"argument dsn of {workflow.name}.test"), workflow, args, kwargs, options)
    with Trial(setup) as trial:
        return cast(R, trial.wait(trial.client._start(workflow, args, kwargs, options)))


def _run_on_real_database(dsn: str, workflow: Workflow[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> R:
    """Its worker serves a queue of its own, so neither takes the other workers' tasks nor they the test's."""
    check_schema(dsn)
    settings = load_settings()
    queue = f"test-{secrets.token_hex(6)}"
    is_usual = dsn == settings.dsn  # else the other logins of the settings lead to another database
    mine = replace(settings, dsn=dsn, queues=(queue,), step_dsn=settings.step_dsn if is_usual else None, direct_dsn=settings.direct_dsn if is_usual else None)
    print(f"onceflow: {workflow.name}.test runs on {mask_dsn(dsn)}: its effects are real and stay (run {options.run_id}, type test)", file=sys.stderr)
    with Client(dsn) as client, worker_thread(Worker(mine, is_test=True)) as worker:
        run = client._start(workflow, args, kwargs, replace(options, queue=queue))
        try:
            return cast(R, await_run(client, run, worker, lambda _: None))
        except BaseException:
            with Client(dsn) as other:  # that of the run may be in the middle of a question
                if (left := other.find(run.run_id, run.dag_id)).state not in requests.ENDED:
                    left.cancel("its test was interrupted")
            raise


def _settings_for(settings: Settings, dsn: str, step_dsn: str) -> Settings:
    """Of a throw-away database. Nothing runs out while somebody stands at a breakpoint; no other database is known, so none is written to."""
    of_tasks = {task.options.queue for dag in registry.list_dags() for task in dag.tasks.values() if task.options.queue}
    queues = tuple(sorted({"default", *of_tasks, *(w.queue for w in registry.list_workflows())}))
    return replace(
        settings,
        dsn=dsn,
        step_dsn=step_dsn,
        direct_dsn=None,
        databases=(),
        pause_new_dags=False,
        queues=queues,
        lease_s=A_DAY_S,
        step_idle_s=A_DAY_S,
        suspend_after_s=0.0,
        poll_s=0.1,
        drain_s=0.0,
    )


def _prepare(conn: psycopg.Connection[Any], part: Setup) -> None:
    if callable(part):
        part(conn)
    elif isinstance(part, str | Path):
        text = part.read_text(encoding="utf-8") if isinstance(part, Path) else part
        conn.execute(text.encode())
    else:
        raise InvalidArgument(f"setup must be SQL text, a Path, a function of a connection, or a list of these, not {part!r}")


class WorkerThread:
    """A worker in a thread of its own, with an event loop of its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.new_event_loop()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onceflow-trial", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._worker.run())
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raises what ended the worker before its time."""
        if not self._thread.is_alive():
            raise RuntimeError("the worker of the test has ended") from self._error

    def stop(self) -> None:
        """Drains it. A body or step that cannot be ended is left behind, in a thread whose records are refused."""
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            print("onceflow: a step or body of the test goes on in its thread, for nothing. Ctrl-C ends the process.", file=sys.stderr)


@contextlib.contextmanager
def worker_thread(worker: Worker) -> Iterator[WorkerThread]:
    thread = WorkerThread(worker)
    try:
        yield thread
    finally:
        thread.stop()


def await_run(client: Client, run: RunHandle[Any], worker: WorkerThread, look: Any) -> Any:
    with worker_process():
        return client._drive(_watch(requests.await_result(run.run, None), run, worker, look))


def _watch(request: Request, run: RunHandle[Any], worker: WorkerThread, look: Any) -> Request:
    """The request, with a look at worker and clock at each of its pauses; an error it ends with tells where it was raised."""
    answer: Any = None
    while True:
        try:
            asked = request.send(answer)
        except StopIteration as end:
            return end.value
        except Exception as error:
            _show_traceback(error, answer)
            raise
        if isinstance(asked, Pause):
            worker.check()
            look(run)
            asked = Pause(min(asked.seconds, LOOK_S))
        answer = yield asked


def _show_traceback(error: Exception, answer: Any) -> None:
    """Shows where the error was raised, in place of the advice to look into a database that is gone in a moment."""
    text = json.loads(answer["error"] or "{}").get("traceback") if isinstance(answer, dict) else None
    if text:
        error.__notes__ = [*getattr(error, "__notes__", [])[:-1], "Raised on the worker of the test, at:\n" + find_user_frames(text)]
