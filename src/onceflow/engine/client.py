"""The blocking client: starts runs, waits for them, steers them. `AsyncClient` (async_client.py) mirrors it with await."""

from __future__ import annotations

import json
import threading
import time
from datetime import date, datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast

import psycopg

from onceflow.authoring.step import Step
from onceflow.authoring.workflow import Workflow
from onceflow.codec import decode
from onceflow.db import calls, dag_calls
from onceflow.db.calls import Call
from onceflow.db.driver_errors import explain, is_connection_lost, is_refused
from onceflow.db.foreign import run_on_foreign
from onceflow.db.sync_runner import connect, run_call
from onceflow.engine import backfills, requests
from onceflow.engine.backfills import BackfillArguments, BackfillHandle, BackfillOptions, Dag
from onceflow.engine.requests import Pause, Request, Startable, StartOptions
from onceflow.errors import NoDatabase, SettingsError
from onceflow.settings import check_dsn, load_settings, mask_dsn

P = ParamSpec("P")
R = TypeVar("R")
RECONNECT_TRIES = 8


class RunHandle(Generic[R]):
    """A run. `run` is its numeric id, `run_id` and `dag_id` its names; `created` is False when the start found it there."""

    def __init__(self, client: Client, run: int, dag_id: str, run_id: str, created: bool = False) -> None:
        self._client = client
        self.run, self.dag_id, self.run_id, self.created = run, dag_id, run_id, created

    @property
    def state(self) -> str:
        """queued, running, success, failed, cancelled or needs_code."""
        return cast(str, self._client._drive(requests.read_state(self.run)))

    def result(self, timeout_s: float | None = None) -> R:
        """Waits for the end: the result, or the run's error raised. WaitTimeout after `timeout_s` seconds."""
        return cast(R, self._client._drive(requests.await_result(self.run, timeout_s)))

    def cancel(self, reason: str | None = None, actor: str | None = None) -> None:
        """Ends the run and its child runs; an open transaction of a step cannot commit any more."""
        self._client._call(requests.cancel_call(self.run, reason, actor))

    def retry(self, actor: str | None = None) -> None:
        """Tries a failed or cancelled run again; every success in the ledger is reused."""
        self._client._call(requests.retry_call(self.run, actor))

    resume = retry

    def fork(self, from_step: str, run_id: str | None = None, actor: str | None = None) -> RunHandle[R]:
        """A new run of the same arguments that reuses every success recorded before the step with that key."""
        answer = self._client._call(requests.fork_call(self.run, from_step, run_id, actor))
        return RunHandle(self._client, int(answer["run"]), self.dag_id, answer["run_id"], answer["created"])

    def send(self, message: Any, topic: str = "", key: str | None = None) -> bool:
        """Sends a message to the run's recv(topic); False when `key` was sent before."""
        return cast(bool, self._client._drive(requests.send_message(self.run, message, topic, key)))

    def get_event(self, key: str) -> Any:
        """The latest value the run has set under a key; None if there is none yet."""
        answer = self._client._call(requests.event_call(self.run, key))
        return None if answer is None else decode(json.dumps(answer["value"]))

    def steps(self) -> list[dict[str, Any]]:
        """The run's ledger entries in order: step_key, try_number, from_state, to_state, inputs, output, error, …"""
        return cast("list[dict[str, Any]]", self._client._drive(requests.list_steps(self.run)))

    def __repr__(self) -> str:
        return f"<run {self.dag_id}/{self.run_id}>"


class Client:
    """A blocking client; safe to share between threads. Without a DSN it takes ONCEFLOW_DSN.

    Usable as a context manager. Each request survives a lost connection: run ids make starts repeatable.
    """

    def __init__(self, dsn: str | None = None) -> None:
        found = load_settings().dsn if dsn is None else check_dsn(dsn, "Client(dsn)")
        if found is None:
            raise SettingsError("Client() needs a database: pass its DSN or set ONCEFLOW_DSN")
        self.dsn = found
        self._conn: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self.pause_new_dags = True  # is a scheduled dag that it makes known paused?

    def start(
        self,
        target: Startable,
        /,
        *args: Any,
        run_id: str | None = None,
        conn: Any = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        deduplicate: str | None = None,
        **kwargs: Any,
    ) -> RunHandle[Any]:
        """Starts a run, once per `run_id`: the same id and arguments answer the same run, other arguments raise RunConflict.

        `conn`: your own psycopg connection or SQLAlchemy session; the run exists when, and only when, your transaction commits.
        `delay`, `timeout`: seconds or timedelta, until it becomes claimable, and for the whole run.
        `deduplicate`: while a run of the target that was started with this text lives, equal arguments answer that run and
        other ones raise RunConflict; once it has ended, the next start makes a new run.
        """
        return self._start(target, args, kwargs, StartOptions(run_id, conn, queue, priority, delay, timeout, deduplicate))

    def using(self, **options: Any) -> StartWith:
        """The same, fully typed: `client.using(run_id="pay-43").start(transfer, 1, 2)`. Options are those of `start`."""
        return StartWith(self, StartOptions(**options))

    def trigger(
        self,
        dag_id: Startable,
        *,
        logical_date: datetime | None = None,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        conn: Any = None,
    ) -> RunHandle[Any]:
        """Starts a run of a dag or workflow, given itself or by its name; `params` are those of the dag, or the workflow's arguments.

        Params that do not fit the dag's schemas raise InvalidArgument, and no run is made. `conn` as for `start`.
        """
        options = StartOptions(run_id, conn, logical_date=logical_date)
        return self._start(*self._drive(requests.read_trigger(dag_id, params, options)))

    def backfill(self, dag: Dag, start: date | str, end: date | str, **options: Unpack[BackfillArguments]) -> BackfillHandle:
        """Makes the runs of a dag for the logical dates between two moments, both included, all of them or none; a few at a time of them begin.

        A `date` is a day in the dag's time zone, as the end the whole of it; a naive datetime is UTC. Options are those of BackfillOptions: reprocess,
        reverse, max_active_runs (1), on_failure ("pause"), params, priority, actor. Of a paused dag they wait. Raises InvalidArgument when there is no such date,
        RunConflict while another backfill of the dag lives.
        """
        self._make_known(dag)
        return BackfillHandle(self, self._drive(backfills.create_backfill(dag, start, end, BackfillOptions(**options))))

    def preview_backfill(self, dag: Dag, start: date | str, end: date | str, **options: Unpack[BackfillArguments]) -> list[dict[str, Any]]:
        """What `backfill` would do with each date: {logical_date, interval_start, interval_end, run_id, state, action}; action is new, again or skip."""
        self._make_known(dag)
        return cast("list[dict[str, Any]]", self._drive(backfills.preview_backfill(dag, start, end, BackfillOptions(**options))))

    def find_backfill(self, backfill: int) -> BackfillHandle:
        """A backfill by its number."""
        return BackfillHandle(self, self._call(backfills.find_backfill(backfill)))

    def pause(self, dag: Dag) -> bool:
        """Nothing new of the dag is scheduled, begun or claimed; what runs goes on. Answers whether it was not paused before."""
        return bool(self._call(dag_calls.pause_dag(requests.name_of(dag), True)))

    def unpause(self, dag: Dag) -> bool:
        """It goes on: with catchup from where it stood, without with the latest run that is due. Answers whether it was paused before."""
        return bool(self._call(dag_calls.pause_dag(requests.name_of(dag), False)))

    def find(self, run_id: str, dag_id: str | None = None) -> RunHandle[Any]:
        """A run by its id; `dag_id` where several dags have it."""
        answer = self._call(requests.find_call(run_id, dag_id))
        return RunHandle(self, int(answer["run"]), answer["dag_id"], answer["run_id"])

    def close(self) -> None:
        with self._lock:
            if self._conn is not None:
                self._conn.close()
            self._conn = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Startable, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> RunHandle[Any]:
        call = requests.start_call(target, args, kwargs, options)
        self._make_known(target)
        answer = self._call(call) if options.conn is None else run_on_foreign(options.conn, call)
        return RunHandle(self, int(answer["run"]), requests.name_of(target), answer["run_id"], answer["created"])

    def _make_known(self, target: Startable) -> None:
        if not isinstance(target, str) and (name := requests.name_of(target)) not in self._known:
            # On our own connection: a lock on the dag's row must not live as long as the caller's transaction.
            self._call(calls.register_dags(requests.describe_dag(target, self.pause_new_dags), False))
            self._known.add(name)

    def _drive(self, request: Request) -> Any:
        answer: Any = None
        while True:
            try:
                asked = request.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(asked, Pause):
                time.sleep(asked.seconds)
                answer = None
            else:
                answer = self._call(asked)

    def _call(self, call: Call) -> Any:
        for attempt in range(RECONNECT_TRIES):
            try:
                with self._lock:
                    return run_call(self._connected(), call)
            except psycopg.Error as error:
                if not is_connection_lost(error) or is_refused(error):
                    raise explain(error) or error from None
                if attempt == RECONNECT_TRIES - 1:
                    raise NoDatabase(f"cannot reach {mask_dsn(self.dsn)}: {str(error).strip()}. Is the server up, and the DSN right?") from error
            time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable: the last attempt raises")

    def _connected(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self.dsn, "onceflow-client")
        return self._conn


class StartWith:
    """A start with its options fixed, so that type checkers see the workflow's own signature."""

    def __init__(self, client: Client, options: StartOptions) -> None:
        self._client, self._options = client, options

    def start(self, target: Workflow[P, R] | Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        return self._client._start(target, args, kwargs, self._options)

    def trigger(self, dag_id: Startable, params: dict[str, Any] | None = None) -> RunHandle[Any]:
        """`Client.trigger` with these options."""
        return self._client._start(*self._client._drive(requests.read_trigger(dag_id, params, self._options)))
