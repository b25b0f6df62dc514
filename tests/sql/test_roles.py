"""What each login may not do, tried on the server with the login itself: a step's SQL cannot reach the engine's rows, forge a record, or be another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from onceflow.db import calls
from onceflow.db.calls import render
from onceflow.db.tokens import mark_token, prove_token
from tests.sql.drive import Drive, complete_step_call
from tests.sql.engine_calls import Engine, Task, sqlstate_of

DENIED = "42501"
FORGED = "00000000-0000-4000-8000-000000000000"
RELATIONS = """select relname::text, relkind = 'v' from pg_class where relnamespace = 'onceflow'::regnamespace and relkind in ('r', 'p', 'v')
    and relname not in ('schema_migration', 'schema_function') order by 1"""
WRITABLE: dict[str, set[str]] = {"app": set(), "worker": set(), "step": set(), "auditor": set()}  # tables that a login may write, if there ever are any
COLUMN = "select attname::text from pg_attribute where attrelid = %s::regclass and attnum > 0 and attidentity = '' limit 1"
WRITES = ("insert into {0} ({1}) values (null)", "update {0} set {1} = null", "delete from {0}", "truncate {0}", "lock table {0} in exclusive mode")


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running task, and a table that steps may write."""
    drive.app.execute("create table payments (id int primary key, amount numeric not null default 0)")
    return drive.start()


def refused(conn: psycopg.Connection[Any], statement: str) -> str:
    """The message with which a statement is denied; fails when it is not."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught, conn.transaction():
        conn.execute(statement.encode())
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize("login", ["step", "app", "auditor", "worker"])
def test_no_login_writes_the_engine_s_tables(drive: Drive, task: Task, login: str) -> None:
    """INSERT, UPDATE, DELETE, TRUNCATE and LOCK of every table are denied by name."""
    for name, is_view in drive.db.sql(RELATIONS):
        if is_view or name in WRITABLE[login]:
            continue
        (column,) = drive.db.sql(COLUMN, f"onceflow.{name}")[0]
        for statement in WRITES:
            message = refused(drive.connection(login), statement.format(f"onceflow.{name}", column))
            assert message == f"permission denied for table {name}", (login, statement, message)


def test_a_step_reads_nothing_of_the_engine_s(drive: Drive, task: Task) -> None:
    """No table, no view, no column, no sequence: neither leases with their tokens nor other steps' inputs and outputs."""
    for name, _ in drive.db.sql(RELATIONS):
        assert name in refused(drive.step, f"select from onceflow.{name}")
        assert drive.db.sql("select has_any_column_privilege('onceflow_step', %s, 'select,insert,update,references')", f"onceflow.{name}") == [(False,)]
    assert "lease" in refused(drive.step, "select token from onceflow.lease")
    for (name,) in drive.db.sql("select relname::text from pg_class where relnamespace = 'onceflow'::regnamespace and relkind = 'S'"):
        assert name in refused(drive.step, f"select nextval('onceflow.{name}')")


@pytest.mark.parametrize("login", ["app", "auditor", "worker"])
def test_nobody_reads_tokens(drive: Drive, task: Task, login: str) -> None:
    """Auditors and operators see leases, but not what would let them end a task."""
    refused(drive.connection(login), "select token from onceflow.lease")
    refused(drive.connection(login), "select * from onceflow.lease")
    if login != "worker":
        assert drive.connection(login).execute("select ti, fence from onceflow.lease").fetchall() != []


def test_an_auditor_reads_everything_else(drive: Drive, task: Task) -> None:
    """Every table and view but the token, the senders' keys and secrets (test_named_values); and the functions that read."""
    drive.write(task, "pay#0", "insert into payments values (1)")
    for name, _ in drive.db.sql(RELATIONS):
        is_partition = any(name.startswith(f"{table}_") for table in ("run", "ti", "step_ledger", "dataset_event")) and name not in ("run_key", "run_event")
        if name not in ("lease", "message_key", "connection", "variable") and not is_partition:
            drive.auditor.execute(f"select * from onceflow.{name}".encode())
    assert drive.auditor.execute("select step_key from onceflow.step_ledger").fetchall() == [("pay#0",)]
    assert drive.auditor.execute("select * from payments").fetchall() != []
    refused(drive.auditor, "insert into payments values (7)")


@pytest.mark.parametrize("role", ["onceflow_owner", "onceflow_worker", "onceflow_operator", "onceflow_auditor", "postgres", "worker", "app"])
def test_a_step_becomes_nobody_else(drive: Drive, task: Task, role: str) -> None:
    """SET ROLE and SET SESSION AUTHORIZATION, as statements and as settings."""
    for statement in (
        f"set role {role}",
        f"set local role {role}",
        f"set session authorization {role}",
        f"select set_config('role', '{role}', false)",
        f"select set_config('session_authorization', '{role}', true)",
    ):
        assert sqlstate_of(lambda s=statement: drive.step.execute(s.encode())) == DENIED  # type: ignore[misc]


def forge(drive: Drive, task: Task, token: str, kind: str = "external") -> str:
    call = calls.complete_step(task.run, task.ti, token, "forged#0", "forged", kind, 1, "{}", "h", "1", 0)
    return sqlstate_of(lambda: drive.step.execute(render(call).encode())) or "done"


def test_a_forged_token_completes_nothing(drive: Drive, task: Task) -> None:
    """Neither a made-up token nor a made-up proof, nor what the step can read of itself: its own mark."""
    mark = mark_token(task.ti, task.token, "forged#0").split("/")[1]
    for token in (
        FORGED,
        prove_token(FORGED, "forged#0/1/external/1"),
        f"{mark[:8]}-{mark[8:12]}-4{mark[13:16]}-{mark[16:20]}-{mark[20:32]}",
        prove_token(mark, "forged#0/1/external/1"),
    ):
        assert forge(drive, task, token) == "OF001"
    call = calls.complete_task(task.run, task.ti, FORGED, "flow", "external", "{}", "h", "1", 0)
    assert sqlstate_of(lambda: drive.step.execute(render(call).encode())) == "OF001"
    outbox = calls.start_task(task.run, task.ti, FORGED, None, "f", "m:f", "{}", "h", 0, None)
    assert sqlstate_of(lambda: drive.step.execute(render(outbox).encode())) == "OF001"
    assert drive.db.sql("select count(*) from onceflow.step_ledger") == [(0,)]


def test_another_task_s_token_completes_nothing(drive: Drive, task: Task) -> None:
    """A token ends its own task only, in its own run only."""
    other = drive.start()
    assert forge(drive, task, other.token) == "OF001"
    assert forge(drive, replace(task, run=other.run), task.token) == "OF001"
    assert forge(drive, replace(task, ti=other.ti), task.token) == "OF001"


def test_an_old_token_completes_nothing(drive: Drive, task: Task) -> None:
    """After a rescue, an unclaim, a cancel and a rotation."""
    drive.lose()
    assert forge(drive, task, task.token) == "OF001"
    again = drive.engine.claim_one()
    assert forge(drive, task, task.token) == "OF001"
    drive.engine.unclaim(again)
    assert forge(drive, again, again.token) == "OF001"
    third = drive.engine.claim_one()
    fence = drive.db.sql("select fence from onceflow.lease")[0][0]
    drive.engine.call(calls.resolve_commit(*third.owner, third.epoch, "pay#0", fence, 1, False, "00000000-0000-4000-8000-000000000001"))
    assert forge(drive, third, third.token) == "OF001"
    drive.engine.cancel(task.run)
    assert forge(drive, third, "00000000-0000-4000-8000-000000000001") == "OF001"


def test_a_proof_is_good_for_one_record(drive: Drive, task: Task) -> None:
    """Whoever reads the record of a step in pg_stat_activity can make no other of it: not another step, try, kind or output."""
    stolen = complete_step_call(task, "pay#0").args[2]
    for changed in (("pay#1", "transactional", 1, "1"), ("pay#0", "external", 1, "1"), ("pay#0", "transactional", 2, "1"), ("pay#0", "transactional", 1, "2")):
        key, kind, try_number, output = changed
        call = calls.complete_step(task.run, task.ti, str(stolen), key, "pay", kind, try_number, "{}", "h", output, 0)
        with drive.transaction(task, "pay#0") as conn:
            assert sqlstate_of(lambda c=call, conn=conn: in_savepoint(conn, render(c))) == "OF001"  # type: ignore[misc]
    drive.write(task, "pay#0")
    with pytest.raises(psycopg.Error) as caught:
        drive.write(task, "pay#0")
    assert caught.value.sqlstate == "OF007"


def in_savepoint(conn: psycopg.Connection[Any], statement: str) -> None:
    with conn.transaction():
        conn.execute(statement.encode())


ENDINGS = [
    "commit",
    "COMMIT WORK",
    "/* done */ cOmMiT transaction",
    "end",
    "commit and chain",
    "rollback",
    "abort",
    "rollback and chain",
    "rollback; begin",
    "commit; begin",
    "savepoint a; commit; begin; savepoint a",
    "do $$ begin commit; end $$",
    "call split()",
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_step_that_ends_its_transaction_is_not_recorded(drive: Drive, task: Task, ending: str) -> None:
    """Whatever ended it and whatever was begun instead: the record is refused by name in the next transaction."""
    drive.app.execute("create procedure split() language plpgsql as 'begin commit; end'")
    drive.app.execute("grant execute on procedure split() to public")
    conn = drive.step
    conn.execute("begin")
    conn.execute("select set_config('onceflow.step', %s, true)", (mark_token(task.ti, task.token, "pay#0"),))
    conn.execute("insert into payments values (1)")
    for statement in ending.split("; ") if "$$" not in ending else [ending]:
        try:
            conn.execute(statement.encode())
        except psycopg.Error:
            conn.execute("rollback")  # a procedure cannot commit inside of a transaction block: the step has failed already
    with pytest.raises(psycopg.Error, match="ended its own transaction before the engine could record it") as caught:
        conn.execute(render(complete_step_call(task, "pay#0")).encode())
    assert caught.value.sqlstate == "OF003"
    conn.execute("rollback")
    assert drive.db.sql("select count(*) from onceflow.step_ledger") == [(0,)]


SHADOWS = [
    "create temp table lease (ti bigint, run bigint, token uuid, entries int)",
    "create temp table engine (cluster bigint, server_start timestamptz, ledger oid)",
    "create temp table step_ledger (id bigint)",
    "create temp view pg_class as select 1 as oid",
    "create type pg_temp.lease_row as (ti bigint)",
    "create function pg_temp.sha256(bytea) returns bytea language sql as 'select $1'",
    "create function pg_temp.current_setting(text, boolean) returns text language sql as 'select ''x'''",
    "create function pg_temp.same(uuid, uuid) returns boolean language sql as 'select true'",
    "create operator pg_temp.= (leftarg = uuid, rightarg = uuid, procedure = pg_temp.same)",
    "create operator pg_temp.<> (leftarg = uuid, rightarg = uuid, procedure = pg_temp.same)",
    "create function pg_temp.jsonb_build_object(variadic \"any\") returns jsonb language internal as 'jsonb_build_object'",
]


def test_shadows_do_not_matter(drive: Drive, task: Task) -> None:
    """Temporary tables, views, types, functions and operators of the names that the engine uses, first in the search path."""
    made = 0
    for statement in SHADOWS:
        made += sqlstate_of(lambda s=statement: drive.step.execute(s.encode())) is None  # type: ignore[misc]
    assert made >= 9
    drive.step.execute("insert into pg_temp.lease values (%s, %s, %s, 0)", (task.ti, task.run, FORGED))
    drive.step.execute("set search_path = pg_temp, public, pg_catalog, onceflow")
    assert forge(drive, task, FORGED) == "OF001"
    drive.write(task, "pay#0", "insert into public.payments values (1)")
    drive.step.execute("select onceflow.start_run('flow', '{}'::jsonb, 'from-a-step')")
    assert drive.findings() == []
    assert drive.db.sql("select count(*) from onceflow.step_ledger") == [(1,)]
    assert len(drive.engine.claim(2)) == 1


SETTINGS = [
    "timezone = 'Asia/Kathmandu'",
    "datestyle = 'German, DMY'",
    "intervalstyle = 'sql_standard'",
    "extra_float_digits = -15",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "transform_null_equals = on",
    "client_encoding = 'LATIN1'",
    "default_transaction_isolation = 'serializable'",
    "quote_all_identifiers = on",
    "xmloption = 'document'",
    "enable_indexscan = off",
    "jit = off",
]


def test_settings_do_not_change_records(drive: Drive, task: Task) -> None:
    """A step that changes every setting it may leaves entries of the same form and hashes that hold."""
    drive.write(task, "pay#0", *[f"set local {setting}" for setting in SETTINGS if "isolation" not in setting])
    for setting in SETTINGS:
        drive.step.execute(f"set {setting}".encode())
    drive.write(task, "pay#1", "insert into payments values (1)")
    assert drive.findings() == []
    drive.auditor.execute("set timezone = 'Asia/Kathmandu'; set datestyle = 'German'; set bytea_output = 'escape'; set extra_float_digits = -15")
    assert drive.findings() == []
    assert drive.auditor.execute("select bool_and(onceflow.entry_hash(l) = hash) from onceflow.step_ledger l").fetchall() == [(True,)]


def test_no_role_moves_the_clock(drive: Drive, task: Task) -> None:
    """The clock's body is the owner's; no setting leads to another time."""
    for login in ("step", "app", "auditor", "worker"):
        conn = drive.connection(login)
        refused(conn, "create or replace function onceflow.now() returns timestamptz language sql as 'select timestamptz ''2000-01-01'''")
        refused(conn, "create table onceflow.clock (at timestamptz)")
        assert sqlstate_of(lambda c=conn: c.execute("alter function onceflow.now() set timezone = 'UTC'")) == DENIED  # type: ignore[misc]
    for name in ("onceflow.now", "onceflow.clock", "onceflow.at"):
        drive.step.execute("select set_config(%s, '2000-01-01', false)", (name,))
    assert drive.step.execute("select abs(extract(epoch from onceflow.now() - clock_timestamp())) < 5").fetchall() == [(True,)]


def test_the_worker_s_functions_are_the_worker_s(drive: Drive, task: Task) -> None:
    """Claiming, rescuing, ticking, heartbeats, cancelling and retrying are denied to a step by name."""
    tried: list[tuple[str, Callable[[Engine], Any]]] = [
        ("claim_tasks", lambda e: e.claim()), ("run_tick", lambda e: e.tick()), ("rescue_tasks", lambda e: e.rescue()),
        ("heartbeat", lambda e: e.heartbeat([])),
        ("cancel_run", lambda e: e.cancel(task.run)), ("retry_run", lambda e: e.retry(task.run)), ("unclaim_tasks", lambda e: e.unclaim(task)),
        ("fail_task", lambda e: e.fail(task)), ("fail_step", lambda e: e.fail_step(task, "pay#0", True)), ("defer_task", lambda e: e.defer(task)),
        ("stop_run", lambda e: e.stop_run(task, "v2")), ("register_worker", lambda e: e.register()), ("receive_message", lambda e: e.receive(task, "r#0")),
        ("seal_ledger", lambda e: e.call(calls.seal_ledger())), ("load_history", lambda e: e.call(calls.load_history(task.run, task.ti))),
        ("write_entry", lambda e: e.sql("select onceflow.write_entry(null, '', '', '', 1, '', '', true, null, null, null, null, null, null)")),
        ("hold_lease", lambda e: e.sql("select onceflow.hold_lease(%s, %s, %s)", *task.owner)),
        ("end_run_early", lambda e: e.sql("select onceflow.end_run_early(%s, 'failed', '', '')", task.run)),
    ]  # fmt: skip
    engine = Engine(drive.db, user="step")
    for name, attempt in tried:
        with pytest.raises(Exception, match=f"permission denied for function {name}"):
            attempt(engine)
    engine.close()
    assert drive.findings() == []


def test_an_application_starts_and_cancels_and_touches_nothing(drive: Drive, task: Task) -> None:
    """app may start, cancel, retry and fork runs and send messages; a worker's or a step's functions are denied to it."""
    answer = drive.app.execute("select onceflow.start_run('flow', '[1]'::jsonb, 'by-app')").fetchall()[0][0]
    drive.app.execute("select onceflow.send_message(%s, 'topic', '1')", (answer["run"],))
    drive.app.execute("select onceflow.cancel_run(%s)", (answer["run"],))
    drive.app.execute("select onceflow.retry_run(%s)", (answer["run"],))
    for name in (
        "complete_step(1, 1, null, '', '', '', 1, '', '', '', 0)",
        "complete_task(1, 1, null, '', '', '', '', '', 0)",
        "run_tick()",
        "rescue_tasks(1, 1)",
    ):
        assert name.split("(")[0] in refused(drive.app, f"select onceflow.{name}")


def test_a_login_without_a_role_of_ours_can_do_nothing(drive: Drive, task: Task) -> None:
    """PUBLIC may not even look into the schema."""
    drive.db.sql("drop role if exists stranger")
    drive.db.sql("create role stranger login")
    conn = drive.db.connect("stranger")
    for statement in (
        "select onceflow.now()",
        "select * from onceflow.step_ledger",
        "select onceflow.start_run('flow')",
        "select * from onceflow.verify_ledger()",
    ):
        assert "schema onceflow" in refused(conn, statement)
    conn.close()
    drive.db.sql("drop role stranger")
