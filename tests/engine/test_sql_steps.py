"""SQL steps on real workers: inside Postgres where that is exact, by their driver where not, and the same for whoever calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from onceflow import LostContext
from onceflow.codec import decode, encode
from onceflow.db.sql_text import make_form
from onceflow.errors import AuthoringError, EncodingError, RunCancelled, StepSplit
from tests.database import TestDatabase
from tests.engine.local_worker import FLOWS, Engine, load_flows
from tests.proxy import Proxy, When

DAGS = FLOWS / "sql_flows.py"
flows = load_flows("sql_flows")
TABLES = """
    create table only_once (id int primary key);
    create table changing (id int);
    insert into changing values (1);
    create sequence tries;
    create sequence losses;
    create procedure split() language plpgsql as 'begin commit; end';
    grant all on only_once, changing, tries, losses to public;
    grant execute on procedure split() to public
"""
SLEEPING = "select count(*) from pg_stat_activity where usename = 'onceflow_step' and datname = current_database() and wait_event = 'PgSleep'"


@pytest.fixture(scope="module")
def engine(idle_engine: Engine) -> Engine:
    """The module's database with more tables, and one worker."""
    with idle_engine.db.connect("app") as conn:
        conn.execute(TABLES)
    idle_engine.start_worker()
    return idle_engine


def is_inside(engine: Engine) -> bool:
    """Do SQL steps run inside Postgres here? Behind a pooler they go by their driver."""
    return engine.db.server.name != "pgbouncer"


@pytest.mark.parametrize("way", [flows.call, flows.start])
def test_a_step_runs_inside_postgres(engine: Engine, way: Any) -> None:
    """In a body and as a task of its own, with arguments and without; the ledger says sql."""
    expected = {"inside": is_inside(engine)}
    run = engine.client.start(way, "inside", [])
    assert run.result(20) == [expected]
    assert engine.run(way, "inside_with", ["it's $1", -3]) == [expected | {"text": "it's $1", "number": -3}]
    assert {entry["kind"] for entry in run.steps() if entry["step_name"] == "inside" and entry["to_state"] == "success"} - {"engine"} == {"sql"}


def test_a_run_may_be_a_single_sql_step(engine: Engine) -> None:
    """Started by a client, it is the whole run."""
    text = "select onceflow.start_run('inside_with', '[\"a\", 1]'::jsonb, 'single', task_kind => 'step')"
    engine.db.sql('select onceflow.register_dags(\'[{"dag_id": "inside_with", "kind": "step", "code_version": "any"}]\')')
    engine.db.sql(text)
    assert engine.client.find("single", "inside_with").result(20)[0]["text"] == "a"


@pytest.mark.parametrize(("name", "args"), [("by_driver", ([1, 2],)), ("inside_with", ("a", None))])
def test_what_is_not_exact_goes_by_the_driver(engine: Engine, name: str, args: tuple[Any, ...]) -> None:
    """An array does; NULL does not need to. Nobody else sees a difference."""
    assert engine.run(flows.call, name, list(args))[0]["inside"] is (is_inside(engine) and name == "inside_with")


def test_statements_that_write(engine: Engine) -> None:
    """INSERT without RETURNING, with a common table expression that writes, and one that answers its rows."""
    run = engine.client.start(flows.move, "moved")
    assert run.result(20) == ([], [{"note": "a!"}])
    assert engine.db.sql("select * from effect where what = 'moved'") == []
    assert engine.db.sql("select count(*), count(distinct xid) from onceflow.step_ledger where dag_run = %s and kind = 'sql'", run.run) == [(3, 3)]


@pytest.mark.parametrize("way", [flows.book, flows.book_started])
def test_a_group(engine: Engine, way: Any) -> None:
    """Many at once share transactions; each answers its own rows, and each effect is there once, with its entry."""
    run = engine.client.start(way, f"group-{way.name}", 40)
    assert run.result(30) == [[{"note": str(n)}] for n in range(40)]
    written = engine.db.sql("select count(*), count(distinct note), count(distinct xid) from effect where what = %s", f"group-{way.name}")[0]
    assert written[:2] == (40, 40)
    assert written[2] < 40 or way is flows.book_started, "no groups; the test proves nothing"
    assert engine.db.sql("select * from onceflow.verify_ledger(%s)", run.run) == []


def test_a_poisoned_member_fails_alone(engine: Engine) -> None:
    """A group rolls back for a member's error, and each runs again by itself: the others succeed."""
    assert engine.run(flows.one_is_poisoned, [1, 2, 3, 2, 4]).count("UniqueViolationError") == 1
    assert engine.db.sql("select id from only_once order by 1") == [(1,), (2,), (3,), (4,)]


def test_a_failed_try_is_tried_again_by_its_policy(engine: Engine) -> None:
    """An error of its SQL is an entry each, with the driver's own error; the effect is there once."""
    run = engine.client.start(flows.try_again, "again")
    assert run.result(20) == []
    states = [(e["to_state"], e["try_number"]) for e in run.steps() if e["step_key"] == "again#0"]
    assert states == [("up_for_retry", 1), ("up_for_retry", 2), ("success", 3)]
    assert engine.db.sql("select count(*) from effect where what = 'again'") == [(1,)]
    assert "division by zero" in str(
        engine.db.sql("select error from onceflow.step_ledger where dag_run = %s and step_key = 'again#0' order by id", run.run)[0][0]
    )


@pytest.mark.parametrize("way", [flows.call, flows.start])
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("twins", AuthoringError, "several columns named 'a'"),
        ("missing", asyncpg.UndefinedTableError, 'relation "nowhere" does not exist'),
        ("two", asyncpg.PostgresSyntaxError, "cannot insert multiple commands"),
        ("not_a_number", EncodingError, "NaN is not a finite number"),
        ("too_long", EncodingError, "larger than the limit"),
        ("ending_0", StepSplit, "COMMIT is refused in a step"),
        ("ending_1", asyncpg.InvalidTransactionTerminationError, "invalid transaction termination"),
        ("ending_2", asyncpg.InvalidTransactionTerminationError, "invalid transaction termination"),
    ],
)
def test_what_is_wrong_fails_by_name(engine: Engine, way: Any, name: str, error: type[Exception], message: str) -> None:
    """With the error that the driver or the codec has for it, and nothing stays."""
    with pytest.raises(error, match=message):
        engine.run(way, name, [])


def test_infinities_are_what_the_driver_takes_them_for(engine: Engine) -> None:
    """A value that SQL cannot write as Python reads it: the step is run again by the driver."""
    answer = engine.run(flows.call, "infinite", [])[0]
    assert answer["inside"] is False and answer["at"].year == 9999


def test_a_table_that_changes(engine: Engine) -> None:
    """A column that is added, renamed, of another type, or dropped is answered as it is, without a new worker."""
    rows = [engine.run(flows.call, "changing", [])]
    for change in ("add column note text default 'x'", "rename column note to remark", "alter column id type numeric(6, 2)", "drop column remark"):
        with engine.db.connect("app") as conn:
            conn.execute(f"alter table changing {change}".encode())
        rows.append(engine.run(flows.call, "changing", []))
    price = rows[3][0]["id"]
    assert rows == [[{"id": 1}], [{"id": 1, "note": "x"}], [{"id": 1, "remark": "x"}], [{"id": price, "remark": "x"}], [{"id": price}]]
    assert str(price) == "1.00"


def test_cancel_ends_the_sql(engine: Engine) -> None:
    """The session of a cancelled run's SQL does not go on, and nothing is recorded."""
    run = engine.client.start(flows.sleep_in_sql, "cancelled")
    engine.db.wait_for(SLEEPING)
    run.cancel()
    engine.db.wait_for(f"select ({SLEEPING}) = 0")
    with pytest.raises(RunCancelled):
        run.result(20)
    assert [e for e in run.steps() if e["step_key"] == "asleep#0"] == []


def test_a_session_that_is_ended_in_the_middle_is_begun_again(engine: Engine) -> None:
    """Three times the server ends the session of the very SQL: one effect, one try."""
    run = engine.client.start(flows.lose, "lost", 3)
    assert run.result(20) == []
    assert engine.db.sql("select count(*) from effect where what = 'lost'") == [(1,)]
    assert [e["try_number"] for e in run.steps() if e["step_key"] == "lost#0"] == [1]


def test_outside_of_a_run_there_is_none() -> None:
    """Like any transactional step, it has no transaction to join there."""
    with pytest.raises((AuthoringError, LostContext), match="outside a run"):
        flows.inside()


@pytest.mark.parametrize("when", ["before", "forwarded", "answered", "held"])
@pytest.mark.parametrize("way", [flows.call_with, flows.start_with, flows.book])
def test_a_connection_that_dies_around_the_call(proxied: tuple[Engine, Proxy], way: Any, when: When) -> None:
    """Before, during or after it, or its message arrives late: one effect and one entry, for a step, a task and a group."""
    engine, proxy = proxied
    what = f"{way.name}-{when}"
    fault = proxy.cut_next(f'"{what}"'.encode(), when=when)
    run = engine.client.start(way, what, 12, queue="proxied")
    run.result(30)
    fault.wait()
    if when == "held":
        assert fault.deliver() in ("OF001", "57P01")
    assert engine.db.sql("select count(*), count(distinct note) from effect where what = %s", what) == ([(12, 12)] if way is flows.book else [(1, 1)])
    assert not [e for e in run.steps() if e["to_state"] in ("failed", "up_for_retry", "rescued")]
    assert engine.db.sql("select * from onceflow.verify_ledger(%s)", run.run) == []


@pytest.fixture(scope="module")
def proxied(engine: Engine) -> Iterator[tuple[Engine, Proxy]]:
    """A second worker, whose steps' connections pass through a proxy."""
    with Proxy(engine.db.superuser_dsn) as proxy:
        engine.start_worker(queues=["proxied"], env={"ONCEFLOW_STEP_DSN": proxy.dsn(engine.db.step_dsn)})
        yield engine, proxy


COLUMNS = """
    true | false | 1::int2 | -1::int4 | 9223372036854775807 | 0::oid | 4294967295::oid | ''::text | 'ü "quoted" \\ $tag'::varchar | 'ab'::char(5) | 'n'::name
    | 0.0::float8 | '-0'::float8 | 1::float8 | 1.5::float4 | 0.1::float4 | 1e15::float8 | 1e16::float8 | 123456789012345680::float8 | 1e-7::float8
    | 5e-324::float8 | 1.7976931348623157e308::float8 | 0.1::float8 + 0.2 | '3.4e38'::float4 | 100000::float8 | -2.5e-5::float8
    | 0::numeric | 0.00::numeric | 10.00::numeric | 10000::numeric | -1.5e-20::numeric | 1e30::numeric | 123456789.123456789::numeric(20, 9)
    | '{"b": 1,  "a": [1.0, null], "a": 2}'::json | '{"b": 1, "a": [1.0, null]}'::jsonb | 'null'::jsonb | '"x"'::jsonb
    | '\\x'::bytea | '\\x00ff10'::bytea | decode(repeat('00ff', 100), 'hex') | '00000000-0000-4000-8000-00000000000a'::uuid
    | '2024-02-29'::date | '0001-01-02'::date | '9999-12-30'::date | '12:30'::time | '23:59:59.999999'::time | '00:00:00.5'::time
    | '2024-01-01 00:00'::timestamp | '2024-01-01 10:20:30.000001'::timestamp | '0044-03-15 12:00'::timestamp
    | '2024-06-01 12:00+02'::timestamptz | '1969-12-31 23:59:59.9+00'::timestamptz | '2024-06-01 00:00:00.12+14'::timestamptz
    | null::text | null::int4 | null::numeric | null::float8 | null::timestamptz | null::uuid | null::bytea | null::json | null::date | null::time | pg_sleep(0)
"""
SHAPES = [
    "select 1 as b, 2 as a, 3 as aa, 4 as é, 5 as \"it's \\\"\"\"", "select n, n * 1.5 as half from generate_series(1, 3) n order by n desc", "select 1 where false",
    "values (1, 'a'), (2, null)", "select 'unknown', null as nothing", "table account", "select x.* from account x order by id -- last words", "select 1 as n ;",
]  # fmt: skip


@pytest.mark.parametrize("text", [*(f"select {column.strip()} as v" for column in COLUMNS.split(" | ")), *SHAPES])
@pytest.mark.parametrize("setting", ["", "set timezone = 'Asia/Kathmandu'; set datestyle = 'German'; set extra_float_digits = -5; set bytea_output = 'escape'"])
def test_rows_come_out_as_the_driver_s_do(idle_engine: Engine, text: str, setting: str) -> None:
    """Equal in value, type and order of keys, whatever the session's settings."""
    plain, inside = asyncio.run(both_ways(idle_engine.db, text, (), setting))
    assert inside == plain
    assert [[(key, type(value)) for key, value in row.items()] for row in inside] == [[(key, type(value)) for key, value in row.items()] for row in plain]


async def both_ways(db: TestDatabase, text: str, args: tuple[Any, ...], setting: str = "") -> tuple[Any, Any]:
    """What a step answers by its driver, and as run_sql_steps would run it."""
    conn = await asyncpg.connect(db.superuser_dsn)
    try:
        await conn.execute(setting or "select")
        plain = decode(encode([dict(row) for row in await conn.fetch(text, *args)]))
        described = await conn.prepare(text)
        form = make_form(text, [p.oid for p in described.get_parameters()], [(c.name, c.type.oid) for c in described.get_attributes()])
        assert form is not None and form.answers
        slots = form.bind(args)
        assert slots is not None
        await conn.execute("""create function pg_temp.run(form text, texts text[], moments timestamp[]) returns text language plpgsql as
            'declare output text; begin execute form into output using texts, moments; return output; end'""")
        inside = decode(await conn.fetchval("select pg_temp.run($1, $2, $3::text[]::timestamp[])", form.text, *slots))
    finally:
        await conn.close()
    return plain, inside
