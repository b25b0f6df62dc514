"""What users of each driver rely on inside a step, and what each driver's own ways out are closed with."""

from __future__ import annotations

import asyncio
import gc
import io
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceflow.engine.bindings import Binding, binding_for
from onceflow.errors import LostContext, StepSplit
from tests.engine.test_bindings import KINDS
from tests.servers import Server

BEGIN = "reset all; discard temp; begin; select set_config('onceflow.step', 'token', true)"
FINISH = "set constraints all immediate; select 1 / (current_setting('onceflow.step', true) = 'token')::int; commit"


class Base(DeclarativeBase):
    """The mapped classes of these tests."""


class Effect(Base):
    """One row a step writes."""

    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(unique=True)


class OwnSession(Session):
    """An application's own session class."""

    def add_effect(self, n: int) -> None:
        """Something of its own."""
        self.add(Effect(n=n))


Insert = Callable[[int], str]


def insert(n: int) -> str:
    """The SQL of one effect."""
    return f"insert into effect (n) values ({n})"


@pytest.fixture
def admin(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection, with the tests' empty table."""
    with psycopg.connect(server.direct_dsn("postgres", "postgres"), autocommit=True) as connection:
        connection.execute("drop table if exists effect")
        connection.execute("create table effect (id serial primary key, n int unique not null)")
        yield connection


def effects(admin: psycopg.Connection[Any]) -> list[int]:
    """What the steps of the test have committed."""
    return [row[0] for row in admin.execute("select n from effect order by n")]


@asynccontextmanager
async def step_on(annotation: Any, server: Server, binding: Binding | None = None) -> AsyncIterator[Any]:
    """One step on a connection of this kind; gives the face."""
    made = binding_for(annotation)
    assert made is not None
    used = binding or made(server.dsn("postgres", "postgres"), 1)
    opened = await used.open("pay")
    try:
        await opened.begin(BEGIN)
        face = opened.face()
        assert isinstance(face, annotation)
        yield face
        await opened.finish(FINISH)
    except BaseException:
        await opened.abandon()
        raise
    finally:
        if binding is None:
            await used.close_all()


async def test_asyncpg_works_as_ever(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Every way of running and reading, in the step's one transaction."""
    async with step_on(asyncpg.Connection, server) as conn:
        assert await conn.execute("insert into effect (n) values ($1)", 1) == "INSERT 0 1"
        await conn.execute(f"{insert(2)}; {insert(3)}")
        await conn.executemany("insert into effect (n) values ($1)", [(4,), (5,)])
        prepared = await conn.prepare("select count(*) from effect where n > $1")
        assert await prepared.fetchval(3) == 2
        assert [row["n"] async for row in conn.cursor("select n from effect order by n")] == [1, 2, 3, 4, 5]
        assert (await conn.fetchrow("select n from effect where n = $1", 2))["n"] == 2
        await conn.copy_records_to_table("effect", columns=["n"], records=[(6,)])
        await conn.copy_to_table("effect", columns=["n"], source=io.BytesIO(b"7\n"))
        target = io.BytesIO()
        await conn.copy_from_query("select max(n) from effect where n > $1", 1, output=target)
        assert target.getvalue() == b"7\n" and conn.is_in_transaction() and conn.get_server_pid()
    assert effects(admin) == [1, 2, 3, 4, 5, 6, 7]


async def test_asyncpg_transactions_are_savepoints(server: Server, admin: psycopg.Connection[Any]) -> None:
    """`async with conn.transaction()` undoes its own part only, nested too."""
    async with step_on(asyncpg.Connection, server) as conn:
        async with conn.transaction():
            await conn.execute(insert(1))
            with pytest.raises(asyncpg.UniqueViolationError):
                async with conn.transaction():
                    await conn.execute(insert(2))
                    await conn.execute(insert(1))
        begun = conn.transaction()
        await begun.start()
        await conn.execute(insert(3))
        await begun.rollback()
        assert effects(admin) == []
    assert effects(admin) == [1]


async def test_asyncpg_refuses_the_ways_out(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Methods that end the transaction, and every method that takes SQL."""
    async with step_on(asyncpg.Connection, server) as conn:
        for refused in (conn.close, conn.terminate, conn.reset):
            with pytest.raises(StepSplit, match="refused in step 'pay'"):
                await refused()
        for method in ("execute", "fetch", "fetchval", "fetchrow", "prepare", "copy_from_query"):
            with pytest.raises(StepSplit, match="COMMIT is refused"):
                await getattr(conn, method)("select 1; commit")
        with pytest.raises(StepSplit):
            await conn.executemany(command="commit", args=[()])
        with pytest.raises(StepSplit):
            conn.cursor("commit")
        with pytest.raises(StepSplit):
            await conn.copy_from_query("select 1) to stdout; commit; copy (select 1", output=io.BytesIO())
        with pytest.raises(StepSplit):
            await conn.copy_to_table("effect", source=io.BytesIO(), where="true; commit")


async def test_asyncpg_objects_die_with_the_step(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Prepared statements, cursors, transactions and listeners of one step do nothing in the next."""
    binding = binding_for(asyncpg.Connection)(server.dsn("postgres", "postgres"), 1)  # type: ignore[misc]
    heard: list[Any] = []
    async with step_on(asyncpg.Connection, server, binding) as conn:
        prepared = await conn.prepare(insert(1))
        transaction = conn.transaction()
        cursor = await conn.cursor("select 1")
        await conn.add_listener("leak", lambda face, *rest: heard.append(face))
        pid = conn.get_server_pid()
    async with step_on(asyncpg.Connection, server, binding) as later:
        assert later.get_server_pid() == pid
        for use in (prepared.fetch, transaction.start, lambda: cursor.fetch(1)):
            with pytest.raises(asyncpg.InterfaceError, match="released"):
                await use()
        with pytest.raises(LostContext):
            await conn.copy_records_to_table("effect", records=[])
        await later.set_type_codec("jsonb", encoder=str, decoder=len, schema="pg_catalog")
        await later.execute("notify leak")
        assert await later.fetchval("select '[1]'::jsonb") == 3
    async with step_on(asyncpg.Connection, server, binding) as last:
        assert await last.fetchval("select '[1]'::jsonb") == "[1]"
        assert last.get_server_pid() != pid and heard == []
    await binding.close_all()


async def test_psycopg_works_as_ever(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Cursors, named cursors, stream, COPY, executemany, pipeline, composed SQL, bytes and row factories."""
    async with step_on(psycopg.Connection, server) as conn:
        conn.row_factory = dict_row
        with conn.cursor() as cursor:
            cursor.executemany("insert into effect (n) values (%s)", [(1,), (2,)])
            cursor.execute("select n from effect where n = %(n)s", {"n": 1})
            assert cursor.fetchone() == {"n": 1} and cursor.connection is conn
            with cursor.copy("copy effect (n) from stdin") as copy:
                copy.write_row((3,))
            assert [row["n"] for row in cursor.stream("select n from effect order by n")] == [1, 2, 3]
        with conn.cursor("named") as named:
            assert len(named.execute("select n from effect").fetchall()) == 3
        with conn.pipeline():
            conn.execute(b"insert into effect (n) values (4)")
        conn.execute(sql.SQL("insert into {} (n) values ({})").format(sql.Identifier("effect"), 5))
        conn.cursor_factory = psycopg.ClientCursor
        conn.execute("insert into effect (n) values (%s); insert into effect (n) values (%s)", [6, 7])
    assert effects(admin) == [1, 2, 3, 4, 5, 6, 7]


async def test_psycopg_transactions_are_savepoints(server: Server, admin: psycopg.Connection[Any]) -> None:
    """`with conn.transaction()` undoes its own part only, sync and async."""
    async with step_on(psycopg.Connection, server) as conn:
        with pytest.raises(psycopg.errors.UniqueViolation), conn.transaction():
            conn.execute(insert(1))
            conn.execute(insert(1))
        with conn.transaction():
            conn.execute(insert(2))
        assert effects(admin) == []
    async with step_on(psycopg.AsyncConnection, server) as conn:
        with pytest.raises(psycopg.errors.UniqueViolation):
            async with conn.transaction():
                await conn.execute(insert(2))
        async with conn.transaction():
            await conn.execute(insert(3))
    assert effects(admin) == [2, 3]


async def test_psycopg_refuses_the_ways_out(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Methods, context manager, autocommit, and SQL in every form and method; `with conn.cursor()` is fine."""
    async with step_on(psycopg.Connection, server) as conn:
        for refused in (conn.commit, conn.rollback, conn.close, lambda: conn.tpc_begin("x"), conn.tpc_commit):
            with pytest.raises(StepSplit, match="refused in step 'pay'"):
                refused()
        with pytest.raises(StepSplit):
            conn.autocommit = False
        with pytest.raises(StepSplit, match="`with` on the connection"), conn:
            pass
        for text in ("commit", b"select 1; commit", sql.SQL("commit"), sql.SQL("select {}; end").format("end")):
            with pytest.raises(StepSplit, match=r"(COMMIT|END) is refused"):
                conn.execute(text)
        cursor = conn.cursor()
        for use in (cursor.executemany, cursor.stream, cursor.copy, conn.cursor("named").execute):
            with pytest.raises(StepSplit, match="COMMIT is refused"):
                use("select 1; commit", [])
        conn.cursor_factory = psycopg.RawCursor
        with pytest.raises(StepSplit):
            conn.execute("commit")
    async with step_on(psycopg.AsyncConnection, server) as conn:
        for refused in (conn.commit, conn.rollback, conn.close):
            with pytest.raises(StepSplit):
                await refused()
        with pytest.raises(StepSplit):
            async with conn:
                pass
        with pytest.raises(StepSplit):
            await conn.cursor().execute(query="commit")


async def test_a_split_the_guard_cannot_see_is_noticed_at_once(server: Server, admin: psycopg.Connection[Any]) -> None:
    """A cursor class used behind the face's back: the call raises, and nothing more runs or commits."""
    with pytest.raises(StepSplit, match="not bound to its record"):
        async with step_on(psycopg.Connection, server) as conn:
            with pytest.raises(StepSplit, match="not bound to its record"):
                psycopg.ClientCursor(conn).execute("commit")
            with pytest.raises(StepSplit):
                conn.execute(insert(1))
    with pytest.raises(asyncpg.DivisionByZeroError):  # the engine's own completion raises its own error here
        async with step_on(asyncpg.Connection, server) as face:
            await face._con.execute("commit; begin")
    assert effects(admin) == []


async def test_what_is_set_on_a_psycopg_connection_ends_with_it(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Row factory, adapters, handlers, thresholds and open iterators do not reach the next step."""
    binding = binding_for(psycopg.Connection)(server.dsn("postgres", "postgres"), 1, server.name == "pgbouncer")  # type: ignore[misc]
    notices: list[Any] = []
    async with step_on(psycopg.Connection, server, binding) as conn:
        conn.row_factory = dict_row
        conn.prepare_threshold = 0
        conn.adapters.register_loader("int4", psycopg.types.string.TextLoader)
        conn.add_notice_handler(notices.append)
        cursor = conn.execute("select 1")
        pid = conn.info.backend_pid
    async with step_on(psycopg.Connection, server, binding) as later:
        assert later.info.backend_pid == pid and later.prepare_threshold == (None if server.name == "pgbouncer" else 5)
        later.execute("do $$ begin raise notice 'hello'; end $$")
        assert later.execute("select 1").fetchone() == (1,) and notices == []
        for use in (cursor.execute, conn.cursor().execute if not conn.closed else conn.execute):
            with pytest.raises(LostContext):
                use("select 1")
        assert conn.closed and cursor.fetchone() == {"?column?": "1"}
    with pytest.raises(StepSplit, match="still running"):
        async with step_on(psycopg.Connection, server, binding) as conn:
            rows = conn.cursor().stream("select generate_series(1, 100000)")
            next(rows)
    async with step_on(psycopg.Connection, server, binding) as later:
        assert later.info.backend_pid != pid
    await binding.close_all()


async def test_a_session_is_flushed_and_committed_with_the_step(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Pending objects are written at the end; `with session.begin()` only flushes; begin_nested() is a savepoint."""
    async with step_on(Session, server) as session:
        with session.begin():
            session.add(Effect(n=1))
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.add(Effect(n=1))
        with session.connection().connection.driver_connection.cursor().copy("copy effect (n) from stdin") as copy:
            copy.write_row((2,))
        assert session.scalars(sa.select(Effect.n).order_by(Effect.n)).all() == [1, 2]
        kept = Effect(n=3)
        session.add(kept)
        assert effects(admin) == []
    assert effects(admin) == [1, 2, 3] and kept.n == 3
    async with step_on(OwnSession, server) as session:
        session.add_effect(4)
    assert effects(admin) == [1, 2, 3, 4]
    with pytest.raises(sa.exc.IntegrityError):
        async with step_on(Session, server) as session:
            session.add(Effect(n=5))
            session.add(Effect(n=1))
    assert effects(admin) == [1, 2, 3, 4]


async def test_sqlalchemy_refuses_the_ways_out(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Session and connection, their transactions, text, and further connections of the engine."""
    async with step_on(Session, server) as session:
        connection = session.connection()
        for refused in (
            session.commit, session.rollback, session.invalidate, session.close, session.reset, connection.commit, connection.rollback,
            connection.begin, connection.close, connection.invalidate, connection.detach, lambda: session.execute(sa.text("commit")),
            lambda: connection.exec_driver_sql("select 1; commit"), lambda: session.get_bind().engine.connect(),
        ):  # fmt: skip
            with pytest.raises(StepSplit):
                refused()
        session.add(Effect(n=1))
        with pytest.raises(StepSplit, match="`with` on the session"), session:
            session.add(Effect(n=2))
    assert effects(admin) == [1, 2]
    with pytest.raises(StepSplit, match="its session was rolled back"):
        async with step_on(sa.Connection, server) as connection:
            connection.get_transaction().rollback()
            connection.execute(sa.text(insert(3)))


@pytest.mark.skipif(KINDS["sa_async_session"] is None, reason="greenlet is not installed")
async def test_sqlalchemys_asyncio_faces_refuse_the_ways_out(server: Server, admin: psycopg.Connection[Any]) -> None:
    """The same on the loop, by the outer object and by the one inside; nothing that was not flushed yet is forgotten."""
    async with step_on(KINDS["sa_async_session"], server) as session:
        session.add(Effect(n=1))
        inner = session.sync_session
        for refused in (session.commit, session.rollback, session.close, session.aclose, session.reset, session.invalidate, inner.close, inner.reset):
            with pytest.raises(StepSplit, match=r"Session\.\w+\(\).* is refused in step 'pay'"):
                await refused()
        with pytest.raises(StepSplit, match="`with` on the session"):
            async with session:
                session.add(Effect(n=2))
    async with step_on(KINDS["sa_async_connection"], server) as connection:
        await connection.execute(sa.text(insert(3)))
        for refused in (connection.commit, connection.rollback, connection.close, connection.aclose, connection.invalidate):
            with pytest.raises(StepSplit, match=r"Connection\.\w+\(\).* is refused in step 'pay'"):
                await refused()
    assert effects(admin) == [1, 2, 3]


async def test_a_rolled_back_session_cannot_go_on(server: Server, admin: psycopg.Connection[Any]) -> None:
    """A flush that fails is SQLAlchemy's rollback; if the function swallows it, the step is not committed."""
    with pytest.raises(StepSplit, match=r"its session was rolled back; raise to undo the step, or use begin_nested"):
        async with step_on(Session, server) as session:
            session.execute(sa.text(insert(1)))
            session.add(Effect(n=1))
            with pytest.raises(sa.exc.IntegrityError):
                session.flush()
    assert effects(admin) == []


async def test_sqlalchemy_asyncio_works_as_ever(server: Server, admin: psycopg.Connection[Any]) -> None:
    """The asyncio session and connection: flush, savepoints, refusals."""
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    async with step_on(AsyncSession, server) as session:
        session.add(Effect(n=1))
        with pytest.raises(sa.exc.IntegrityError):
            async with session.begin_nested():
                session.add(Effect(n=1))
        session.add(Effect(n=2))
        for refused in (session.commit, session.rollback, session.invalidate):
            with pytest.raises(StepSplit):
                await refused()
    async with step_on(AsyncConnection, server) as connection:
        async with connection.begin_nested():
            await connection.execute(sa.insert(Effect).values(n=3))
        for refused in (connection.commit, connection.rollback, connection.begin):
            with pytest.raises(StepSplit):
                await refused()
    assert effects(admin) == [1, 2, 3]


async def test_faces_leave_no_warnings_behind(server: Server, admin: psycopg.Connection[Any]) -> None:
    """Dead faces are collected in silence: nothing is closed, rolled back or warned about behind the engine's back."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in (asyncpg.Connection, psycopg.Connection, psycopg.AsyncConnection, Session, sa.Connection):
            async with step_on(kind, server) as face:
                pass
            del face
        gc.collect()
        await asyncio.sleep(0)
    assert [str(warning.message) for warning in caught] == []
