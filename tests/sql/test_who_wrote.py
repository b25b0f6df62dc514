"""who_wrote names the step that wrote a row where that is proven, and says 'unknown' everywhere else; track makes it exact for ever."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.drive import Drive
from tests.sql.dump import dump_and_restore
from tests.sql.engine_calls import Task

NOTHING = {"dag_id": None, "run_id": None, "step_key": None, "worker": None, "xid": None}


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running task, and an empty table of the application's."""
    drive.app.execute("create table payments (id int primary key, amount numeric not null default 0)")
    return drive.start(run_id="pay-42")


def answers(drive: Drive, table: str = "payments") -> list[tuple[str | None, str]]:
    """(step key, how) for the rows of a table, in the order of their ids."""
    return [(row["step_key"], row["how"]) for row in drive.who_wrote(table)]


def write_nested(drive: Drive, task: Task, key: str, *ids: int) -> None:
    """A step that writes the first row itself, and each other one under a savepoint of its own."""
    with drive.transaction(task, key) as conn:
        conn.execute("insert into payments values (%s)", (ids[0],))
        for one in ids[1:]:
            with conn.transaction():
                conn.execute("insert into payments values (%s)", (one,))
        drive.complete_step(task, key)


def test_the_step_of_the_row_s_transaction_is_named(drive: Drive, task: Task) -> None:
    """With everything the entry says; an UPDATE makes it the step that wrote last."""
    drive.write(task, "pay#0", "insert into payments values (1), (2)")
    drive.write(task, "pay#1", "update payments set amount = 5 where id = 2")
    first, second = drive.who_wrote("payments")
    (entry,) = drive.db.sql("select at, worker, xid::text from onceflow.step_ledger where step_key = 'pay#0'")
    expected = {
        "dag_id": "flow",
        "run_id": "pay-42",
        "task_id": "flow",
        "map_index": -1,
        "step_key": "pay#0",
        "step_name": "pay",
        "try_number": 1,
        "at": entry[0],
        "worker": entry[1],
        "host": "host",
        "code_version": "v1",
        "xid": entry[2],
        "how": "exact",
    }
    assert first == expected
    assert (second["step_key"], second["how"]) == ("pay#1", "exact")


def test_rows_of_nobody_are_unknown(drive: Drive, task: Task) -> None:
    """Written by hand, also by a step's login outside of any step, and also under a savepoint: no step is named, nothing is made up."""
    drive.write(task, "pay#0", "select 1")
    drive.app.execute("insert into payments values (1)")
    drive.step.execute("insert into payments values (2)")
    with drive.app.transaction(), drive.app.transaction():
        drive.app.execute("insert into payments values (3)")
    drive.write(task, "pay#1", "select 1")
    rows = drive.who_wrote("payments")
    assert [row["how"] for row in rows] == ["unknown"] * 3
    assert all(row[name] is None for row in rows for name in NOTHING)


def test_a_row_that_is_gone_has_no_writer(drive: Drive, task: Task) -> None:
    """No answer for a place where no row is."""
    assert drive.auditor.execute("select * from onceflow.who_wrote('payments', '(7,7)')").fetchall() == []


def test_rows_under_savepoints_are_the_step_s(drive: Drive, task: Task) -> None:
    """They carry ids of subtransactions: they commit at the step's moment, others around them do not."""
    drive.write(task, "pay#0", "select 1")
    write_nested(drive, task, "pay#1", 1, 2, 3)
    drive.write(task, "pay#2", "select 1")
    assert answers(drive) == [("pay#1", "exact"), ("pay#1", "subtransaction"), ("pay#1", "subtransaction")]


def test_a_group_is_named_as_a_group(drive: Drive, task: Task) -> None:
    """When one transaction recorded several steps, all of them are answered, as it was one of these."""
    other = drive.start()
    with drive.transaction(task, "") as conn:
        conn.execute("insert into payments values (1)")
        drive.complete_step(task, "pay#0")
        drive.complete_step(other, "pay#0")
    rows = drive.who_wrote("payments")
    assert {(row["run_id"], row["how"]) for row in rows} == {("pay-42", "group"), (rows[1]["run_id"], "group")}
    assert len(rows) == 2


def test_an_application_that_acts_on_a_run_is_named_by_its_act(drive: Drive, task: Task) -> None:
    """A row written in the transaction that cancelled a run leads to that act, not to a step."""
    with drive.app.transaction():
        drive.app.execute("insert into payments values (1)")
        drive.app.execute("select onceflow.cancel_run(%s)", (task.run,))
    assert answers(drive) == [("cancelled", "exact")]


def test_rows_of_partitions_are_found(drive: Drive, task: Task) -> None:
    """tableoid leads to the partition; asked for the partitioned table itself, it says what to pass."""
    drive.app.execute("create table sharded (id int primary key) partition by range (id)")
    drive.app.execute("create table sharded_1 partition of sharded for values from (0) to (10)")
    drive.write(task, "pay#0", "insert into sharded values (1)")
    assert answers(drive, "sharded") == [("pay#0", "exact")]
    with pytest.raises(psycopg.errors.DatabaseError, match=r"pass the row's tableoid") as caught:
        drive.auditor.execute("select * from onceflow.who_wrote('sharded', '(0,1)')")
    assert caught.value.sqlstate == "OF008"


def test_it_runs_with_the_caller_s_rights(drive: Drive, task: Task) -> None:
    """Who may not read the table, or the ledger, learns nothing by it."""
    drive.write(task, "pay#0", "insert into payments values (1)")
    drive.app.execute("revoke all on payments from onceflow_auditor")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table payments"):
        drive.who_wrote("payments")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function who_wrote"):
        drive.step.execute("select * from onceflow.who_wrote('payments', '(0,1)')")


@pytest.mark.parametrize("rewrite", ["vacuum freeze payments", "vacuum full payments"])
def test_upkeep_keeps_the_answer(drive: Drive, task: Task, rewrite: str) -> None:
    """VACUUM FREEZE and VACUUM FULL leave a row's transaction as it was."""
    drive.write(task, "pay#0", "insert into payments values (1)")
    drive.db.sql(rewrite)
    assert answers(drive) == [("pay#0", "exact")]


def test_what_loses_the_transaction_loses_the_answer(drive: Drive, task: Task) -> None:
    """After a rewriting ALTER TABLE nothing proves who wrote: 'unknown', not a guess."""
    write_nested(drive, task, "pay#0", 1, 2)
    drive.app.execute("alter table payments alter amount type float8")
    assert answers(drive) == [(None, "unknown"), (None, "unknown")]


def test_no_match_across_clusters(drive: Drive, task: Task) -> None:
    """After dump and restore the new rows' xids meet those of other entries: none is taken for its own."""
    drive.write(task, "pay#0", "insert into payments values (1)")
    with dump_and_restore(drive.db) as restored:
        other = Drive(restored)
        xmin = restored.sql("select xmin::text from payments")[0][0]
        restored.sql(f"update onceflow.step_ledger set xid = '{xmin}'")
        assert answers(other) == [(None, "unknown")]
        other.close()


def test_no_match_beyond_two_billion_transactions(drive: Drive, task: Task) -> None:
    """An entry of another round of the 32 bits of a row's xmin is not its writer."""
    drive.write(task, "pay#0", "insert into payments values (1)")
    for rounds in (1, 2):
        drive.db.sql(f"update onceflow.step_ledger set xid = ((select xmin from payments)::text::bigint + {rounds} * 4294967296)::text::xid8")
        assert answers(drive) == [(None, "unknown")]


def test_two_steps_that_commit_at_one_moment_are_not_told_apart(drive: Drive, task: Task) -> None:
    """Where the moment of a subtransaction fits two recorded transactions, the answer is 'unknown'. (An entry copied to the id of the subtransaction
    before it stands in for the second, as it has the same moment.)"""
    write_nested(drive, task, "pay#0", 1, 2, 3)
    assert answers(drive)[2] == ("pay#0", "subtransaction")
    drive.db.sql("update onceflow.step_ledger set step_key = 'pay#1', xid = (select (xmin::text)::xid8 from payments where id = 2)")
    drive.db.sql(
        "insert into onceflow.step_ledger select (jsonb_populate_record(l, jsonb_build_object('id', 0, 'step_key', 'pay#0', "
        "'xid', (select xmin::text from payments where id = 1)))).* from onceflow.step_ledger l"
    )
    assert answers(drive)[2] == (None, "unknown")
