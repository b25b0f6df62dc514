"""SQL steps inside Postgres: their SQL, their records and one commit, with the rights of the steps' login and nothing left for the next one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onceflow.db.calls import run_sql_steps
from onceflow.db.tokens import prove_token
from tests.sql.drive import Drive
from tests.sql.engine_calls import Task, describe_sql

ENTRIES = "select step_key, kind, to_state, xid::text from onceflow.step_ledger order by step_key"
TABLES = """
    create table payments (id int primary key, note text);
    create table audited (what text);
    create table checked (id int primary key, of int references checked deferrable initially deferred);
    grant all on payments, audited, checked to public;
    create procedure split() language plpgsql as 'begin commit; end';
    grant execute on procedure split() to public
"""


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running body whose steps are tried; and tables for their writes."""
    drive.app.execute(TABLES)
    return drive.start()


def run(drive: Drive, *steps: dict[str, Any], limit: int = 1000) -> list[str]:
    """Runs them as a worker does: one statement with parameters on a steps' connection, a transaction by itself."""
    call = run_sql_steps(json.dumps(steps), "onceflow-step:1:test", limit)
    text = call.sql
    for n in range(1, 4):
        text = text.replace(f"${n}", "%s")
    row = drive.step.execute(text.encode(), call.args).fetchone()
    assert row is not None
    answer: list[str] = json.loads(row[0])
    return answer


def step(task: Task, key: str, text: str, **changes: Any) -> dict[str, Any]:
    return describe_sql(task, text, key) | changes


def sqlstate(work: Callable[[], Any]) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        work()
    return caught.value.sqlstate


def test_effect_and_record_share_one_transaction(drive: Drive, task: Task) -> None:
    """One round trip, one xid: the row's and the entry's."""
    insert = "insert into payments values ((($1)[1]::int), ($1)[2])"
    assert run(drive, step(task, "a#0", insert, args=["7", None])) == ["[]"]
    xmin = drive.db.sql("select xmin::text from payments where id = 7 and note is null")
    assert drive.db.sql(ENTRIES) == [("a#0", "sql", "success", xmin[0][0])]
    assert drive.findings() == []


def test_the_task_itself_ends_with_its_sql(drive: Drive, task: Task) -> None:
    """A step that is the task ends it and its run, in the same transaction."""
    whole = describe_sql(task, "insert into payments values (1)")
    assert run(drive, whole) == ["[]"]
    assert drive.db.sql("select state from onceflow.dag_run") == [("success",)]
    assert sqlstate(lambda: run(drive, whole | {"text": "select 1"})) == "OF001"
    assert drive.findings() == []


@pytest.mark.parametrize("ending", ["commit", "rollback", "do $$ begin commit; end $$", "call split()", "savepoint a", "prepare transaction 'x'", "end"])
@pytest.mark.parametrize("count", [1, 2])
def test_its_sql_cannot_end_the_transaction(drive: Drive, task: Task, ending: str, count: int) -> None:
    """Nothing that SQL can say in there commits or undoes a part: the call fails, and of none of the steps anything stays."""
    steps = [step(task, f"a#{n}", f"insert into payments values ({n})") for n in range(count)]
    state = sqlstate(lambda: run(drive, *steps, step(task, "b#0", ending)))
    assert state in ("0A000", "2D000")
    assert drive.db.sql("select * from payments") == drive.db.sql(ENTRIES) == []


def test_a_group_commits_at_once_or_not_at_all(drive: Drive, task: Task) -> None:
    """Three steps share an xid; a fourth that fails takes its group along."""
    run(drive, *[step(task, f"a#{n}", f"insert into payments values ({n})") for n in (2, 0, 1)])
    rows = drive.db.sql(ENTRIES)
    assert [row[0] for row in rows] == ["a#0", "a#1", "a#2"] and len({row[3] for row in rows}) == 1
    bad = [step(task, "b#0", "insert into payments values (8)"), step(task, "b#1", "insert into payments values (0)")]
    assert sqlstate(lambda: run(drive, *bad)) == "23505"
    assert drive.db.sql(ENTRIES) == rows
    assert drive.db.sql("select id from payments order by 1") == [(0,), (1,), (2,)]


def test_deferred_constraints_come_before_the_record(drive: Drive, task: Task) -> None:
    """A violation fails the step; in a group what a later member inserts may satisfy an earlier one."""
    orphan = step(task, "a#0", "insert into checked values (1, 2)")
    assert sqlstate(lambda: run(drive, orphan)) == "23503"
    assert run(drive, orphan, step(task, "a#1", "insert into checked values (2, null)")) == ["[]", "[]"]


def test_a_proof_is_good_for_its_try_only(drive: Drive, task: Task) -> None:
    """Not for another key, another try, another task, nor is the driver's proof or the mark one."""
    other = drive.start()
    good = step(task, "a#0", "insert into payments values (1)")
    mark = good["mark"].split("/")[1]
    forged = [
        {"key": "b#0"}, {"try": 2}, {"whole": True, "key": task.task_id}, {"run": other.run, "ti": other.ti}, {"proof": None},
        {"proof": prove_token(task.token, "a#0/1/sql/[]")}, {"proof": f"{mark[:8]}-{mark[8:12]}-{mark[12:16]}-{mark[16:20]}-{mark[20:32]}"},
    ]  # fmt: skip
    for change in forged:
        assert sqlstate(lambda c=change: run(drive, good | c)) == "OF001", change  # type: ignore[misc]
    assert run(drive, good) == ["[]"]
    assert sqlstate(lambda: run(drive, good | {"text": "select 1"})) == "OF007"
    assert drive.db.sql("select count(*) from payments") == [(1,)]


def test_what_a_step_leaves_in_its_session_reaches_no_other(drive: Drive, task: Task) -> None:
    """Settings, temporary tables, locks, listeners and cursors of a member are gone for the next one, and for the next call."""
    leavings = [
        "set timezone = 'Asia/Kathmandu'", "set search_path = nowhere", "create temp table payments (x int)", "select pg_advisory_lock(7)", "listen x",
        "do $$ begin perform set_config('onceflow.step', 'x', false), set_config('app.x', '1', false); end $$", "set local statement_timeout = 1",
    ]  # fmt: skip
    traces = """insert into public.audited select unnest(array[current_setting('timezone'), current_setting('search_path'), current_setting('statement_timeout'),
        current_setting('app.x', true), (select count(*)::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
        (select count(*)::text from pg_listening_channels()), (select count(*)::text from pg_class where relname = 'payments')])"""
    run(drive, step(task, "clean#0", traces))
    clean = drive.db.sql("select what from audited")
    drive.db.sql("truncate audited")
    run(drive, *[step(task, f"leave#{n}", text) for n, text in enumerate(leavings)], step(task, "look#0", traces))
    run(drive, step(task, "look#1", traces))
    expected = [(value if value is not None else "",) for (value,) in clean]
    assert [(value if value is not None else "",) for (value,) in drive.db.sql("select what from audited")] == expected * 2
    assert drive.step.execute("show timezone").fetchone() == drive.app.execute("show timezone").fetchone()


@pytest.mark.parametrize("count", [1, 2])
def test_its_sql_cannot_read_what_the_call_was_given(drive: Drive, task: Task, count: int) -> None:
    """Neither the statement's text, nor an error's context with parameters turned on, nor the session's statements hold a proof."""
    drive.app.execute("""create function tell() returns text language plpgsql as $$ declare told text; begin
        perform set_config('log_parameter_max_length_on_error', '-1', true); perform 1 / 0;
        exception when others then get stacked diagnostics told = pg_exception_context;
        return concat(told, current_query(), (select string_agg(query, '') from pg_stat_activity), (select string_agg(statement, '') from pg_prepared_statements)); end $$""")
    drive.app.execute("grant execute on function tell() to public")
    steps = [step(task, f"a#{n}", "insert into audited select tell()") for n in range(count)]
    run(drive, *steps)
    told = drive.db.sql("select what from audited")
    assert all("run_sql_steps" in what for (what,) in told), "nothing was read; the test proves nothing"
    assert [s["proof"] for s in steps for (what,) in told if s["proof"] in what] == []
    assert [what for (what,) in told if task.token in what] == []


def test_shadows_of_what_the_call_uses_do_not_matter(drive: Drive, task: Task) -> None:
    """A step's SQL puts functions and operators of its own before those of PostgreSQL: the record is written all the same, by the true ones."""
    drive.db.sql("create schema evil authorization app")
    drive.app.execute("grant all on schema evil to public")
    for text in (
        "create function evil.to_jsonb(text[]) returns jsonb language sql as 'select null::jsonb'",
        "create function evil.minus(int, int) returns int language sql as 'select 0'",
        "create operator evil.- (leftarg = int, rightarg = int, function = evil.minus)",
        "create function evil.jsonb_array_length(jsonb) returns int language sql as 'select 0'",
        "create function evil.set_config(text, text, boolean) returns text language sql as 'select $1'",
    ):
        drive.app.execute(text.encode())
    drive.app.execute("grant execute on all functions in schema evil to public")
    changed = "select set_config('search_path', 'evil, pg_catalog', false)"
    steps = [step(task, "a#0", changed), step(task, "a#1", "insert into public.payments values (1)"), step(task, "a#2", changed)]
    assert run(drive, *steps) == ["[]"] * 3
    assert [row[0] for row in drive.db.sql(ENTRIES)] == ["a#0", "a#1", "a#2"]
    assert drive.findings() == []


def test_its_sql_has_the_rights_of_its_login_only(drive: Drive, task: Task) -> None:
    """What onceflow_step may not do, a step's SQL may not, though its record is written with the owner's rights."""
    for text in (
        "delete from onceflow.lease",
        "insert into onceflow.step_ledger select * from onceflow.step_ledger",
        "set session authorization postgres",
        "set role onceflow_owner",
    ):
        assert sqlstate(lambda t=text: run(drive, step(task, "a#0", t))) in ("42501", "42704", "22023"), text  # type: ignore[misc]
    assert drive.db.sql(ENTRIES) == []


def test_an_output_has_a_limit(drive: Drive, task: Task) -> None:
    """One that is too long undoes its step with the state that makes the worker run it by the driver, which names it."""
    long = step(task, "a#0", "select to_jsonb(repeat('x', 5000))", answers=True)
    assert sqlstate(lambda: run(drive, long, limit=5001)) == "0A000"
    assert len(run(drive, long, limit=5002)[0]) == 5002


def test_a_group_takes_leases_in_one_order(drive: Drive, task: Task) -> None:
    """The lower task's lease first, whatever the order of the members: so two groups never wait for each other in a circle."""
    other = drive.start()
    low, high = sorted((task, other), key=lambda t: (t.run, t.ti))
    with psycopg.connect(drive.db.superuser_dsn) as holder:
        holder.execute("select from onceflow.lease where ti = %s for update", (high.ti,))
        steps = json.dumps([step(high, "a#0", "select 1"), step(low, "a#0", "select 1")])
        waiting = drive.engine.blocks(lambda: drive.engine.call(run_sql_steps(steps, "x", 1000)))
        assert sqlstate(lambda: drive.db.sql("select from onceflow.lease where ti = %s for update nowait", low.ti)) == "55P03"
    assert waiting.result(20) == ["[]", "[]"]
