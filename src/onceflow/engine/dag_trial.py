"""Trying a dag out: one run of it in this process, on a throw-away database, or for real on yours."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.plan import describe_dag
from onceflow.authoring.testing import Setup, TrialRun
from onceflow.codec import decode, decode_error
from onceflow.codec.exceptions import find_user_frames
from onceflow.db.migrate import check_schema
from onceflow.db.sync_runner import connect
from onceflow.engine import requests
from onceflow.engine.client import Client, RunHandle
from onceflow.engine.requests import StartOptions
from onceflow.engine.trial import Trial, await_run, worker_thread
from onceflow.engine.worker import Worker
from onceflow.errors import AuthoringError, InvalidTransition, OnceflowError
from onceflow.settings import check_dsn, load_settings, mask_dsn

CALLBACKS_S = 10.0
Query = Callable[..., list[tuple[Any, ...]]]

_TASKS = """select task_id || case when map_index >= 0 then '[' || map_index || ']' else '' end, state from onceflow.task_instance
    where run = %s order by logical_date, start_date nulls last, task_id, map_index"""
_ENTRIES = """select task_id || case when map_index >= 0 then '[' || map_index || ']' else '' end, output::text, error::text from onceflow.step_ledger
    where dag_run = %s and final and step_key = task_id order by id"""


def run_dag_test(
    dag: DAG,
    *,
    logical_date: datetime | None = None,
    params: dict[str, Any] | None = None,
    setup: Setup | Sequence[Setup] = (),
    dsn: str | None = None,
) -> TrialRun:
    """What `dag.test(...)` does."""
    options = StartOptions(run_id=requests.make_run_id("test"), logical_date=logical_date, run_type="test")
    if dsn is not None:
        if setup != ():
            raise AuthoringError(f"{dag.dag_id}.test: setup prepares a throw-away database; with dsn the run works on yours as it is. Drop one of them.")
        return _run_on_real_database(check_dsn(dsn, f"argument dsn of {dag.dag_id}.test"), dag, params, options)
    describe_dag(dag)  # a mistake in it is told before a server is started
    with Trial(setup) as trial:
        run = _start(trial.client, dag, params, options)
        _wait(run, lambda: trial.wait(run))
        _await_callbacks(trial.query, run)
        return _read(trial.query, run)


def _start(client: Client, dag: DAG, params: dict[str, Any] | None, options: StartOptions) -> RunHandle[Any]:
    return client._start(*client._drive(requests.read_trigger(dag, params, options)))


def _wait(run: RunHandle[Any], wait: Callable[[], Any]) -> None:
    """A run that has ended is a result, whatever it came to; what kept it from its end is raised."""
    try:
        wait()
    except OnceflowError:
        if run.state not in requests.ENDED:
            raise


def _await_callbacks(query: Query, run: RunHandle[Any]) -> None:
    until = time.monotonic() + CALLBACKS_S
    while query("select 1 from onceflow.callback where run = %s", run.run) and time.monotonic() < until:
        time.sleep(0.01)


def _read(query: Query, run: RunHandle[Any]) -> TrialRun:
    found = TrialRun(run.dag_id, run.run_id, run.state, dict(query(_TASKS, run.run)), {}, {})
    for task, output, error in query(_ENTRIES, run.run):
        if error is not None:
            found.errors[task] = raised = decode_error(error)
            print(f"task {task} of {run.dag_id}: {type(raised).__name__}: {raised}", file=sys.stderr)
            print(find_user_frames(json.loads(error).get("traceback") or ""), file=sys.stderr)
        elif output is not None:
            found.outputs[task] = decode(output)
    return found


def _run_on_real_database(dsn: str, dag: DAG, params: dict[str, Any] | None, options: StartOptions) -> TrialRun:
    """A worker in this process serves the dag's queues beside those that are there already: its tasks may run there as well."""
    check_schema(dsn)
    settings = load_settings()
    is_usual = dsn == settings.dsn  # else the other logins of the settings lead to another database
    queues = tuple(sorted({settings.queues[0], *(task.options.queue for task in dag.tasks.values() if task.options.queue)}))
    mine = replace(settings, dsn=dsn, queues=queues, step_dsn=settings.step_dsn if is_usual else None, direct_dsn=settings.direct_dsn if is_usual else None)
    print(f"onceflow: {dag.dag_id}.test runs on {mask_dsn(dsn)}: its effects are real and stay (run {options.run_id}, type test)", file=sys.stderr)

    def query(text: str, *args: Any) -> list[tuple[Any, ...]]:
        with connect(dsn, "onceflow-trial") as conn:
            return conn.execute(text.encode(), args).fetchall()

    with Client(dsn) as client:
        client.pause_new_dags = False
        client._make_known(dag)
        _check_known(query, dag)
        with worker_thread(Worker(mine, is_test=True)) as worker:
            run = _start(client, dag, params, options)
            _wait(run, lambda: await_run(client, run, worker, lambda _: None))
            return _read(query, run)


def _check_known(query: Query, dag: DAG) -> None:
    """A run goes by what the database knows of the dag."""
    is_paused, plan = query(
        "select d.is_paused, v.plan from onceflow.dag d left join onceflow.dag_version v on v.id = d.version where d.dag_id = %s", dag.dag_id
    )[0]
    if is_paused:
        raise InvalidTransition(f"{dag.dag_id}.test: the dag is paused there, so the run would wait: onceflow dags unpause {dag.dag_id}; or test without dsn")
    if plan is not None and json.loads(json.dumps(describe_dag(dag))) != plan:
        raise InvalidTransition(
            f"{dag.dag_id}.test: the database knows another version of the dag, by which the run would go. "
            "Let a scheduler or worker read this file first; or test without dsn."
        )
