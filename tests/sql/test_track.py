"""track(table): an exact trail of who wrote which row, that outlives what a row's xmin does not."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from onceflow.db.tokens import mark_token
from tests.sql.drive import Drive
from tests.sql.dump import dump_and_restore
from tests.sql.engine_calls import Task
from tests.sql.test_who_wrote import answers, write_nested

TRAIL = "select row_key, op, dag_run is not null, login from onceflow.tracked_write order by id"


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running task, and a tracked table of the application's."""
    drive.app.execute("create table payments (id int primary key, amount numeric not null default 0)")
    drive.app.execute("select onceflow.track('payments')")
    return drive.start(run_id="pay-42")


def test_every_write_is_recorded_with_its_step(drive: Drive, task: Task) -> None:
    """INSERT, UPDATE and DELETE, under savepoints too; a write by hand is recorded as nobody's, with its login, moment and transaction."""
    write_nested(drive, task, "pay#0", 1, 2)
    drive.write(task, "pay#1", "update payments set amount = 7 where id = 2", "delete from payments where id = 1")
    drive.app.execute("insert into payments values (3)")
    assert drive.db.sql(TRAIL) == [
        (["1"], "INSERT", True, "onceflow_step"), (["2"], "INSERT", True, "onceflow_step"), (["2"], "UPDATE", True, "onceflow_step"),
        (["1"], "DELETE", True, "onceflow_step"), (["3"], "INSERT", False, "app"),
    ]  # fmt: skip
    by_step, by_hand = drive.who_wrote("payments")
    assert (by_step["step_key"], by_step["run_id"], by_step["how"]) == ("pay#1", "pay-42", "tracked")
    assert (by_hand["step_key"], by_hand["how"], by_hand["xid"]) == (None, "unknown", drive.db.sql("select xmin::text from payments where id = 3")[0][0])


def test_what_was_rolled_back_is_not_in_the_trail(drive: Drive, task: Task) -> None:
    """The trail is written in the writer's transaction."""
    with drive.step.transaction(force_rollback=True):
        drive.step.execute("insert into payments values (1)")
    assert drive.db.sql(TRAIL) == []


REWRITES = {
    "rewriting alter": ["alter table payments alter amount type float8", "alter table payments alter id type bigint"],
    "vacuum full": ["vacuum full payments"],
    "new column": ["alter table payments add note text not null default 'x'", "alter table payments add drawn float8 not null default random()"],
    "renamed": [
        "alter table payments rename to payouts",
        "alter table payouts rename id to pay_id",
        "create view payments as select *, pay_id as id from payouts",
    ],
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_the_answer_outlives_a_rewrite(drive: Drive, task: Task, rewrite: str) -> None:
    """Rewriting ALTER TABLE, VACUUM FULL, a changed type of the key, a renamed table and key: the same step is named."""
    write_nested(drive, task, "pay#0", 1, 2)
    drive.write(task, "pay#1", "update payments set amount = 7 where id = 2")
    for statement in REWRITES[rewrite]:
        drive.connection("app" if not statement.startswith("vacuum") else "postgres").execute(statement.encode())
    if rewrite == "renamed":
        rows = drive.auditor.execute("select w.step_key, w.how from payouts p, onceflow.who_wrote(p.tableoid, p.ctid) w order by p.pay_id").fetchall()
    else:
        rows = answers(drive)
    assert rows == [("pay#0", "tracked"), ("pay#1", "tracked")]


def test_the_answer_outlives_dump_and_restore(drive: Drive, task: Task) -> None:
    """In the new database the old rows' steps are named, new writes are recorded, and a rename before the dump does not matter."""
    write_nested(drive, task, "pay#0", 1, 2)
    drive.app.execute("alter table payments rename to payouts")
    drive.app.execute("create table payments (id int primary key)")
    drive.write(task, "pay#1", "insert into payouts values (3)", "insert into payments values (1)")
    drive.app.execute("alter table payments rename to other")
    drive.app.execute("alter table payouts rename to payments")
    drive.write(task, "pay#2", "insert into payments values (4)")
    with dump_and_restore(drive.db) as restored:
        other = Drive(restored)
        assert answers(other) == [("pay#0", "tracked"), ("pay#0", "tracked"), ("pay#1", "tracked"), ("pay#2", "tracked")]
        assert answers(other, "other") == [(None, "unknown")], "the trail of a table of another name is not its own"
        again = other.start()
        other.write(again, "pay#9", "update payments set amount = 9 where id = 1")
        assert answers(other)[0] == ("pay#9", "tracked")
        other.close()


def test_partitions_are_tracked_through_their_root(drive: Drive, task: Task) -> None:
    """One track for the whole table, present and later partitions; a row that moves to another partition keeps its trail."""
    drive.app.execute("create table sharded (id int, day int, primary key (id, day)) partition by range (day)")
    for day in (0, 10):
        drive.app.execute(f"create table sharded_{day} partition of sharded for values from ({day}) to ({day + 10})".encode())
    drive.app.execute("select onceflow.track('sharded')")
    drive.write(task, "pay#0", "insert into sharded values (1, 1), (2, 2)")
    drive.write(task, "pay#1", "update sharded set day = 11 where id = 2")
    drive.db.sql("vacuum full sharded_10")
    assert answers(drive, "sharded") == [("pay#0", "tracked"), ("pay#1", "tracked")]


def test_a_group_s_rows_name_their_own_step_where_the_step_was_marked(drive: Drive, task: Task) -> None:
    """In a transaction of several steps, also of one task, the trail knows which one wrote, if it ran under its own mark; under the group's all are named."""
    other = drive.start(run_id="pay-43")
    with drive.transaction(task, "pay#0") as conn:
        for number, (one, key) in enumerate([(task, "pay#0"), (task, "a/b#1"), (other, "pay#0"), (other, "")]):
            conn.execute("select set_config('onceflow.step', %s, true)", (mark_token(one.ti, one.token, key),))
            conn.execute("insert into payments values (%s)", (number,))
        for one, key in [(task, "pay#0"), (task, "a/b#1"), (other, "pay#0")]:
            drive.complete_step(one, key)
    rows = [(row["run_id"], row["step_key"], row["how"]) for row in drive.who_wrote("payments")]
    assert rows[:3] == [("pay-42", "pay#0", "tracked"), ("pay-42", "a/b#1", "tracked"), ("pay-43", "pay#0", "tracked")]
    assert sorted(rows[3:]) == [("pay-42", "a/b#1", "group"), ("pay-42", "pay#0", "group"), ("pay-43", "pay#0", "group")]


@pytest.mark.parametrize("forged", ["no token", "{ti}/" + "0" * 64 + "/pay#0", "99999999999999999999/x/pay#0", "{ti}//pay#0", "", "///", "7"])
def test_a_made_up_mark_names_nobody(drive: Drive, task: Task, forged: str) -> None:
    """Anybody may set the setting; only the mark of a lease's token means a step."""
    with drive.app.transaction():
        drive.app.execute("select set_config('onceflow.step', %s, true)", (forged.format(ti=task.ti),))
        drive.app.execute("insert into payments values (1)")
    assert answers(drive) == [(None, "unknown")]


def test_another_s_mark_names_nobody(drive: Drive, task: Task) -> None:
    """Who copies the mark of a step (it stands in a statement) is not taken for it: the transaction recorded no entry of that step."""
    with drive.app.transaction():
        drive.app.execute("select set_config('onceflow.step', %s, true)", (mark_token(task.ti, task.token, "pay#0"),))
        drive.app.execute("insert into payments values (1)")
    drive.write(task, "pay#0", "select 1")
    assert answers(drive) == [(None, "unknown")]


@pytest.mark.parametrize("key, value", [
    ("timestamptz", "2026-03-01 12:00+05"), ("text", 'a"b\\c'), ("bytea", "\\x00ff"), ("float8", "0.1"), ("interval", "1 day 2 hours"), ("int[]", "{1,2}"),
    ("date", "2026-03-01"), ("boolean", "t"), ("uuid", "6f2b0c9e-0000-4000-8000-000000000000"), ("numeric", "1.50"),
])  # fmt: skip
def test_keys_of_all_types_are_found_under_all_settings(drive: Drive, task: Task, key: str, value: str) -> None:
    """What a key looks like does not depend on the writer's nor the auditor's settings."""
    drive.app.execute(f"create table keyed (id {key} primary key)".encode())
    drive.app.execute("select onceflow.track('keyed')")
    settings = (
        "set local timezone = 'Asia/Tokyo'; set local datestyle = 'German'; set local intervalstyle = 'iso_8601'; set local bytea_output = 'escape'; "
        "set local extra_float_digits = -10"
    )
    drive.write(task, "pay#0", *settings.split("; "), f"insert into keyed values ($t${value}$t$)")
    drive.db.sql("vacuum full keyed")
    drive.db.sql("alter table keyed add x float8 not null default random()")
    assert answers(drive, "keyed") == [("pay#0", "tracked")]


REFUSED = {
    "no primary key": ("create table t (id int)", "give it one|Give it one"),
    "view": ("create view t as select 1 as id", "only a table of yours"),
    "temporary": ("create temp table t (id int primary key)", "only a table of yours"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_tracked_is_refused(drive: Drive, task: Task, what: str) -> None:
    """With the reason, and what to do."""
    statement, message = REFUSED[what]
    drive.app.execute(statement.encode())
    with pytest.raises(psycopg.errors.DatabaseError, match=message) as caught:
        drive.app.execute("select onceflow.track('t')")
    assert caught.value.sqlstate == "OF008"


def test_only_the_table_s_owner_may_track_it(drive: Drive, task: Task) -> None:
    """The trigger is made with the caller's rights; steps and auditors may not call it at all."""
    drive.db.sql("create table treasure (id int primary key)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="treasure"):
        drive.app.execute("select onceflow.track('treasure')")
    for conn in (drive.step, drive.auditor):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function track"):
            conn.execute("select onceflow.track('payments')")


def test_the_trigger_runs_no_code_of_the_table_s_owner(drive: Drive, task: Task) -> None:
    """It runs with the engine's rights, so a cast or operator that belongs to a column's type must not run in it."""
    seen: list[tuple[Any, ...]] = []
    drive.app.execute("create table spoils (who text)")
    drive.app.execute("grant insert on spoils to public")
    drive.app.execute("create type colour as enum ('red')")
    body = "begin insert into public.spoils values (current_user); return {}; end"
    drive.app.execute(f"create function to_json_trap(colour) returns json language plpgsql as '{body.format('null')}'".encode())
    drive.app.execute(f"create function to_text_trap(colour) returns text language plpgsql as '{body.format('null')}'".encode())
    drive.app.execute("create cast (colour as json) with function to_json_trap(colour)")
    drive.app.execute("create cast (colour as text) with function to_text_trap(colour) as implicit")
    drive.app.execute("create table trap (id colour primary key, other colour)")
    drive.app.execute("select onceflow.track('trap')")
    drive.app.execute("insert into trap values ('red', 'red')")
    seen = drive.db.sql("select who from spoils where who <> 'app'")
    assert seen == []
    assert drive.db.sql("select row_key from onceflow.tracked_write") == [(["red"],)]


def test_the_trigger_cannot_be_used_otherwise(drive: Drive, task: Task) -> None:
    """A BEFORE trigger could record a write that another trigger then takes back."""
    drive.app.execute("create table other (id int primary key)")
    drive.app.execute("create trigger early before insert on other for each row execute function onceflow.record_write()")
    with pytest.raises(psycopg.errors.DatabaseError, match=r"onceflow\.track"):
        drive.app.execute("insert into other values (1)")
