"""The ledger's evidence: what verify_ledger finds when somebody with an owner's rights has changed, removed or added something."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.drive import Drive, Finding
from tests.sql.engine_calls import Task

BEFORE_AND_AFTER = pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
FORGE = """
    do $$
    declare
        e onceflow.step_ledger;
    begin
        select * into e from onceflow.step_ledger where step_key = 'pay#0';
        e.id := nextval('onceflow.ledger_seq');
        e.step_key := 'forged#0';
        e.xid := {xid};
        e.hash := onceflow.entry_hash(e);
        insert into onceflow.step_ledger select e.*;
    end $$"""


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running task with three committed steps."""
    task = drive.start()
    for number in range(3):
        drive.write(task, f"pay#{number}")
    return task


def find_entry(drive: Drive, key: str) -> int:
    return int(drive.db.sql("select id from onceflow.step_ledger where step_key = %s", key)[0][0])


def details(findings: list[Finding], problem: str) -> list[str]:
    return [detail for found, _, _, detail in findings if found == problem]


def test_a_ledger_nobody_touched_is_clean(drive: Drive, task: Task) -> None:
    """No row: while a task runs, after it ended, sealed and unsealed, for the whole ledger and for one run."""
    assert drive.findings() == []
    assert drive.seal() == {"seals": 1, "entries": 3}
    assert drive.findings() == []
    drive.engine.complete(task)
    assert drive.findings() == [] == drive.findings(task.run)
    assert drive.seal() == {"seals": 1, "entries": 1}
    assert drive.findings() == [] == drive.findings(task.run)
    assert drive.seal() == {"seals": 0, "entries": 0}, "a window without entries makes no seal"


CHANGES = {
    "output": "output = '2'",
    "state": "to_state = 'failed'",
    "time": "at = at + interval '1 microsecond'",
    "null": "worker = null",
    "null made empty": "actor = ''",
    "text moved to the next field": "step_key = left(step_key, -1), step_name = right(step_key, 1) || step_name",
    "hash": "hash = sha256('x')",
}


@BEFORE_AND_AFTER
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_entry_is_found(drive: Drive, task: Task, change: str, is_sealed: bool) -> None:
    """Whatever field was changed, before and after its seal; the finding names the entry and its run."""
    entry = find_entry(drive, "pay#1")
    if is_sealed:
        drive.seal()
    drive.db.sql(f"update onceflow.step_ledger set {change} where step_key = 'pay#1'")
    for findings in (drive.findings(), drive.findings(task.run)):
        assert [(p, e) for p, _, e, d in findings if d == "its hash is not that of its fields"] == [("changed entry", entry)]


@BEFORE_AND_AFTER
def test_a_change_with_the_hash_made_anew_is_found(drive: Drive, task: Task, is_sealed: bool) -> None:
    """Who changes an entry and computes its hash again leaves a row that another transaction wrote, and breaks the seal."""
    if is_sealed:
        drive.seal()
    drive.db.sql("update onceflow.step_ledger set output = '2' where step_key = 'pay#1'")
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l)")
    assert drive.problems() == (["changed entry", "rewritten entry"] if is_sealed else ["rewritten entry"])
    assert drive.problems(task.run) == drive.problems()


@BEFORE_AND_AFTER
@pytest.mark.parametrize("key", ["pay#0", "pay#2"], ids=["first", "last"])
@pytest.mark.parametrize("has_ended", [False, True], ids=["running", "ended"])
def test_a_removed_entry_is_found(drive: Drive, task: Task, key: str, is_sealed: bool, has_ended: bool) -> None:
    """The last entry too, before any seal too, of a running task and of an ended one: its task has counted its entries."""
    if has_ended:
        drive.engine.complete(task)
    if is_sealed:
        drive.seal()
    drive.db.sql("delete from onceflow.step_ledger where step_key = %s", key)
    count = 4 if has_ended else 3
    for findings in (drive.findings(), drive.findings(task.run)):
        found = details(findings, "removed entry")
        assert found[0] == f"task {task.ti} counts {count} entries, the ledger holds {count - 1}"
        assert len(found) == (2 if is_sealed else 1), "the seal misses it too"


def test_an_emptied_ledger_is_found(drive: Drive, task: Task) -> None:
    """TRUNCATE leaves nothing to look at, but tasks have counted, and seals remember."""
    drive.seal()
    drive.db.sql("truncate onceflow.step_ledger")
    assert details(drive.findings(), "removed entry") == [
        f"task {task.ti} counts 3 entries, the ledger holds 0",
        drive.db.sql("select format('seal 1 (transactions %s to %s) was made over 3 entries; there are 0', xid_from, xid_to) from onceflow.ledger_seal")[0][0],
    ]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("xid", ["e.xid", "pg_current_xact_id()", "'9000000000'"], ids=["a past xid", "its own xid", "a future xid"])
def test_an_added_entry_is_found(drive: Drive, task: Task, xid: str, is_sealed: bool) -> None:
    """An entry that no function of the engine wrote, with a right hash, whatever transaction it names."""
    if is_sealed:
        drive.seal()
    drive.db.sql(FORGE.format(xid=xid))
    for findings in (drive.findings(), drive.findings(task.run)):
        assert f"task {task.ti} counts 3 entries, the ledger holds 4" in details(findings, "added entry")
        assert bool(details(findings, "rewritten entry")) == (xid != "pg_current_xact_id()")


@BEFORE_AND_AFTER
def test_an_entry_of_nobody_is_found(drive: Drive, task: Task, is_sealed: bool) -> None:
    """An entry whose task does not exist, as when somebody has removed the task."""
    drive.engine.complete(task)
    if is_sealed:
        drive.seal()
    drive.db.sql("delete from onceflow.ti")
    assert drive.problems() == ["entry without task", "missing task"]
    drive.db.sql("delete from onceflow.run")
    assert drive.problems() == ["entry without task"]


def test_a_missing_outcome_is_found(drive: Drive, task: Task) -> None:
    """An ended task whose own last entry is gone lacks its outcome, even when its count was made to fit."""
    drive.engine.complete(task)
    drive.db.sql("delete from onceflow.step_ledger where step_key = 'flow'")
    drive.db.sql("update onceflow.ti set entries = entries - 1")
    assert drive.findings() == [("missing outcome", "flow", None, f"task {task.ti} is success, and no entry says so")]


def test_a_changed_state_is_found(drive: Drive, task: Task) -> None:
    """A failed task made a success by hand has no entry that says success."""
    drive.engine.fail(task)
    assert drive.findings() == []
    drive.db.sql("update onceflow.ti set state = 'success'")
    assert drive.problems() == ["missing outcome"]


@pytest.mark.parametrize("act", ["cancelled", "retried", "forked"])
def test_a_removed_act_is_found(drive: Drive, task: Task, act: str) -> None:
    """What humans did to a run is counted on the run: a removed act is missed before any seal, and names who called."""
    if act == "forked":
        run = int(drive.app.execute("select onceflow.fork_run(%s, 'pay#1', 'again', 'alice') ->> 'run'", (task.run,)).fetchall()[0][0])
    else:
        run = task.run
        drive.app.execute("select onceflow.cancel_run(%s, 'enough', 'alice')", (run,))
        if act == "retried":
            drive.app.execute("select onceflow.retry_run(%s, 'alice')", (run,))
    entry = drive.db.sql("select actor, inputs ->> 'login' from onceflow.step_ledger where dag_run = %s and kind = 'human' and to_state = %s", run, act)
    assert entry == [("alice", "app")]
    assert drive.findings() == []
    acts = len(drive.db.sql("select id from onceflow.step_ledger where dag_run = %s and ti = 0", run))
    drive.db.sql("delete from onceflow.step_ledger where to_state = %s and kind = 'human'", act)
    assert details(drive.findings(), "removed entry") == [f"the run counts {acts} acts, the ledger holds {acts - 1}"]


SEAL_CHANGES = {
    "root": "update onceflow.ledger_seal set root = sha256('x') where no = 2",
    "time": "update onceflow.ledger_seal set sealed_at = sealed_at + interval '1 hour' where no = 2",
    "hash": "update onceflow.ledger_seal set hash = sha256('x') where no = 2",
    "count": "update onceflow.ledger_seal set entries = entries + 1 where no = 3",
    "first gone": "delete from onceflow.ledger_seal where no = 1",
    "middle gone": "delete from onceflow.ledger_seal where no = 2",
    "last gone": "delete from onceflow.ledger_seal where no = 3",
    "all gone": "delete from onceflow.ledger_seal",
}


@pytest.mark.parametrize("change", SEAL_CHANGES.values(), ids=SEAL_CHANGES)
def test_a_changed_or_removed_seal_is_found(drive: Drive, change: str) -> None:
    """Each seal is chained to the one before it, windows lie side by side, and how many were made is remembered."""
    task = drive.start()
    for number in range(3):
        drive.write(task, f"pay#{number}")
        drive.seal()
    assert drive.findings() == []
    drive.db.sql(change)
    assert "broken seal" in drive.problems()


def test_seals_made_anew_by_the_owner_still_show_the_row_that_was_rewritten(drive: Drive, task: Task) -> None:
    """An owner who changes an entry and makes its hash and all seals anew leaves the row's xmin. Only exported seals catch one who
    forges even that, by writing all entries again (docs/ledger.md says so)."""
    drive.seal()
    drive.db.sql("update onceflow.step_ledger set output = '2' where step_key = 'pay#1'")
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l)")
    drive.db.sql("delete from onceflow.ledger_seal")
    drive.seal()
    first = "row(1, xid_from, xid_to, xid_next, cluster, entries, root, hash, sealed_at)"
    drive.db.sql(f"update onceflow.ledger_seal set no = 1, hash = onceflow.seal_hash({first}, null)")
    drive.db.sql("update onceflow.sealer set last_seal = 1")
    assert drive.problems() == ["rewritten entry"]


def test_only_the_owner_may_write_the_ledger(drive: Drive, task: Task) -> None:
    """INSERT, UPDATE, DELETE and TRUNCATE are refused by name for every login: the worker's, steps', applications', auditors'."""
    statements = ("insert into {t} default values", "update {t} set cluster = cluster", "delete from {t}", "truncate {t}")
    for login in ("worker", "step", "app", "auditor"):
        for table in ("step_ledger", "ledger_seal", "step_ledger_default", "tracked_write"):
            for statement in statements:
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"permission denied for table {table}"):
                    drive.connection(login).execute(statement.format(t=f"onceflow.{table}").encode())
    assert drive.findings() == []
