"""Declarations: what a step or workflow is, read from its signature, and every mistake in one refused where it is made."""

from __future__ import annotations

import sys
import types
from datetime import timedelta
from typing import Any

import pytest

from onceflow import (
    RetryPolicy,
    commit_with,
    current_run,
    gather,
    idempotency_key,
    now,
    patch,
    sleep,
)
from onceflow.authoring import registry
from onceflow.engine.scopes import Scope
from onceflow.errors import AuthoringError, FailTask, InvalidArgument, NonDeterminismError, NotFound, StepSplit

HEAD = """
from __future__ import annotations
from datetime import datetime
from typing import TYPE_CHECKING, Any, Optional
import asyncpg, psycopg, sqlalchemy, sqlalchemy.orm
import sqlalchemy.ext.asyncio as aio
from onceflow import RetryPolicy, step, workflow, sql_step
if TYPE_CHECKING:
    from decimal import Decimal
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is forgotten after it."""
    monkeypatch.setattr(registry, "_workflows", {})
    monkeypatch.setattr(registry, "_steps", {})
    monkeypatch.setattr(registry, "_doubled", {})


def declare(source: str, name: str = "made_up") -> Any:
    """The module of that source."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(HEAD + source, module.__dict__)
    finally:
        del sys.modules[name]
    return module


@pytest.mark.parametrize(
    ("signature", "kind", "connection"),
    [
        ("async def f(conn: asyncpg.Connection, a: int)", "transactional", "asyncpg"),
        ("async def f(conn: asyncpg.Connection[asyncpg.Record], a: int)", "transactional", "asyncpg"),
        ("async def f(conn: 'asyncpg.Connection[Any]', a: int)", "transactional", "asyncpg"),
        ("def f(conn: psycopg.Connection, a: int)", "transactional", "psycopg"),
        ("def f(conn: psycopg.Connection[tuple[Any, ...]], a: int)", "transactional", "psycopg"),
        ("async def f(conn: psycopg.AsyncConnection, a: int)", "transactional", "psycopg_async"),
        ("def f(session: sqlalchemy.orm.Session, a: int)", "transactional", "sqlalchemy_session"),
        ("async def f(session: aio.AsyncSession, a: int)", "transactional", "sqlalchemy_async_session"),
        ("def f(conn: sqlalchemy.Connection, a: int)", "transactional", "sqlalchemy_connection"),
        ("async def f(conn: aio.AsyncConnection, a: int)", "transactional", "sqlalchemy_async_connection"),
        ("def f(a: int, b: str = 'x')", "external", None),
        ("async def f(a, *rest, **more)", "external", None),
        ("def f()", "external", None),
    ],
)
def test_the_kind_is_read_from_the_first_parameter(signature: str, kind: str, connection: str | None) -> None:
    """Each connection class makes its kind, with and without type arguments; callers do not see the connection."""
    step = declare(f"@step\n{signature}:\n    ...").f
    assert (step.kind, step.connection) == (kind, connection)
    assert "conn" not in step.signature.parameters and "session" not in step.signature.parameters
    assert step.reference == "made_up:f"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@step\ndef f(a: int, conn: psycopg.Connection): ...", "'conn' must be the FIRST parameter"),
        ("@step\ndef f(a: Decimal): ...", r"annotation cannot be resolved.*TYPE_CHECKING"),
        ("@step\ndef f(conn: psycopg.Conection): ...", "annotation cannot be resolved"),
        ("@workflow\ndef f(a: Decimal): ...", "annotation cannot be resolved"),
        ("@step\ndef f(conn: asyncpg.Connection): ...", "plain def.*async def"),
        ("@step\nasync def f(conn: psycopg.Connection): ...", "is async.*async sibling"),
        ("@step\ndef f(conn: psycopg.Connection | None): ...", "one class alone"),
        ("@step\ndef f(conn: sqlalchemy.Engine): ...", "not a connection a step can be given"),
        ("@step\ndef f(conn): ...", "no annotation"),
        ("@step(transactional=True)\ndef f(a: int): ...", "is external.*transactional=True was asserted"),
        ("@step(transactional=False)\ndef f(conn: psycopg.Connection): ...", "is transactional.*transactional=False"),
        ("@step\ndef f():\n    yield 1", "is a generator"),
        ("@step\nasync def f():\n    yield 1", "is a generator"),
        ("@workflow\ndef f():\n    yield 1", "is a generator"),
        ("@workflow\nasync def f():\n    yield 1", "is a generator"),
        ("def g():\n    @step\n    def f(): ...\ng()", "defined inside a function"),
        ("def g():\n    @workflow\n    def f(): ...\ng()", "defined inside a function"),
        ("@workflow\ndef f(conn: psycopg.Connection): ...", "start options"),
        ("@workflow\ndef f(database: psycopg.Connection): ...", "takes a connection.*@step"),
        ("@workflow\ndef f(*args): ...", r"\*args or \*\*kwargs"),
        ("@workflow\ndef f(**kwargs): ...", r"\*args or \*\*kwargs"),
        ("@workflow(name='a/b')\ndef f(): ...", "must have 1 to 250 characters"),
        ("@step(name='a#0')\ndef f(): ...", "must have 1 to 250 characters"),
        ("@step(name='x' * 251)\ndef f(): ...", "must have 1 to 250 characters"),
        ("sql_step('select 1', name='a:b')", "must have 1 to 250 characters"),
        ("@step(group_commit=True)\ndef f(): ...", "group_commit"),
        ("@step(colour=1)\ndef f(): ...", "no option 'colour'; it takes"),
        ("@step(retries=1, retry=RetryPolicy(retries=2))\ndef f(): ...", "not both"),
        *(
            (source.replace("DECORATOR", decorator), message)
            for decorator in ("step", "workflow")
            for source, message in [
                ("f = DECORATOR(lambda: 1)", "is a lambda"),
                ("f = DECORATOR(lambda: 1, name='f') if False else DECORATOR(name='f')(lambda: 1)", "is a lambda"),
                ("@DECORATOR\nclass F: ...", "stands above a def or async def, not above <class 'made_up.F'>"),
                ("f = DECORATOR(len)", "stands above a def or async def"),
                ("import functools\nf = DECORATOR(functools.partial(int, 5))", "stands above a def or async def"),
                ("f = DECORATOR(5)", r"not above 5 \(int\)"),
                ("@DECORATOR('name')\ndef f(): ...", r"options are given by name, @DECORATOR\(name=".replace("DECORATOR", decorator)),
                ("@DECORATOR\n@step\ndef f(): ...", "not above <external step"),
                ("@DECORATOR\n@workflow\ndef f(): ...", "not above <workflow f"),
                ("class A:\n    @DECORATOR\n    def f(self): ...", "is a method"),
                ("class A:\n    @DECORATOR\n    @staticmethod\n    def f(): ...", "stands above a def or async def"),
                ("@DECORATOR\ndef f(a, items=[]): ...", "the default of 'items' is a list, which all runs"),
                ("@DECORATOR\ndef f(*, items={}): ...", "the default of 'items' is a dict"),
                ("@DECORATOR\ndef f(items=set()): ...", "the default of 'items' is a set"),
                ("@DECORATOR\ndef f(a: int, db: 'Optional[psycopg.Connection]' = None): ...", "one class alone"),
            ]
        ),
        ("@workflow\ndef f(database: Optional[psycopg.Connection]): ...", "one class alone"),
        ("@step\nasync def f(db: Optional[asyncpg.Connection]): ...", "one class alone"),
        *((f"@workflow\ndef f({name}): ...", f"{name}.*start options") for name in ("run_id", "conn", "queue", "priority", "delay", "timeout", "deduplicate")),
    ],
)
def test_a_mistake_is_refused_at_its_declaration(source: str, message: str) -> None:
    """AuthoringError, a TypeError, names the function and what to write instead."""
    with pytest.raises(AuthoringError, match=message) as raised:
        declare(source)
    assert isinstance(raised.value, TypeError)


def test_two_workflows_of_one_name_are_refused() -> None:
    """In different places; the same place twice is a module imported again. Neither is served then, nor the first one imported once more."""
    declare("@workflow\ndef f(): ...", "one")
    declare("@workflow\ndef f(): ...", "one")
    with pytest.raises(AuthoringError, match="two workflows are named 'f': one:f and other:f"):
        declare("@workflow\ndef f(): ...", "other")
    assert registry.list_workflows() == []
    declare("@workflow\ndef f(): ...", "one")
    assert registry.list_workflows() == []
    with pytest.raises(AuthoringError, match="two workflows are named 'f': one:f and third:f"):
        declare("@workflow\ndef f(): ...", "third")


def test_a_step_outside_a_run() -> None:
    """An external one is simply called; a transactional or SQL one has no transaction to join; fn is the plain function."""
    module = declare(
        "@step\ndef double(a: int) -> int:\n    return 2 * a\n@step\ndef pay(conn: psycopg.Connection, a: int) -> int:\n    return a\n"
        "report = sql_step('select 1', name='report')"
    )
    assert module.double(4) == 8
    assert module.pay.fn(None, 3) == 3
    with pytest.raises(AuthoringError, match=r"pay\.fn\(conn"):
        module.pay(3)
    with pytest.raises(AuthoringError, match="report is sql"):
        module.report()
    for call in (lambda: module.double.aio(1), lambda: module.double.start(1)):
        with pytest.raises(AuthoringError, match="only inside a running workflow"):
            call()


def test_a_workflow_is_not_called() -> None:
    """Calling it raises, with the ways to start it; fn is the plain function."""
    flow = declare("@workflow\ndef f(a: int) -> int:\n    return a").f
    with pytest.raises(AuthoringError, match=r"not be durable.*Client.*f\.start.*f\.test"):
        flow(1)
    assert flow.fn(1) == 1


@pytest.mark.parametrize(
    "call", [current_run, idempotency_key, now, lambda: sleep(1), lambda: gather(), lambda: patch("x"), lambda: commit_with(__import__("psycopg").Connection)]
)
def test_forms_need_a_run(call: Any) -> None:
    """Outside a run each says so."""
    with pytest.raises(AuthoringError, match="only inside a running workflow"):
        call()


def test_commit_with_wants_a_connection_class() -> None:
    """Anything else is a TypeError, before a run is asked for."""
    with pytest.raises(TypeError, match="not a connection class"):
        commit_with(int)


def test_retry_policy() -> None:
    """Exponential, capped, with jitter that only shortens; classes or a predicate; some errors are never tried again."""
    policy = RetryPolicy(retries=9, delay=timedelta(seconds=2), exponential=True, max_delay=timedelta(seconds=10))
    assert [policy.delay_s(n) for n in (1, 2, 3, 4, 99)] == [2, 4, 8, 10, 10]
    jittered = [RetryPolicy(retries=1, delay=timedelta(seconds=10), jitter=0.5).delay_s(1) for _ in range(200)]
    assert 5 <= min(jittered) < 6.5 and 8.5 < max(jittered) <= 10
    assert RetryPolicy(retry_on=(OSError,)).is_worth_it(FileNotFoundError()) and not RetryPolicy(retry_on=(OSError,)).is_worth_it(ValueError())
    assert RetryPolicy(retry_on=lambda e: "busy" in str(e)).is_worth_it(ValueError("busy"))
    for error in (NonDeterminismError(), StepSplit(), AuthoringError(), InvalidArgument(), FailTask()):
        assert not RetryPolicy(retries=3).is_worth_it(error)
    for wrong in ({"retries": -1}, {"delay": timedelta(seconds=-1)}, {"jitter": 1.5}):
        with pytest.raises(AuthoringError):
            RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_steps_are_found_by_reference_or_by_name() -> None:
    """module:qualname, or the bare name where only one step has it."""
    one = declare("@step\ndef f(): ...\n@step\ndef g(): ...", "one")
    declare("@step\ndef f(): ...", "other")
    assert registry.find_step("one:f") is one.f
    assert registry.find_step("g") is one.g
    for missing in ("f", "nothing"):
        with pytest.raises(NotFound):
            registry.find_step(missing)


def test_scope_keys() -> None:
    """Occurrences count per name and scope; a recorded key leads back to the call of this scope that it lies in."""
    scope = Scope("pay#0/", set())
    assert [scope.take_key("a"), scope.take_key("b"), scope.take_key("a")] == ["pay#0/a#0", "pay#0/b#0", "pay#0/a#1"]
    heads = {
        "pay#0/a#0": "pay#0/a#0",
        "pay#0/gather#0[3]/x#1": "pay#0/gather#0",
        "pay#0/task#0/x#0/y#0": "pay#0/task#0",
        "pay#0/recv#0:deadline": "pay#0/recv#0",
        "b#0": None,
    }
    assert {key: scope.head_of(key) for key in heads} == heads


def test_source_version_follows_the_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared code version stands; else it is a digest of the file."""
    assert declare("@workflow(code_version='v7')\ndef f(): ...").f.source_version() == "v7"
    flow = declare("@workflow\ndef f(): ...").f
    module = types.ModuleType("made_up")
    file = tmp_path / "made_up.py"
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "made_up", module)
    versions = []
    for text in ("a = 1", "a = 2", "a = 1"):
        file.write_text(text)
        versions.append(flow.source_version())
    assert versions[0] == versions[2] != versions[1]
