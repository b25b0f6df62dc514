"""Clients: start runs, also inside the caller's own transaction, wait for them, steer them, read them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onceflow import AsyncClient, AuthoringError, RunCancelled, RunConflict, WaitTimeout
from onceflow.errors import InvalidArgument, NotFound
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "client_flows.py"
flows = load_flows("client_flows")
TEN = Decimal("10.00")


def exists(engine: Engine, run_id: str) -> bool:
    """Is there a run, or a mere key of one?"""
    found = engine.db.sql(
        "select (select count(*) from onceflow.run where run_id = %s), (select count(*) from onceflow.run_key where run_id = %s)", run_id, run_id
    )[0]
    assert found in [(0, 0), (1, 1)]
    return found == (1, 1)


def sa_dsn(engine: Engine, driver: str) -> str:
    """The application's DSN for SQLAlchemy: the socket's folder goes as a query parameter."""
    return engine.db.app_dsn.replace("postgresql://", f"postgresql+{driver}://")


def test_start_result_state_steps(engine: Engine) -> None:
    """One start, its result and state; steps() lists the ledger entries in order with inputs and outputs."""
    run = engine.client.start(flows.transfer, 1, 2, TEN)
    assert run.created
    assert run.result(timeout_s=20) == "moved 10.00"
    assert run.state == "success"
    entries = run.steps()
    assert [(e["step_key"], e["from_state"], e["to_state"]) for e in entries] == [
        ("debit#0", "running", "success"),
        ("credit#0", "running", "success"),
        ("transfer", "running", "success"),
    ]
    assert entries[0]["inputs"]["account"] == 1 and entries[0]["output"] == {"$decimal": "90.00"}
    assert entries[0]["xid"] != entries[1]["xid"]
    assert engine.db.sql("select balance from account where id in (1, 2) order by id") == [(90,), (110,)]


def test_a_run_id_is_an_idempotency_key(engine: Engine) -> None:
    """The same id and arguments: the same run, whatever its state; other arguments: RunConflict; another workflow: another run."""
    run = engine.client.start(flows.transfer, 3, 4, TEN, run_id="pay-42")
    again = engine.client.start(flows.transfer, 3, 4, amount=TEN, run_id="pay-42")
    assert (run.created, again.created, again.run) == (True, False, run.run)
    assert run.result(20) == "moved 10.00"
    late = engine.client.start(flows.transfer, 3, 4, TEN, run_id="pay-42")
    assert (late.created, late.result(5)) == (False, "moved 10.00")
    with pytest.raises(RunConflict, match="pay-42"):
        engine.client.start(flows.transfer, 3, 4, Decimal("10.01"), run_id="pay-42")
    assert engine.client.start(flows.describe, 1, run_id="pay-42").created
    assert engine.db.sql("select balance from account where id in (3, 4) order by id") == [(90,), (110,)]


def test_racing_starts_make_one_run(engine: Engine) -> None:
    """Twenty threads with one client and one run id: one of them creates it."""
    found: list[Any] = []

    def start() -> None:
        found.append(engine.client.start(flows.describe, 1, run_id="race"))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(run.created for run in found) == 1
    assert len({run.run for run in found}) == 1


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg dict rows", "session", "connection", "connection in begin"])
def test_start_in_the_callers_transaction(engine: Engine, kind: str, commits: bool) -> None:
    """With the commit the run exists, and the caller's row; after a rollback neither ever did."""
    run_id = f"own {kind} {commits}"
    insert = f"insert into effect (what) values ('{run_id}')"
    sa_engine = sa.create_engine(sa_dsn(engine, "psycopg"))

    def start(conn: Any) -> None:
        run = engine.client.start(flows.describe, 1, conn=conn, run_id=run_id)
        assert run.created and run.run_id == run_id
        assert not exists(engine, run_id)

    def end(conn: Any) -> None:
        conn.commit() if commits else conn.rollback()

    if kind.startswith("psycopg"):
        with psycopg.connect(engine.db.app_dsn, row_factory=dict_row if "dict" in kind else psycopg.rows.tuple_row) as conn:
            conn.execute(insert.encode())
            start(conn)
            end(conn)
    elif kind == "session":
        with Session(sa_engine) as session:
            start(session)
            session.execute(sa.text(insert))
            end(session)
    elif kind == "connection":
        with sa_engine.connect() as connection:
            start(connection)
            end(connection)
            assert exists(engine, run_id) is commits  # though SQLAlchemy itself has sent nothing
            connection.execute(sa.text(insert))
            end(connection)
    else:
        with sa_engine.connect() as connection:
            transaction = connection.begin()
            connection.execute(sa.text(insert))
            start(connection)
            transaction.commit() if commits else transaction.rollback()
    sa_engine.dispose()
    assert exists(engine, run_id) is commits
    assert engine.db.sql("select count(*) from effect where what = %s", run_id) == [(int(commits),)]
    if commits:
        assert engine.client.find(run_id).result(20) == [1, 2, "3"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg dict rows", "session psycopg", "session asyncpg", "connection psycopg"])
async def test_async_start_in_the_callers_transaction(engine: Engine, kind: str, commits: bool) -> None:
    """The same for AsyncClient: asyncpg, psycopg.AsyncConnection, AsyncSession and AsyncConnection over either driver."""
    run_id = f"async {kind} {commits}"
    async with AsyncClient(engine.db.app_dsn) as client:

        async def start(conn: Any) -> None:
            run = await client.start(flows.describe, 1, conn=conn, run_id=run_id)
            assert run.created
            assert not exists(engine, run_id)

        await in_transaction(engine, kind, commits, start)
        assert exists(engine, run_id) is commits
        if commits:
            run = await client.find(run_id)
            assert await run.result(20) == [1, 2, "3"]
            assert await run.state() == "success"
            assert [e["step_key"] for e in await run.steps()] == ["describe"]


async def in_transaction(engine: Engine, kind: str, commits: bool, work: Callable[[Any], Any]) -> None:
    """Does the work in a transaction of that kind."""
    dsn = engine.db.app_dsn
    if kind == "asyncpg":
        pg = await asyncpg.connect(dsn)
        transaction = pg.transaction()
        await transaction.start()
        await work(pg)
        await (transaction.commit() if commits else transaction.rollback())
        await pg.close()
    elif kind.startswith("psycopg"):
        async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row if "dict" in kind else psycopg.rows.tuple_row) as conn:
            await work(conn)
            await (conn.commit() if commits else conn.rollback())
    else:
        sa_engine = create_async_engine(sa_dsn(engine, kind.split()[1]))
        async with AsyncSession(sa_engine) if kind.startswith("session") else sa_engine.connect() as session:
            await work(session)
            await (session.commit() if commits else session.rollback())
        await sa_engine.dispose()


def test_start_inside_a_step(engine: Engine) -> None:
    """In a transactional step the step's own connection may be the caller's: the run commits with the step, or never exists."""
    assert engine.run(flows.starter, engine.db.app_dsn) == ["from-step-False", "from-async-step", "rolled back"]
    assert exists(engine, "from-step-False") and exists(engine, "from-async-step")
    assert not exists(engine, "from-step-True")


def test_using(engine: Engine) -> None:
    """Options apart from the arguments; an unknown option is refused."""
    run = engine.client.using(run_id="used", priority=3, queue="default", delay=0.1).start(flows.describe, "x", third="y")
    assert run.result(20) == ["x", 2, "y"]
    assert engine.db.sql("select run_id, priority from onceflow.dag_run where id = %s", run.run) == [("used", 3)]
    with pytest.raises(TypeError, match="colour"):
        engine.client.using(colour="red")


def test_waiting_has_a_limit(engine: Engine) -> None:
    """WaitTimeout, which is a TimeoutError, names the run; the run itself goes on."""
    run = engine.client.start(flows.held)
    with pytest.raises(WaitTimeout, match=r"held is still (queued|running) after 0\.1 s") as raised:
        run.result(timeout_s=0.1)
    assert isinstance(raised.value, TimeoutError)
    run.send("late")
    assert run.result(20) == "late"


def test_a_failed_run_raises_its_original_error(engine: Engine) -> None:
    """The exception of the step with its attributes; nothing was moved."""
    run = engine.client.start(flows.transfer, 5, 6, Decimal("100.50"))
    with pytest.raises(flows.Overdrawn) as raised:
        run.result(20)
    assert (raised.value.account, raised.value.missing) == (5, Decimal("0.50"))
    assert run.state == "failed"
    assert engine.db.sql("select balance from account where id in (5, 6) order by id") == [(100,), (100,)]


def test_cancel(engine: Engine) -> None:
    """A cancelled run says so, with the reason; a second cancel is quiet, one of an ended run is refused."""
    run = engine.client.start(flows.held)
    run.cancel("changed my mind", actor="ann")
    with pytest.raises(RunCancelled, match="changed my mind"):
        run.result(20)
    assert [(e["kind"], e["actor"]) for e in run.steps() if e["kind"] == "human"] == [("human", "ann")]
    run.cancel()
    done = engine.client.start(flows.describe, 1)
    done.result(20)
    with pytest.raises(Exception, match="ended already"):
        done.cancel()


def test_start_by_name(engine: Engine) -> None:
    """By position or by name, never mixed; a step by its name too; queue, retries and timeout as declared; an unknown name is NotFound."""
    assert engine.run("transfer", 7, 8, TEN) == "moved 10.00"
    assert engine.client.start("transfer", source=7, target=8, amount=TEN).result(20) == "moved 10.00"
    assert engine.run("debit", 7, TEN) == Decimal(70)
    assert engine.run(flows.debit, 7, TEN) == Decimal(60)
    with pytest.raises(AuthoringError, match="by position or all by name"):
        engine.client.start("transfer", 7, 8, amount=TEN)
    with pytest.raises(NotFound, match="no_such_flow"):
        engine.client.start("no_such_flow")
    slow = engine.start_worker(queues=["slow"])
    for run in (engine.client.start("declared"), engine.client.start(flows.declared), engine.client.trigger("declared")):
        assert run.result(20) == ["second"]
        assert engine.db.sql("select queue from onceflow.dag_run where id = %s", run.run) == [("slow",)]
    slow.end()
    waiting = engine.client.start("declared", queue="nobody")
    assert engine.db.sql("select extract(epoch from due_at - now())::float8 > 25 from onceflow.timer where run = %s and kind = 'run_timeout'", waiting.run) == [
        (True,)
    ]


def test_plain_json_in_psql(engine: Engine) -> None:
    """start_run in psql, in a transaction of one's own: "10.00" fits a Decimal parameter; what does not fit fails by name."""
    with engine.db.connect("app") as app, app.transaction():
        started = app.execute("""select onceflow.start_run('transfer', '{"source": 9, "target": 8, "amount": "10.00"}', 'psql-1')""").fetchone()
        assert not exists(engine, "psql-1")
    assert started is not None and started[0]["created"]
    assert engine.client.find("psql-1").result(20) == "moved 10.00"
    engine.db.sql("""select onceflow.start_run('transfer', '{"source": 9, "target": 8, "amount": "ten"}', 'psql-2')""")
    with pytest.raises(InvalidArgument, match=r"transfer: argument 'amount' does not fit Decimal"):
        engine.client.find("psql-2").result(20)
    engine.db.sql("""select onceflow.start_run('transfer', '{"source": 9}', 'psql-3')""")
    with pytest.raises(InvalidArgument, match="missing a required argument: 'target'"):
        engine.client.find("psql-3").result(20)


def test_naive_datetimes_are_utc(engine: Engine) -> None:
    """A logical date without a zone is UTC; as a value it stays as it is."""
    run = engine.client.trigger("describe", logical_date=datetime(2026, 1, 1, 12), params={"first": datetime(2026, 1, 1)})
    assert run.result(20) == [datetime(2026, 1, 1), 2, "3"]
    assert engine.db.sql("select logical_date from onceflow.dag_run where id = %s", run.run) == [(datetime(2026, 1, 1, 12, tzinfo=UTC),)]


def test_find(engine: Engine) -> None:
    """By id; an ambiguous id needs the dag; an unknown one is NotFound."""
    engine.client.start(flows.describe, 1, run_id="twice")
    engine.client.start(flows.held, run_id="twice")
    assert engine.client.find("twice", "describe").result(20) == [1, 2, "3"]
    with pytest.raises(NotFound, match="several dags"):
        engine.client.find("twice")
    with pytest.raises(NotFound, match="no run nowhere"):
        engine.client.find("nowhere")
    engine.client.find("twice", "held").cancel()


def test_arguments_are_checked_before_anything_is_sent(engine: Engine) -> None:
    """A start that does not fit the signature raises in the caller; a connection of the wrong kind too."""
    with pytest.raises(TypeError, match=r"transfer.*missing a required argument"):
        engine.client.start(flows.transfer, 1)
    with pytest.raises(TypeError, match="unexpected"):
        engine.client.start(flows.describe, 1, fourth=4)
    with pytest.raises(AuthoringError, match="pass a @workflow"):
        engine.client.start(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncClient"):
        engine.client.start(flows.describe, 1, conn=object())


async def test_async_client(engine: Engine) -> None:
    """start, using, trigger, result, cancel, retry, fork, send, events and WaitTimeout, with await."""
    async with AsyncClient(engine.db.app_dsn) as client:
        assert await (await client.start(flows.describe, "x")).result(20) == ["x", 2, "3"]
        assert await (await client.using(run_id="async-used").start(flows.describe, "x", 5)).result(20) == ["x", 5, "3"]
        assert await (await client.trigger("describe", params={"first": 1})).result(20) == [1, 2, "3"]
        triggered = await client.using(run_id="async-triggered").trigger("describe", {"first": 2})
        assert (triggered.run_id, await triggered.result(20)) == ("async-triggered", [2, 2, "3"])
        run = await client.start(flows.held)
        with pytest.raises(WaitTimeout):
            await run.result(0.1)
        assert await run.send("now", key="k") is True
        assert await run.send("now", key="k") is False
        assert await run.result(20) == "now"
        assert await run.get_event("none") is None
        fork = await run.fork("recv#0")
        await fork.cancel("no need")
        with pytest.raises(RunCancelled):
            await fork.result(20)
        await fork.retry()
        await fork.send("again")
        assert await fork.result(20) == "again"
