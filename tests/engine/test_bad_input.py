"""What a user gets wrong is told in Onceflow's own words, by both clients and by workers, and leaves nothing behind."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceflow import AsyncClient, Client, InvalidArgument, MigrationError, NoDatabase, NotFound, OnceflowError, RunConflict, VersionSkew
from onceflow.db.driver_errors import is_refused
from onceflow.db.migrate import check_schema, migrate
from tests.database import TestDatabase
from tests.engine.local_worker import Engine, load_flows
from tests.processes import Workers, write_dags

DAGS = Path(__file__).parent / "flows" / "bad_input_flows.py"
flows = load_flows("bad_input_flows")


async def fail(dsn: str, ask: str, *args: Any, **kwargs: Any) -> list[OnceflowError]:
    """The error of each client, asked the same."""
    errors = []
    with Client(dsn) as client, pytest.raises(OnceflowError) as caught:
        getattr(client, ask)(*args, **kwargs)
    errors.append(caught.value)
    async with AsyncClient(dsn) as asynchronous:
        with pytest.raises(OnceflowError) as caught:
            await getattr(asynchronous, ask)(*args, **kwargs)
    return [*errors, caught.value]


def shown(error: BaseException) -> str:
    """What a terminal shows of it."""
    return "".join(traceback.format_exception(error))


def runs(db: TestDatabase) -> list[tuple[Any, ...]]:
    """Everything a start would leave."""
    return db.sql("select (select count(*) from onceflow.run), (select count(*) from onceflow.run_key), (select count(*) from onceflow.ready)")


@pytest.mark.parametrize(
    ("ask", "args", "options", "error", "message"),
    [
        ("find", ("nowhere",), {}, NotFound, "no run nowhere"),
        ("trigger", ("no_such_flow",), {}, NotFound, "no workflow or dag named no_such_flow"),
        ("start", ("echo", "x"), {"run_id": "taken"}, RunConflict, "run id taken of echo is already used"),
    ],
)
async def test_a_refusal_of_the_database_is_ours_alone(
    idle_engine: Engine, ask: str, args: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The error names what and where, and no error of a driver stands above it."""
    idle_engine.client.start(flows.echo, "first", run_id="taken")
    for found in await fail(idle_engine.db.app_dsn, ask, *args, **options):
        assert type(found) is error and message in str(found)
        assert "psycopg" not in shown(found).replace("/psycopg", "") and "asyncpg.exc" not in shown(found)


async def test_a_login_without_rights_is_told_the_role(idle_engine: Engine) -> None:
    """An auditor cannot start."""
    for error in await fail(idle_engine.db.auditor_dsn, "start", "echo", "x"):
        assert isinstance(error, InvalidArgument) and "role onceflow_operator" in str(error) and "direct cause" not in shown(error)


async def test_a_database_without_schema_is_told_apart(db: TestDatabase) -> None:
    """VersionSkew says what to run."""
    db.sql("drop schema onceflow cascade")
    for error in await fail(db.dsn, "find", "x"):
        assert isinstance(error, VersionSkew) and "onceflow db migrate" in str(error) and "direct cause" not in shown(error)


async def test_a_login_that_is_refused_is_told_at_once(db: TestDatabase) -> None:
    """An unknown role or database is no outage that might pass: one attempt."""
    for dsn in (db.server.direct_dsn("nobody_of_that_name", db.name), db.server.direct_dsn("app", "no_such_database")):
        for error in await fail(dsn, "find", "x"):
            assert isinstance(error, NoDatabase) and "does not exist" in str(error)


async def test_a_refused_connection_keeps_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens, the error of the network tells more than ours."""
    monkeypatch.setattr("onceflow.engine.client.RECONNECT_TRIES", 2)
    for error in await fail("postgresql://me:hidden@127.0.0.1:9/none", "find", "x"):
        assert isinstance(error, NoDatabase) and error.__cause__ is not None and "hidden" not in str(error)


@pytest.mark.parametrize("text", ['password authentication failed for user "x"', "fe_sendauth: no password supplied", 'database "a b" does not exist'])
def test_what_cannot_get_better_is_not_tried_again(text: str) -> None:
    """libpq gives such errors no SQLSTATE; a server that is starting up is another thing."""
    assert is_refused(psycopg.OperationalError(f"connection failed: FATAL:  {text}"))
    assert not is_refused(psycopg.OperationalError("connection failed: FATAL:  the database system is starting up"))


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((), {}, TypeError, r"pay\(.*missing a required argument: 'account'"),
        ((1, 2, 3), {}, TypeError, r"pay\(.*too many positional arguments"),
        ((1,), {"colour": 2}, TypeError, r"pay\(.*unexpected keyword argument 'colour'"),
        (("x", 2), {}, InvalidArgument, "pay: argument 'account' does not fit int"),
        ((1, "ten"), {}, InvalidArgument, "pay: argument 'amount' does not fit Decimal"),
        ((1, float("nan")), {}, InvalidArgument, "pay: argument 'amount' does not fit Decimal"),
        ((1, object()), {}, TypeError, r"pay\.amount|pay\[.amount.\]"),
    ],
)
@pytest.mark.parametrize("target", ["pay", "pay_step"])
async def test_arguments_that_do_not_fit_start_nothing(
    idle_engine: Engine, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The client names workflow or step, and the parameter; nothing is recorded."""
    before = runs(idle_engine.db)
    wanted = message.replace("pay", target)
    with pytest.raises(error, match=wanted):
        idle_engine.client.start(getattr(flows, target), *args, **kwargs)
    async with AsyncClient(idle_engine.db.app_dsn) as client:
        with pytest.raises(error, match=wanted):
            await client.start(getattr(flows, target), *args, **kwargs)
    assert runs(idle_engine.db) == before


def test_parameters_of_every_kind(engine: Engine) -> None:
    """Positional-only and keyword-only ones, by position, by name from a client, and in psql; **more of a step keeps its own type."""
    assert engine.run(flows.kinds, 1, 2, c=3) == [1, 2, 3]
    assert engine.client.start("kinds", 1, 2).result(20) == [1, 2, 0]
    assert engine.client.start("kinds", a=1, b=2, c=3).result(20) == [1, 2, 3]
    assert engine.run(flows.many, 1, 2, 3, x=4) == [1, [2, 3], {"x": 4}]


def test_misuse_in_a_body_has_a_name(engine: Engine) -> None:
    """What would have reached the database as nonsense is refused where it is called; the body may catch it, and goes on."""
    assert engine.run(flows.misuses) == [
        "sleep: the duration must be a number of seconds or a timedelta, from 0 up to 100 years; not nan (float)",
        "recv: the topic must be a text, not 5 (int)",
        "set_event: the key must be a text, not None (NoneType)",
        "gather takes calls of steps and other coroutines, not 5 (int); to pass many, write gather(*them)",
        "first_of takes calls of steps and other coroutines, not [] (list); to pass many, write first_of(*them)",
        "timeout takes calls of steps and other coroutines, not None (NoneType); to pass many, write timeout(*them)",
    ]


def test_a_fork_needs_an_id_of_its_own(engine: Engine) -> None:
    """With the run's own id, or that of another run, nothing is forked, though the arguments are the same; asked again, the fork itself is answered."""
    run = engine.client.start(flows.echo_step, "x", run_id="original")
    other = engine.client.start(flows.echo_step, "x", run_id="another")
    assert run.result(20) == other.result(20) == "x"
    for taken in ("original", "another"):
        with pytest.raises(RunConflict, match=f"run id {taken} of echo_step is already used"):
            run.fork("echo_it#0", taken)
    fork = run.fork("echo_it#0", "fork")
    assert (fork.created, fork.result(20)) == (True, "x")
    again = run.fork("echo_it#0", "fork")
    assert (again.created, again.run) == (False, fork.run)
    with pytest.raises(RunConflict):
        run.fork("echo_step", "fork")


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def foreign_database(request: pytest.FixtureRequest, db: TestDatabase) -> Iterator[tuple[str, str]]:
    """The DSN of a database of another encoding, and that encoding."""
    name = f"{db.name}_{request.param.lower()}"
    db.sql(f"create database {name} encoding '{request.param}' template template0 locale_provider libc lc_collate 'C' lc_ctype 'C'")
    yield db.server.direct_dsn("postgres", name), request.param
    db.sql(f"drop database {name} with (force)")


@pytest.mark.parametrize("ask", [migrate, check_schema])
def test_a_database_of_another_encoding_is_refused(foreign_database: tuple[str, str], ask: Callable[[str], object]) -> None:
    """At migrate and where a worker begins, before anything is made: the error names the encoding, and what to create."""
    dsn, encoding = foreign_database
    with pytest.raises(MigrationError, match=f"has the encoding {encoding}.*encoding 'UTF8' template template0"):
        ask(dsn)
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select count(*) from pg_namespace where nspname = 'onceflow'").fetchone() == (0,)


@pytest.mark.parametrize("encoding", ["sql_ascii", "latin1"])
@pytest.mark.parametrize("given", ["in the DSN", "in the environment"])
async def test_a_client_encoding_does_not_matter(idle_engine: Engine, monkeypatch: pytest.MonkeyPatch, given: str, encoding: str) -> None:
    """Neither to workers, their steps, nor clients: text of any script arrives as it was."""
    env, tail = {"ONCEFLOW_QUEUES": encoding}, ""
    if given == "in the DSN":
        tail = f"&client_encoding={encoding}"
    else:
        env["PGCLIENTENCODING"] = encoding
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
    db = idle_engine.db
    dsns = {"ONCEFLOW_DSN": db.worker_dsn, "ONCEFLOW_STEP_DSN": db.step_dsn, "ONCEFLOW_DIRECT_DSN": db.direct_dsn}
    worker = idle_engine.start_worker(env={**env, **{name: dsn + tail for name, dsn in dsns.items()}})
    check_schema(db.worker_dsn + tail)
    text = "Zürich, 東京, €"
    with Client(db.app_dsn + tail) as client:
        assert client.start(flows.store, text, queue=encoding).result(20) == text
    async with AsyncClient(db.app_dsn + tail) as asynchronous:
        assert await (await asynchronous.start(flows.store, text, queue=encoding)).result(20) == text
    worker.end()


BROKEN = {
    "raises": ("1 / 0", "raises.py cannot be imported: ZeroDivisionError: division by zero (line 1)"),
    "syntax": ("x = 1\ny = = 2", "syntax.py cannot be imported: SyntaxError: invalid syntax (syntax.py, line 2)"),
    "leaves": ("import sys\nsys.exit(3)", "leaves.py cannot be imported: SystemExit: 3 (line 2). Put what is a program under: if __name__"),
    "cancels": ("import asyncio\nraise asyncio.CancelledError", "cancels.py cannot be imported: CancelledError"),
    "missing": (
        "import no_such_package",
        "missing.py cannot be imported: ModuleNotFoundError: No module named 'no_such_package' (line 1). Install no_such_package",
    ),
    "mistake": ("from onceflow import step\n@step(retries=-1)\ndef f(): ...", "mistake.py cannot be imported: AuthoringError: @step: retries must be"),
    "half": ("from onceflow import workflow\n@workflow\ndef half(): ...\nraise ValueError('late')", "half.py cannot be imported: ValueError: late (line 4)"),
    "twice": ("from onceflow import workflow\n@workflow\ndef twin(): ...", "twice.py cannot be imported: AuthoringError: two workflows are named 'twin'"),
    "json": ("x = 1", "json.py: a module named 'json' is imported already"),
}
GOOD = """
    from onceflow import workflow

    print("printed on import")

    @workflow
    def good() -> str:
        return "good"

    @workflow
    def twin() -> None: ...
"""


def test_a_worker_serves_what_it_can(db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """Each broken file is one line of its log that names file, line and mistake; the others are served; a name that two files give is not."""
    folder = write_dags(tmp_path, "good", GOOD)
    for name, (text, _) in BROKEN.items():
        (folder / f"{name}.py").write_text(text)
    worker = workers.start(folder)
    assert db.sql("select dag_id from onceflow.dag order by 1") == [("good",)]
    with Client(db.app_dsn) as client:
        assert client.trigger("good").result(20) == "good"
    lines = [line for line in worker.log_text().splitlines() if "a file is not served" in line]
    assert len(lines) == len(BROKEN) and "Traceback" not in worker.log_text()
    for _, said in BROKEN.values():
        assert sum(said in line for line in lines) == 1, (said, lines)
