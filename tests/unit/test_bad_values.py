"""Every public function and option refuses every bad value by name, before anything is sent or recorded.

Nothing here has a database: a value that is let through ends in NoDatabase, or in "only inside a running workflow", and fails the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import onceflow
from onceflow import AsyncClient, AsyncRunHandle, AuthoringError, Client, InvalidArgument, RetryPolicy, RunHandle, SettingsError, sql_step, step, workflow
from onceflow.authoring import forms, registry
from onceflow.authoring.step import STEP_OPTIONS, TASK_OPTIONS
from onceflow.authoring.task_options import CALLBACKS, FLAGS
from onceflow.checks import LONGEST_S, check_run, check_seconds, check_text
from onceflow.engine.requests import StartOptions

NOWHERE = "postgresql://nobody@127.0.0.1:9/none"
NAN, INF = float("nan"), float("inf")
NO_TEXT = [7, b"x", True, ["x"]]
NO_KEY = [*NO_TEXT, "a\0b", "a\nb", "\x1b[31m", "\x7f", "\ud800", "x" * 251]
NO_SECONDS = [NAN, INF, -INF, -1, -0.5, "5", True, 10**12, 1e300, LONGEST_S + 1, timedelta(seconds=-1), timedelta.max, 5j]
NO_LIMIT = [*NO_SECONDS, 0, timedelta(0)]
NO_WHOLE = [NAN, 2.5, 2.0, True, "3", None, 2**40, -(2**40), 10**5000]
NO_NOTE = [7, "a\0b", "\ud800", "x" * 10_001]
BAD: dict[str, list[Any]] = {
    "key": [*NO_KEY, ""],
    "topic": [*NO_KEY, None],
    "queue": [*NO_KEY, "", " a", "a,b"],
    "name": [*NO_KEY, "", "a/b", "a#0", "a:b", "~"],
    "steps key": [*NO_TEXT, "", "a\0b", "\ud800", None],
    "note": NO_NOTE,
    "seconds": NO_SECONDS,
    "limit": NO_LIMIT,
    "whole": NO_WHOLE,
    "run": [NAN, 2.5, "x", "", "²", None, 0, -1, True, 2**63, 10**50, object()],
    "moment": ["2026-01-01", 5, datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=3))), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=3)))],
    "duration": [5, 0.5, "5", True, timedelta(seconds=-1), timedelta.max],
    "positive duration": [5, 0.5, "5", True, timedelta(0), timedelta(seconds=-1), timedelta.max],
    "retries": [-1, True, 2.5, NAN, "3", None, 2**40],
    "flag": [1, 0, "yes", None],
    "share": [NAN, -0.1, 1.1, "1", True, None],
    "errors": [OSError, [OSError], (OSError, 5), (OSError, "x"), "OSError", None],
    "isolation": ["Serializable", "snapshot", None, 5, ["serializable"]],
    "isolate": ["fork", None, 5],
    "params": [[1], "x", 5, {"a"}],
    "dsn": ["", "x", 5, "mysql://h/d", "postgresql://h/d\0"],
    "policy": [5, "x", {"retries": 3}],
    "rule": ["", "all", None, 5, ["all_success"]],
    "count": [0, -1, True, 2.5, "3", 2**40],
    "callback": [5, "x", [5], {"a": 1}, object()],
    "sql": ["", "  ", 5, "select '\0'"],
}
# What any value may be given to.
FREE = {
    "value",
    "default",
    "message",
    "branches",
    "return_exceptions",
    "args",
    "kwargs",
    "target",
    "branch",
    "connection",
    "conn",
    "options",
    "self",
    "dag",
    "fn",
}
OPTIONS = {
    "run_id": "key", "deduplicate": "key", "code_version": "key", "run_type": "key", "queue": "queue", "priority": "whole",
    "delay": "seconds", "timeout": "limit", "logical_date": "moment",
}  # fmt: skip
HANDLES = {
    ("cancel", "reason"): "note", ("cancel", "actor"): "note", ("retry", "actor"): "note", ("fork", "from_step"): "steps key", ("fork", "run_id"): "key",
    ("fork", "actor"): "note", ("send", "topic"): "topic", ("send", "key"): "key", ("get_event", "key"): "key", ("result", "timeout_s"): "seconds",
}  # fmt: skip
CLIENTS = {
    ("find", "run_id"): "key", ("find", "dag_id"): "key", ("trigger", "dag_id"): "key", ("trigger", "run_id"): "key",
    ("trigger", "logical_date"): "moment", ("trigger", "params"): "params",
    **{("start", name): kind for name, kind in OPTIONS.items() if name in inspect.signature(Client.start).parameters},
}  # fmt: skip
FORMS = {
    ("sleep", "duration"): "seconds", ("send", "run"): "run", ("send", "topic"): "topic", ("recv", "topic"): "topic", ("recv", "timeout"): "seconds",
    ("set_event", "key"): "key", ("get_event", "run"): "run", ("get_event", "key"): "key", ("get_event", "timeout"): "seconds", ("patch", "name"): "name",
    ("timeout", "seconds"): "seconds", ("get_connection", "name"): "key", ("get_variable", "name"): "key", ("get_variable", "deserialize_json"): "flag",
}  # fmt: skip
POLICY = {"retries": "retries", "delay": "duration", "exponential": "flag", "max_delay": "duration", "jitter": "share", "retry_on": "errors"}
STEP = {
    "retries": "retries", "retry_delay": "duration", "retry": "policy", "execution_timeout": "positive duration", "name": "name", "group_commit": "flag",
    "isolation": "isolation", "isolate": "isolate", "database": "key", "max_retry_delay": "duration", "retry_on": "errors", "trigger_rule": "rule",
    "weight_rule": "rule", "pool_slots": "count", "priority_weight": "whole", "queue": "queue", "max_active_tis_per_dag": "count", "pool": "key",
    "max_active_tis_per_dagrun": "count", **dict.fromkeys(FLAGS, "flag"), **dict.fromkeys(CALLBACKS, "callback"),
}  # fmt: skip
UNSEEN = {"transactional", "executor", "executor_config", "inlets", "outlets", "map_index_template", "doc", "owner", "task_id"}  # read by the dag
WORKFLOW = {"retries": "retries", "retry_delay": "duration", "timeout": "positive duration", "name": "name", "queue": "queue", "code_version": "key"}
SQL_STEP = {"text": "sql", "name": "name", "retries": "retries", "retry_delay": "duration", "group_commit": "flag"}
NEEDED: dict[str, dict[str, Any]] = {
    "fork": {"from_step": "a#0"}, "send": {"message": 1}, "find": {"run_id": "x"}, "trigger": {"dag_id": "x"}, "set_event": {"value": 1, "key": "k"},
    "get_event": {"key": "k"}, "start": {"target": "x"},
}  # fmt: skip


def plain_function(value: int) -> int:
    """What the decorators are tried on."""
    return value


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is forgotten after it."""
    for name in ("_workflows", "_steps", "_doubled"):
        monkeypatch.setattr(registry, name, {})


def spread(table: dict[Any, str], optional: tuple[str, ...] = ()) -> list[Any]:
    """One case for each bad value of each parameter; None is none for an optional one."""
    return [
        pytest.param(key, value, id=f"{key if isinstance(key, str) else '-'.join(key)}-{kind.replace(' ', '_')}{number}")
        for key, kind in table.items()
        for number, value in enumerate(BAD[kind])
        if value is not None or key not in optional
    ]


def call_with(function: Any, name: str, parameter: str, value: Any) -> Any:
    """Calls a function with one bad value, and good ones where it needs any."""
    given = {**NEEDED.get(name, {}), parameter: value}
    positional = [given.pop(p.name) for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_ONLY and p.name in given]
    return function(*positional, **given)


@pytest.mark.parametrize(("option", "value"), spread(OPTIONS))
def test_an_option_of_a_start(option: str, value: Any) -> None:
    """InvalidArgument names the option, as soon as the options are there: `using` too."""
    with pytest.raises(InvalidArgument, match=option), Client(NOWHERE) as client:
        client.using(**{option: value})


@pytest.mark.parametrize(("where", "value"), spread(CLIENTS))
async def test_a_parameter_of_a_client(where: tuple[str, str], value: Any) -> None:
    """InvalidArgument from both clients, before they connect."""
    name, parameter = where
    with pytest.raises(InvalidArgument, match=parameter), Client(NOWHERE) as client:
        call_with(getattr(client, name), name, parameter, value)
    async with AsyncClient(NOWHERE) as asynchronous:
        with pytest.raises(InvalidArgument, match=parameter):
            await call_with(getattr(asynchronous, name), name, parameter, value)


@pytest.mark.parametrize(("where", "value"), spread(HANDLES))
async def test_a_parameter_of_a_run(where: tuple[str, str], value: Any) -> None:
    """The same for what is done to a run."""
    name, parameter = where
    with pytest.raises(InvalidArgument, match=parameter), Client(NOWHERE) as client:
        call_with(getattr(RunHandle[Any](client, 1, "dag", "run"), name), name, parameter, value)
    async with AsyncClient(NOWHERE) as asynchronous:
        with pytest.raises(InvalidArgument, match=parameter):
            await call_with(getattr(AsyncRunHandle[Any](asynchronous, 1, "dag", "run"), name), name, parameter, value)


@pytest.mark.parametrize(("where", "value"), spread(FORMS))
def test_a_parameter_of_a_durable_form(where: tuple[str, str], value: Any) -> None:
    """The error names the form, where it is called."""
    name, parameter = where
    needed = {"get_variable": {"name": "limit"}, "send": {"run": 1, "message": 1}, "get_event": {"run": 1, "key": "k"}, "timeout": {"branch": None}}.get(
        name, NEEDED.get(name, {})
    )
    with pytest.raises(AuthoringError if name == "patch" else InvalidArgument, match=name):
        getattr(forms, name)(**{**needed, parameter: value})


@pytest.mark.parametrize(("option", "value"), spread(POLICY))
def test_a_field_of_a_retry_policy(option: str, value: Any) -> None:
    """AuthoringError names the field."""
    with pytest.raises(AuthoringError, match=option):
        RetryPolicy(**{option: value})


@pytest.mark.parametrize(("option", "value"), spread(STEP, optional=("queue", "retry_on")))
def test_an_option_of_a_step(option: str, value: Any) -> None:
    """AuthoringError at the decoration names the option; nothing is declared."""
    said = {"retry_delay": "delay of retries", "max_retry_delay": "max_delay"}
    with pytest.raises(AuthoringError, match=said.get(option, option)):
        step(**{option: value})(plain_function)
    assert registry.list_steps() == []


@pytest.mark.parametrize(("option", "value"), spread(WORKFLOW))
def test_an_option_of_a_workflow(option: str, value: Any) -> None:
    """The same for workflows."""
    with pytest.raises(AuthoringError, match={"retry_delay": "delay of retries"}.get(option, option)):
        workflow(**{option: value})(plain_function)
    assert registry.list_workflows() == []


@pytest.mark.parametrize(("option", "value"), spread(SQL_STEP))
def test_a_parameter_of_an_sql_step(option: str, value: Any) -> None:
    """The same for SQL steps."""
    with pytest.raises(AuthoringError):
        sql_step(**{"text": "select 1", "name": "report", option: value})
    assert registry.list_steps() == []


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("dsn", BAD["dsn"])
def test_a_dsn(client: Any, dsn: Any) -> None:
    """SettingsError when the client is made; an empty DSN does not mean another one."""
    with pytest.raises(SettingsError, match=r"dsn.*postgresql://"):
        client(dsn)


def parameters_of(function: Any) -> set[str]:
    """Its parameters that are not free to be anything."""
    return set(inspect.signature(function).parameters) - FREE


def test_no_parameter_is_left_out() -> None:
    """The tables above have every parameter of every public function that takes some: a new one must be given its bad values."""
    inferred = {"interval"}  # by a dag's timetable, never given
    assert {field.name for field in fields(StartOptions)} - FREE - inferred == set(OPTIONS)
    assert {field.name for field in fields(RetryPolicy)} == set(POLICY)
    for cls, table in ((Client, CLIENTS), (AsyncClient, CLIENTS), (RunHandle, HANDLES), (AsyncRunHandle, HANDLES)):
        methods = [name for name, one in vars(cls).items() if inspect.isfunction(one) and not name.startswith("_") and name not in ("using", "resume")]
        listed = {(name, parameter) for name in methods for parameter in parameters_of(getattr(cls, name))}
        assert {(name, parameter) for name, parameter in listed if "backfill" not in name} == set(table), cls  # those read the dag first: test_backfills
    public = [getattr(onceflow, name) for name in onceflow.__all__ if inspect.isfunction(getattr(onceflow, name, None))]
    of_forms = {(form.__name__, parameter) for form in public if form.__module__ == forms.__name__ for parameter in parameters_of(form)}
    assert of_forms == set(FORMS)
    assert parameters_of(workflow) == set(WORKFLOW)
    assert parameters_of(sql_step) == set(SQL_STEP)
    assert STEP_OPTIONS | TASK_OPTIONS | parameters_of(step) | {"retry"} == set(STEP) | UNSEEN


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_seconds(0, "it", zero=True) == 0.0,
        lambda: check_seconds(timedelta(milliseconds=5), "it") == 0.005,
        lambda: check_seconds(LONGEST_S, "it") == LONGEST_S,
        lambda: check_text("é" * 250, "it") == "é" * 250,
        lambda: check_text("", "it", may_be_empty=True) == "",
        lambda: check_run("12345678901234567", "it") == 12345678901234567,
        lambda: check_run(RunHandle(Client(NOWHERE), 5, "d", "r"), "it") == 5,
        lambda: StartOptions(run_id="a/b c", queue="fast lane", priority=-5, delay=0, timeout=0.1, logical_date=datetime(2026, 1, 1)).priority == -5,
        lambda: StartOptions(logical_date=datetime(2026, 1, 1, tzinfo=UTC)).run_id is None,
        lambda: RetryPolicy(retries=10_000, delay=timedelta(days=9), exponential=True).delay_s(10_000) == LONGEST_S,
    ],
)
def test_what_fits_passes(check: Callable[[], bool]) -> None:
    """The edges are accepted; a delay that doubles without end stays a time that a database can hold."""
    assert check()


class Secretive:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Secretive(), "x" * 10**6, list(range(10**5))])
def test_a_refusal_stays_short(value: Any) -> None:
    """The message shows the start of a long value, and survives one that cannot be shown."""
    with pytest.raises(InvalidArgument) as caught:
        StartOptions(run_id=value)
    assert len(str(caught.value)) < 300
