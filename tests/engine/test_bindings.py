"""What holds for a step's connection of every kind, on every server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from onceflow.engine.bindings import Binding, BlockingSteps, binding_for, is_connection_lost
from onceflow.errors import LostContext, NoDatabase, StepSplit
from tests.servers import Server

pytestmark = pytest.mark.server("18", "15", "pgbouncer")

BEGIN = (
    "reset session authorization; reset all; unlisten *; select pg_advisory_unlock_all(); discard temp; close all; "
    "discard sequences; begin; set local idle_in_transaction_session_timeout = '300s'; "
    "set local application_name = 'onceflow-step:1'; select set_config('onceflow.step', 'token', true)"
)
FINISH = "set constraints all immediate; select 1 / (current_setting('onceflow.step', true) = 'token')::int; commit"


def asyncio_kinds() -> dict[str, Any]:
    """SQLAlchemy's asyncio kinds, where greenlet is installed."""
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    except ImportError:
        return {"sa_async_session": None, "sa_async_connection": None}
    return {"sa_async_session": AsyncSession, "sa_async_connection": AsyncConnection}


KINDS: dict[str, Any] = {
    "asyncpg": asyncpg.Connection,
    "psycopg": psycopg.Connection,
    "psycopg_async": psycopg.AsyncConnection,
    "sa_session": Session,
    "sa_connection": sa.Connection,
    **asyncio_kinds(),
}


IN_THREADS = ["psycopg", "sa_session", "sa_connection"]
ON_THE_LOOP = [name for name in KINDS if name not in IN_THREADS]


async def run(face: Any, sql: str) -> list[tuple[Any, ...]]:
    """Run one text on a face of any kind, as a user's function would; the rows, if there are any."""
    if isinstance(face, asyncpg.Connection):
        return [tuple(row) for row in await face.fetch(sql)]
    if isinstance(face, psycopg.Connection):
        cursor: Any = await asyncio.to_thread(face.execute, sql)
        return cursor.fetchall() if cursor.description else []
    if isinstance(face, psycopg.AsyncConnection):
        cursor = await face.execute(sql)
        return await cursor.fetchall() if cursor.description else []
    if isinstance(face, sa.Connection | Session):
        result: Any = await asyncio.to_thread(face.execute, sa.text(sql))
    else:
        result = await face.execute(sa.text(sql))
    return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection past any pgbouncer, with the tables of these tests."""
    with psycopg.connect(server.direct_dsn("postgres", "postgres"), autocommit=True) as connection:
        connection.execute("drop table if exists effect, pair")
        connection.execute("create table effect (id serial primary key, n int not null)")
        connection.execute("create table pair (n int unique deferrable initially deferred)")
        yield connection


@pytest.fixture(params=list(KINDS))
async def binding(request: pytest.FixtureRequest, server: Server, admin: psycopg.Connection[Any]) -> AsyncIterator[Binding]:
    """A binding of each kind for one connection, so that every step of a test gets the same one."""
    if KINDS[request.param] is None:
        pytest.skip("greenlet is not installed, which SQLAlchemy's asyncio extension needs")
    admin.execute("truncate effect, pair")
    made = binding_for(KINDS[request.param])
    assert made is not None
    found = made(server.dsn("postgres", "postgres"), 1, server.name == "pgbouncer")
    yield found
    await found.close_all()


@asynccontextmanager
async def step(binding: Binding, begin: str = BEGIN, finish: str = FINISH) -> AsyncIterator[Any]:
    """One step, as the engine runs it: any error abandons it."""
    opened = await binding.open("pay")
    try:
        await opened.begin(begin)
        yield opened
        await opened.finish(finish)
    except BaseException:
        await opened.abandon()
        raise


def effects(admin: psycopg.Connection[Any]) -> list[int]:
    """What the steps of the test have committed."""
    return [row[0] for row in admin.execute("select n from effect order by n")]


async def backend_of(opened: Any) -> int:
    """The server process behind a step's connection."""
    return int(await opened.call("select pg_backend_pid()::text"))


async def test_a_step_commits_as_one_transaction_or_leaves_nothing(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """The user's writes and the engine's calls share one xid; finish commits them, abandon undoes them."""
    async with step(binding) as opened:
        await run(opened.face(), "insert into effect (n) values (1)")
        [(mine,)] = await run(opened.face(), "select pg_current_xact_id()::text")
        assert await opened.call("select pg_current_xact_id()::text") == mine
        assert await opened.call("select $1::text || $2::text", "a", None) is None
        assert await opened.call("select ($1::bigint[])[2]::text || $2::bigint", [4, 5], 6) == "56"
        assert effects(admin) == []
    assert effects(admin) == [1]
    with pytest.raises(RuntimeError):
        async with step(binding) as opened:
            await run(opened.face(), "insert into effect (n) values (2)")
            raise RuntimeError("the user's own")
    assert effects(admin) == [1]


async def test_the_opening_is_one_simple_query(binding: Binding) -> None:
    """All its statements see one statement_timestamp(), which the server takes once for each message."""
    stamp = "set_config('t.%s', statement_timestamp()::text, true)"
    text = BEGIN.replace("begin;", f"begin; select {stamp % 'a'}; select pg_sleep(0.002); select {stamp % 'b'};")
    async with step(binding, text) as opened:
        assert await opened.call("select (current_setting('t.a') = current_setting('t.b'))::text") == "true"


async def test_isolation_can_be_chosen_in_the_opening(binding: Binding) -> None:
    """Another level needs the resets to be committed first, in the same message."""
    text = BEGIN.replace("begin;", "commit; begin isolation level serializable;")
    async with step(binding, text) as opened:
        assert await run(opened.face(), "show transaction_isolation") == [("serializable",)]


async def test_nothing_leaks_into_the_next_step(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """Settings, role, temporary tables, LISTEN, session locks, held cursors and sequences' values end with the step."""
    admin.execute("do $$ begin create role leak_role; exception when duplicate_object then null; end $$")
    async with step(binding) as opened:
        first = await backend_of(opened)
        for sql in (
            "set search_path = pg_catalog",
            "set work_mem = '123kB'",
            "create temp table effect (wrong int)",
            "select pg_advisory_lock(77)",
            "do $$ begin execute 'listen leak'; end $$",  # seen by no guard; a plain LISTEN costs the connection
            "declare held cursor with hold for select 1",
            "insert into public.effect (n) values (1)",
            "select set_config('role', 'leak_role', false)",
        ):
            await run(opened.face(), sql)
    for _ in range(2):
        opened = await binding.open("next")
        await opened.begin(BEGIN)
        face = opened.face()
        assert await backend_of(opened) == first
        assert await run(face, "select current_user::text") == [("postgres",)]
        assert await run(face, "show search_path") == [('"$user", public',)]
        assert await run(face, "show work_mem") != [("123kB",)]
        assert await run(face, "select 'effect'::regclass::oid = 'public.effect'::regclass::oid") == [(True,)]
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert await run(face, held) == [(0,)]
        assert await run(face, "select count(*) from pg_cursors where name = 'held'") == [(0,)]
        with pytest.raises(Exception, match="lastval is not yet defined"):
            await run(face, "select lastval()")
        await opened.abandon()  # also when the step that cleaned up is rolled back, the next one is clean
    async with step(binding) as opened:
        pass
    async with step(binding) as opened:
        assert await run(opened.face(), "select pg_listening_channels()") == []


REFUSED = ("commit", "/* x */ END", "select 1; rollback", "begin", "set role postgres", "prepare transaction 'x'")


async def test_commands_that_split_a_step_are_refused(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """No driver sends them; the step can go on and commit."""
    async with step(binding) as opened:
        for sql in REFUSED:
            with pytest.raises(StepSplit, match="is refused in a step"):
                await run(opened.face(), sql)
        await run(opened.face(), "insert into effect (n) values (1)")
        assert effects(admin) == []
    assert effects(admin) == [1]


async def test_a_face_is_dead_after_its_step(binding: Binding) -> None:
    """After finish and after abandon every use raises LostContext naming the step, also while another step runs."""
    faces = []
    async with step(binding) as opened:
        faces.append(opened.face())
        await run(opened.face(), "select 1")
    opened = await binding.open("pay")
    await opened.begin(BEGIN)
    faces.append(opened.face())
    await opened.abandon()
    await opened.abandon()
    async with step(binding) as later:
        for face in faces:
            with pytest.raises(LostContext, match=r"step 'pay' was used after the step ended; nothing was sent"):
                await run(face, "select 1")
        assert await run(later.face(), "select 1") == [(1,)]


async def test_a_call_left_running_never_reaches_a_later_step(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """finish refuses while a call is running; abandon cancels it, and a later step is on another connection."""
    opened = await binding.open("pay")
    await opened.begin(BEGIN)
    first = await backend_of(opened)
    slow = "insert into effect (n) select 1 from pg_sleep(60)"
    left = asyncio.ensure_future(run(opened.face(), slow))
    is_running = "select 1 from pg_stat_activity where pid = %s and query = %s"
    await until(lambda: bool(admin.execute(is_running, [first, slow]).fetchall()))
    with pytest.raises(StepSplit, match="returned while a call on its connection was still running"):
        await opened.finish(FINISH)
    await opened.abandon()
    with pytest.raises(Exception) as caught:  # each driver's own error of a cancelled or closed connection
        await asyncio.wait_for(left, 10)
    assert not isinstance(caught.value, TimeoutError)
    async with step(binding) as later:
        assert await backend_of(later) != first or binding.pgbouncer
    assert effects(admin) == []


@pytest.mark.parametrize("binding", ON_THE_LOOP, indirect=True)
async def test_a_cancelled_call_leaves_a_clean_connection(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """A step stopped in the middle of a statement is rolled back, and the next step works."""
    opened = await binding.open("pay")
    await opened.begin(BEGIN)
    await run(opened.face(), "insert into effect (n) values (1)")
    pid, slow = await backend_of(opened), "select pg_sleep(60)"
    stopped = asyncio.ensure_future(run(opened.face(), slow))
    await until(lambda: bool(admin.execute("select 1 from pg_stat_activity where pid = %s and query = %s", [pid, slow]).fetchall()))
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    await opened.abandon()
    async with step(binding) as later:
        assert await run(later.face(), "select count(*) from effect") == [(0,)]


async def test_a_failed_statement_can_not_be_committed(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """If the function swallows the error, finish fails, nothing is committed, and the next step works."""
    with pytest.raises(Exception) as caught:
        async with step(binding) as opened:
            await run(opened.face(), "insert into effect (n) values (1)")
            with pytest.raises(Exception, match="division by zero"):
                await run(opened.face(), "select 1/0")
    assert "aborted" in str(caught.value) or isinstance(caught.value, StepSplit)
    async with step(binding) as opened:
        await run(opened.face(), "insert into effect (n) values (2)")
    assert effects(admin) == [2]


async def test_a_deferred_constraint_fails_the_finish(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """Its error is the driver's, and nothing of the step is committed."""
    with pytest.raises(Exception, match="pair_n_key"):
        async with step(binding) as opened:
            await run(opened.face(), "insert into pair values (1), (1)")
    assert admin.execute("select count(*) from pair").fetchone() == (0,)


async def test_statements_stay_prepared_over_steps(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """The same text goes on working over committed and undone steps, also when the table was made anew."""
    for round_number in range(4):
        opened = await binding.open("pay")
        await opened.begin(BEGIN)
        await run(opened.face(), "create table again (n int)")
        for _ in range(7):
            await run(opened.face(), "insert into again values (1)")
            assert (await run(opened.face(), "select count(*) from effect"))[0][0] == round_number // 2
        if round_number % 2:
            await run(opened.face(), "insert into effect (n) values (1)")
            await run(opened.face(), "drop table again")
            await opened.finish(FINISH)
        else:
            await opened.abandon()


async def test_what_cannot_be_reset_costs_the_connection(binding: Binding) -> None:
    """After PREPARE the connection serves no other step; behind pgbouncer, where that has no effect, it is refused."""
    async with step(binding) as opened:
        first = await backend_of(opened)
        if binding.pgbouncer:
            with pytest.raises(StepSplit, match="behind pgbouncer"):
                await run(opened.face(), "prepare own as select 1")
            return
        await run(opened.face(), "prepare own as select 1")
    async with step(binding) as opened:
        assert await backend_of(opened) != first


async def test_a_lost_connection_is_told_and_replaced(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """The server's end of a connection is recognised in use; found at the opening, a new one takes its place."""
    opened = await binding.open("pay")
    await opened.begin(BEGIN)
    admin.execute("select pg_terminate_backend(%s, 5000)", [await backend_of(opened)])
    with pytest.raises(Exception) as caught:
        await run(opened.face(), "select 1")
    assert is_connection_lost(caught.value)
    await opened.abandon()
    async with step(binding) as opened:
        first = await backend_of(opened)
    admin.execute("select pg_terminate_backend(%s, 5000)", [first])
    async with step(binding) as opened:
        assert await backend_of(opened) != first


async def test_no_more_connections_than_the_limit(binding: Binding) -> None:
    """A further step waits for its turn; after close_all none begins, and the one in use is closed at its end."""
    opened = await binding.open("one")
    await opened.begin(BEGIN)
    waiting = asyncio.ensure_future(binding.open("two"))
    assert not (await asyncio.wait([waiting], timeout=0.05))[0]
    await opened.finish(FINISH)
    second = await asyncio.wait_for(waiting, 5)
    await second.begin(BEGIN)
    await binding.close_all()
    await second.finish(FINISH)
    with pytest.raises(NoDatabase):
        await binding.open("three")


async def test_a_failed_opening_frees_its_place(binding: Binding) -> None:
    """An error in begin, and one in connecting, leave the binding usable."""
    opened = await binding.open("pay")
    with pytest.raises(Exception, match="division by zero"):
        await opened.begin("begin; select 1/0")
    await opened.abandon()
    async with step(binding) as opened:
        pass
    broken = type(binding)(binding.dsn.replace("port=", "port=1"), 1)
    for _ in range(2):
        with pytest.raises((OSError, psycopg.OperationalError)):
            await asyncio.wait_for(broken.open("pay"), 10)


@pytest.mark.parametrize("binding", IN_THREADS, indirect=True)
async def test_a_def_step_can_share_one_thread(binding: Binding, admin: psycopg.Connection[Any]) -> None:
    """begin, function and finish in one thread; an abandonment meanwhile from the loop is safe."""
    opened: Any = await binding.open("pay")
    assert binding.runs_in_thread and isinstance(opened, BlockingSteps)

    def work() -> None:
        opened.begin_blocking(BEGIN)
        statement: Any = "insert into effect (n) values (1)"
        face: Any = opened.face()
        face.execute(statement if isinstance(face, psycopg.Connection) else sa.text(statement))
        assert opened.call_blocking("select count(*)::text from effect") == "1"
        opened.finish_blocking(FINISH)

    await asyncio.to_thread(work)
    opened.release()
    assert effects(admin) == [1]
    abandoned: Any = await binding.open("late")
    await abandoned.abandon()
    with pytest.raises(LostContext):
        await asyncio.to_thread(abandoned.begin_blocking, BEGIN)
    async with step(binding):
        pass


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
