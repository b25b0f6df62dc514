"""Durable forms: what a body uses instead of clocks, randomness, sleeping and waiting, so that a replay takes the same path.

In an `async def` body each is awaited; in a `def` body it is simply called.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from onceflow.authoring.connection_kinds import connection_kind
from onceflow.authoring.context import Here, need_here
from onceflow.checks import check_flag, check_name, check_run, check_seconds, check_text
from onceflow.errors import AuthoringError


def current_run() -> Here:
    """The present place in a run: `run_id`, `dag_id`, `step_key`, `try_number`."""
    return need_here("current_run")


def current_context() -> dict[str, Any]:
    """In a task of a dag: ti, ds, params, logical_date, run_id and the rest, by name, as `**context` gets it."""
    context = need_here("current_context").context
    if context is None:
        raise AuthoringError("current_context() works in tasks of dags; a step of a workflow asks current_run()")
    return context


def idempotency_key() -> str:
    """A key for remote systems: the same over every try of this step, different for every other step and run."""
    return need_here("idempotency_key").idempotency_key


def get_connection(name: str) -> Any:
    """In a step: a connection by name, from the environment (ONCEFLOW_CONN_<NAME>) or the database: host, port, login, password, schema, extra.

    Read anew on each call and never recorded. In an async def step it is awaited. Raises SettingsError when there is none.
    """
    check_text(name, "get_connection: the name")
    return need_here("get_connection").read_named("connection", name)


def get_variable(name: str, default: Any = ..., *, deserialize_json: bool = False) -> Any:
    """In a step: a variable by name, from the environment (ONCEFLOW_VAR_<NAME>) or the database, as text, or read as JSON; `default` when there is none.

    Read anew on each call and never recorded. In an async def step it is awaited. Raises SettingsError when there is none, and no default.
    """
    check_text(name, "get_variable: the name")
    check_flag(deserialize_json, "get_variable: deserialize_json")
    return need_here("get_variable").read_named("variable", name, default=default, parse=deserialize_json)


def commit_with(connection: type[Any]) -> Any:
    """In an external step, once: `with commit_with(psycopg.Connection) as conn:` opens the completing transaction late.

    It stays open until the function returns and commits with the step's record; an exception after the block rolls it back.
    """
    if connection_kind(connection) is None:
        raise AuthoringError(f"commit_with({connection!r}): not a connection class; pass psycopg.Connection, asyncpg.Connection, …")
    return need_here("commit_with").open_commit(connection)


def sleep(duration: float | timedelta) -> Any:
    """Waits that many seconds; survives a crash. A long sleep holds no worker slot."""
    seconds = check_seconds(duration, "sleep: the duration", zero=True)
    return need_here("sleep").form("sleep", seconds=seconds)


def now() -> Any:
    """The engine's time (UTC, aware), recorded."""
    return need_here("now").form("now")


def random() -> Any:
    """A random float in [0, 1), recorded."""
    return need_here("random").form("random")


def uuid4() -> Any:
    """A random UUID, recorded."""
    return need_here("uuid4").form("uuid4")


def send(run: Any, message: Any, topic: str = "") -> Any:
    """Sends a message to a run (a handle, or its numeric id), recorded: exactly once. In a transactional step it goes out when the step commits."""
    number, topic = check_run(run, "send"), check_text(topic, "send: the topic", may_be_empty=True)
    return need_here("send").form("send", to=number, message=message, topic=topic)


def recv(topic: str = "", timeout: float | timedelta | None = None) -> Any:
    """Waits for the next message of a topic; None when `timeout` seconds pass first. Each message is received once.

    In a transactional step only with timeout=0: takes a message that is there already, when the step commits.
    """
    topic, seconds = check_text(topic, "recv: the topic", may_be_empty=True), _limit(timeout, "recv: the timeout")
    return need_here("recv").form("recv", topic=topic, seconds=seconds)


def set_event(key: str, value: Any) -> Any:
    """Publishes a value of this run under a key; readers see the latest. In a transactional step they see it when the step commits."""
    check_text(key, "set_event: the key")
    return need_here("set_event").form("set_event", event=key, value=value)


def get_event(run: Any, key: str, timeout: float | timedelta | None = None) -> Any:
    """Waits for another run's event; None when `timeout` seconds pass first, or that run ends without it.

    In a transactional step only with timeout=0: reads a value that is there already.
    """
    number, seconds = check_run(run, "get_event"), _limit(timeout, "get_event: the timeout")
    check_text(key, "get_event: the key")
    return need_here("get_event").form("get_event", run=number, event=key, seconds=seconds)


def patch(name: str) -> Any:
    """True in runs that have not yet passed this place, False in older ones: `if await patch("fee"): await take_fee(...)`."""
    check_name(name, "patch", error=AuthoringError)
    return need_here("patch").form("patch", name=name)


def continue_as(*args: Any, **kwargs: Any) -> Any:
    """Ends this run as a success and starts it afresh with new arguments and an empty history. Never returns."""
    return need_here("continue_as").form("continue_as", args=args, kwargs=kwargs)


def gather(*branches: Awaitable[Any], return_exceptions: bool = False) -> Any:
    """Runs branches concurrently and answers their results in order. All run to their end; the first in order that failed raises."""
    return need_here("gather").gather(branches, return_exceptions)


def first_of(*branches: Awaitable[Any]) -> Any:
    """(index, result) of the branch that ends first, recorded; the others are cancelled."""
    return need_here("first_of").first_of(branches)


def timeout(branch: Awaitable[Any], seconds: float | timedelta) -> Any:
    """The branch's result, or WaitTimeout after that many seconds, recorded either way."""
    limit = check_seconds(seconds, "timeout: the limit", zero=True)
    return need_here("timeout").timeout(branch, limit)


def _limit(timeout: float | timedelta | None, where: str) -> float | None:
    return None if timeout is None else check_seconds(timeout, where, zero=True)
