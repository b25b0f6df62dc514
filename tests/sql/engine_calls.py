"""The SQL functions, called as a worker calls them, on one psycopg connection: no Python engine in between."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import psycopg

from onceflow.db import calls
from onceflow.db.calls import Call
from onceflow.db.sync_runner import run_call
from onceflow.db.tokens import mark_token, prove_token
from tests.database import POLL_S, TestDatabase

LEASE_S = 10.0
DAG = "flow"
OWN_ERROR = {"$error": "builtins:ValueError", "message": "no", "args": ["no"]}
BLOCKED = "select cardinality(pg_blocking_pids(%s)) > 0"
STATES = "select t.state, r.state from onceflow.task_instance t join onceflow.dag_run r on r.id = t.run where t.run = %s and t.id = %s"
FAKE_CLOCK = """
    create table public.clock (at timestamptz not null);
    insert into public.clock values (date_trunc('second', clock_timestamp()));
    grant select on public.clock to public;
    create or replace function onceflow.now() returns timestamptz language sql volatile as 'select at from public.clock'
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed task, as claim_tasks describes it."""

    run: int
    ti: int
    token: str
    task_id: str
    epoch: int
    try_number: int
    logical_date: str
    kind: str
    fence: int

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> Task:
        return cls(**{name: item[name] for name in cls.__slots__})

    @property
    def owner(self) -> tuple[int, int, str]:
        return self.run, self.ti, self.token


def look(db: TestDatabase, run: int, ti: int | None = None) -> tuple[str, str]:
    """The states of a task (the body, if none is named) and of its run, as everyone sees them."""
    rows = db.sql(STATES, run, ti or run)
    return (rows[0][0], rows[0][1]) if rows else ("none", "none")


def stop_clock(db: TestDatabase) -> None:
    """Replace the body of the one clock: from now on time stands still until `move_clock`."""
    for statement in FAKE_CLOCK.split(";"):
        db.sql(statement)


def move_clock(db: TestDatabase, seconds: float) -> None:
    """Let time pass by the one clock; the workers go on sending heartbeats."""
    db.sql("update public.clock set at = at + make_interval(secs => %s)", seconds)
    db.sql("update onceflow.worker set heartbeat_at = onceflow.now() where ended_at is null")


def describe_sql(task: Task, text: str, key: str | None = None) -> dict[str, Any]:
    """A statement without parameters and rows, as run_sql_steps is told of it."""
    name, tries = (key, 1) if key else (task.task_id, task.try_number)
    return {
        "text": text, "answers": False, "args": [], "moments": [], "mark": mark_token(task.ti, task.token, name), "run": task.run, "ti": task.ti,
        "proof": prove_token(task.token, f"{name}/{tries}/in postgres"), "key": name, "name": name, "try": tries, "inputs": "{}", "inputs_hash": "h",
        "whole": key is None,
    }  # fmt: skip


@dataclass
class Engine:
    """One connection and one worker on it. `begin` and `commit` keep a transaction open over several calls."""

    db: TestDatabase
    worker: int = field(default_factory=lambda: uuid.uuid4().int >> 70)
    version: str = "v1"
    dags: tuple[str, ...] = (DAG,)
    queues: tuple[str, ...] = ("default",)
    user: str = "postgres"
    lanes: list[int] = field(default_factory=list)
    claims: int = 0
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conn = self.db.connect(self.user)
        self.pid = self.conn.info.backend_pid

    def call(self, call: Call) -> Any:
        """The call's answer; errors of SQLSTATE class OF are Onceflow's own."""
        return run_call(self.conn, call)

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """A statement on this very connection, so inside its open transaction."""
        cursor = self.conn.execute(text.encode(), args or None)
        return cursor.fetchall() if cursor.description else []

    def begin(self, isolation: str = "read committed") -> None:
        self.conn.execute(f"begin isolation level {isolation}".encode())

    def begin_step(self, task: Task, key: str | None = None) -> None:
        """Open a transaction as the engine does for a transactional step of the task, or for one that is the task itself."""
        self.begin()
        self.sql("select set_config('onceflow.step', %s, true)", mark_token(task.ti, task.token, key or task.task_id))

    def commit(self) -> None:
        self.conn.execute("commit")

    def rollback(self) -> None:
        self.conn.execute("rollback")

    def close(self) -> None:
        """End the connection, and whatever still waits on it."""
        if any(thread.is_alive() for thread in self.threads):
            self.db.sql("select pg_terminate_backend(%s)", self.pid)
        for thread in self.threads:
            thread.join(20)
        self.conn.close()

    def register(self) -> None:
        dags = json.dumps([{"dag_id": d, "code_version": self.version} for d in self.dags])
        self.lanes = self.call(calls.register_worker(self.worker, "host", 1, list(self.queues), LEASE_S, dags))["lanes"]

    def start(self, dag_id: str = DAG, run_id: str | None = None, args: str = "{}", **options: Any) -> int:
        """A new run's id."""
        return int(self.call(calls.start_run(dag_id, args, run_id, **options))["run"])

    def claim(self, limit: int = 1, again: bool = False) -> list[Task]:
        if not again:
            self.claims += 1
        return [Task.from_json(item) for item in self.call(calls.claim_tasks(self.worker, self.claims, self.lanes, limit, again))]

    def claim_one(self) -> Task:
        (task,) = self.claim(1)
        return task

    def start_and_claim(self, **options: Any) -> Task:
        """A new run's body, claimed; nothing else may lie ready."""
        run = self.start(**options)
        task = self.claim_one()
        assert task.run == run, "something else lay ready"
        return task

    def complete(self, task: Task, output: str = "null", kind: str = "body") -> Any:
        return self.call(calls.complete_task(*task.owner, task.task_id, kind, "{}", "h", output, 0))

    def fail(self, task: Task, retry: bool = False, delay_s: float = 0.0) -> str:
        """The state it moved to."""
        return str(self.call(calls.fail_task(*task.owner, task.task_id, "body", "{}", "h", json.dumps(OWN_ERROR), retry, delay_s, 0))["state"])

    def complete_step(self, task: Task, key: str, output: str = "1", kind: str = "external", try_number: int = 1) -> Any:
        return self.call(calls.complete_step(*task.owner, key, key.split("-")[0], kind, try_number, "{}", "h", output, 0))

    def run_sql(self, task: Task, *texts: str, limit: int = 1000, **changes: Any) -> Any:
        """The outputs of SQL steps that are run inside Postgres: the task itself, if there is one text, else steps of it."""
        steps = [describe_sql(task, text, None if len(texts) == 1 else f"sql#{n}") | changes for n, text in enumerate(texts)]
        return self.call(calls.run_sql_steps(json.dumps(steps), "onceflow-step:1:test", limit))

    def fail_step(self, task: Task, key: str, final: bool, try_number: int = 1, delay_s: float = 0.0) -> Any:
        error = json.dumps(OWN_ERROR)
        return self.call(calls.fail_step(*task.owner, key, key.split("-")[0], "external", try_number, "{}", "h", error, final, delay_s, 0))

    def start_task(self, task: Task, key: str | None, retries: int = 0, delay_s: float | None = None) -> int:
        """The new task's id."""
        return int(self.call(calls.start_task(*task.owner, key, "work", "m:work", "{}", "h", retries, delay_s))["task"])

    def start_child(self, task: Task, key: str, dag_id: str = DAG, run_id: str | None = None, args: str = "{}", **options: Any) -> int:
        """The child run's id."""
        return int(self.call(calls.start_child(*task.owner, key, dag_id, dag_id, args, "h", run_id, None, 0, "body", **options))["run"])

    def defer(self, task: Task, *waits: tuple[str, int, str]) -> None:
        """Suspend a body until one of (kind, run, target) is there."""
        self.call(calls.defer_task(*task.owner, json.dumps([{"kind": kind, "target_run": run, "target": target} for kind, run, target in waits])))

    def stop_run(self, task: Task, version: str) -> None:
        """Stop it for want of a worker with that code version."""
        self.call(calls.stop_run(*task.owner, version, json.dumps(OWN_ERROR)))

    def send(self, run: int, topic: str = "", body: str = "1", key: str | None = None) -> bool:
        return bool(self.call(calls.send_message(run, topic, body, key)))

    def receive(self, task: Task, key: str, topic: str = "") -> Any:
        return self.call(calls.receive_message(*task.owner, key, "{}", "h", topic))

    def set_event(self, task: Task, key: str, event: str, value: str = "1") -> None:
        self.call(calls.set_run_event(*task.owner, key, "{}", "h", event, value))

    def take(self, task: Task, topic: str = "") -> Any:
        """As a step in its own open transaction."""
        return self.call(calls.take_message(*task.owner, topic))

    def set_event_in_step(self, task: Task, event: str, value: str = "1") -> None:
        """As a step in its own open transaction."""
        self.call(calls.set_event_in_step(*task.owner, event, value))

    def start_child_in_step(self, task: Task, key: str, dag_id: str = DAG, args: str = "{}") -> int:
        """As a step in its own open transaction; the child run's id."""
        return int(self.call(calls.start_child_in_step(*task.owner, key, dag_id, args, None, 0, "body"))["run"])

    def tick(self, max_rescues: int = 5) -> dict[str, Any]:
        answer: dict[str, Any] = self.call(calls.run_tick(500, max_rescues))
        return answer

    def fire_timers(self, limit: int = 500) -> int:
        return int(self.sql("select onceflow.fire_timers(%s)", limit)[0][0])

    def drain_wake_ups(self, limit: int = 500) -> int:
        return int(self.sql("select onceflow.drain_wake_ups(%s)", limit)[0][0])

    def rescue(self, limit: int = 500, max_rescues: int = 5) -> int:
        return int(self.sql("select onceflow.rescue_tasks(%s, %s)", limit, max_rescues)[0][0])

    def heartbeat(self, held: list[Task], claim: int | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self.call(calls.heartbeat(self.worker, [t.ti for t in held], [t.token for t in held], self.claims if claim is None else claim))
        self.lanes = answer.pop("lanes")
        return answer

    def unclaim(self, *tasks: Task) -> int:
        return int(self.call(calls.unclaim_tasks(self.worker, [t.token for t in tasks])))

    def resolve(self, task: Task, key: str | None = None) -> dict[str, Any]:
        text = "select onceflow.resolve_commit(%s, %s, %s, %s, %s)"
        answer: dict[str, Any] = self.sql(text, *task.owner, task.epoch, key or task.task_id)[0][0]
        return answer

    def cancel(self, run: int) -> Any:
        return self.call(calls.cancel_run(run, "enough", "tester"))

    def retry(self, run: int) -> Any:
        return self.call(calls.retry_run(run, "tester"))

    def later(self, work: Callable[[], Any]) -> Future[Any]:
        """Do the work in a thread, as it will wait for another connection's transaction."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        return future

    def blocks(self, work: Callable[[], Any]) -> Future[Any]:
        """The same, and come back when it waits for a lock; fails if it ends without."""
        future = self.later(work)
        deadline = time.monotonic() + 20
        while not self.db.sql(BLOCKED, self.pid)[0][0]:
            if future.done():
                raise AssertionError(f"did not wait for a lock; answered {future.exception() or future.result()!r}")
            assert time.monotonic() < deadline, "neither waited for a lock nor ended"
            time.sleep(POLL_S)
        return future


def make_silent(db: TestDatabase, engine: Engine) -> None:
    """Let a worker's last heartbeat lie so far back that it counts as lost."""
    db.sql("update onceflow.worker set heartbeat_at = heartbeat_at - interval '1 hour' where id = %s", engine.worker)


def sqlstate_of(work: Callable[[], Any]) -> str | None:
    """The SQLSTATE the work fails with; None if it succeeds."""
    try:
        work()
    except Exception as error:
        cause = error if isinstance(error, psycopg.Error) else error.__cause__ or error.__context__
        assert isinstance(cause, psycopg.Error), error
        return cause.sqlstate
    return None
