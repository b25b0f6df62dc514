"""Sealing: what a seal covers, that nothing stands in its way, and that verify_ledger has no false alarm for anything honest."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from tests.database import TestDatabase
from tests.sql.drive import Drive
from tests.sql.dump import dump_and_restore
from tests.sql.engine_calls import Task

WINDOWS = "select no, entries from onceflow.ledger_seal order by no"


def steps(drive: Drive, task: Task, count: int) -> None:
    for number in range(count):
        drive.write(task, f"pay#{number}")


def test_a_backlog_is_sealed_window_by_window(drive: Drive) -> None:
    """A window holds at most p_size entries, a call makes at most p_windows, and what one transaction wrote is never divided."""
    task = drive.start()
    steps(drive, task, 7)
    with drive.transaction(task, "pay#0") as conn:
        for number in range(7, 12):
            drive.complete_step(task, f"pay#{number}", conn)
    drive.write(task, "pay#12")
    assert drive.db.sql("select onceflow.seal_ledger(0, 2, 3)") == [({"seals": 2, "entries": 6},)]
    assert drive.findings() == []
    assert drive.db.sql("select onceflow.seal_ledger(0, 100, 3)") == [({"seals": 3, "entries": 7},)]
    assert drive.db.sql(WINDOWS) == [(1, 3), (2, 3), (3, 1), (4, 5), (5, 1)]
    assert drive.findings() == [] == drive.findings(task.run)


def test_a_seal_waits_for_every_older_transaction(drive: Drive) -> None:
    """An entry that commits late lies in no window that was sealed before: a window ends below the oldest transaction that still runs."""
    slow, fast = drive.start(), drive.start()
    with drive.transaction(slow, "pay#0") as conn:
        drive.complete_step(slow, "pay#0", conn)
        other = drive.db.connect("step")
        with drive.transaction(fast, "pay#0", other):
            drive.complete_step(fast, "pay#0", other)
        other.close()
        assert drive.seal()["entries"] == 0
        lag = drive.auditor.execute("select onceflow.seal_lag()").fetchall()[0][0]
        assert (lag["unsealed"], lag["held_by"]["pid"], lag["lag_s"] > 0) == (1, drive.step.info.backend_pid, True)
        assert drive.findings() == []
    assert drive.seal()["entries"] == 2
    assert drive.findings() == []
    assert drive.auditor.execute("select onceflow.seal_lag() -> 'unsealed'").fetchall() == [(0,)]


def test_one_sealer_works_at_a_time(drive: Drive) -> None:
    """A second one does not wait; nobody else can keep the sealer away, as it takes a row lock that no other role can take."""
    task = drive.start()
    steps(drive, task, 1)
    with drive.app.transaction():
        assert drive.app.execute("select onceflow.seal_ledger()").fetchall() == [({"seals": 1, "entries": 1},)]
        assert drive.seal() == {"busy": True, "seals": 0, "entries": 0}
    assert drive.db.sql(WINDOWS) == [(1, 1)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        drive.app.execute("select from onceflow.engine for update")


def test_the_tick_seals(drive: Drive) -> None:
    """Any process that ticks seals: at once when the last seal is old, else every five seconds, so that idle systems make no seals."""
    task = drive.start()
    steps(drive, task, 1)
    drive.db.sql("update onceflow.engine set last_tick_at = last_tick_at - interval '1 second'")
    drive.engine.tick()
    assert drive.db.sql(WINDOWS) == [(1, 1)]
    drive.write(task, "pay#1")
    drive.db.sql("update onceflow.engine set last_tick_at = last_tick_at - interval '1 second'")
    drive.engine.tick()
    assert drive.db.sql(WINDOWS) == [(1, 1)], "a seal of this moment is followed five seconds later"
    assert drive.db.sql("select onceflow.seal_ledger()") == [({"seals": 1, "entries": 1},)]
    assert drive.findings() == []


@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
def test_an_entry_written_under_a_savepoint_is_honest(drive: Drive, is_sealed: bool) -> None:
    """An application that cancels a run inside a savepoint of its own leaves an entry whose row carries the id of the subtransaction."""
    task = drive.start()
    with drive.app.transaction():
        drive.app.execute("create table note (id int)")
        with drive.app.transaction():
            drive.app.execute("select onceflow.cancel_run(%s)", (task.run,))
    assert drive.db.sql("select count(*) from onceflow.step_ledger where xmin <> xid::xid") == [(2,)], "what the test is about"
    if is_sealed:
        drive.seal()
    assert drive.findings() == [] == drive.findings(task.run)


@pytest.mark.parametrize("rewrite", ["vacuum freeze", "vacuum full", "vacuum full freeze"])
def test_upkeep_is_honest(drive: Drive, rewrite: str) -> None:
    """VACUUM FREEZE and VACUUM FULL keep what the evidence rests on."""
    task = drive.start()
    steps(drive, task, 3)
    drive.seal()
    drive.db.sql(f"{rewrite} onceflow.step_ledger")
    drive.write(task, "pay#9")
    assert drive.findings() == []
    drive.seal()
    assert drive.findings() == []


def test_an_archived_month_is_still_verified(drive: Drive) -> None:
    """Entries that were archived count in their seals and tasks, and a change there is found."""
    then = "onceflow.now() - interval '200 days'"
    month = drive.db.sql(f"select onceflow.make_partitions({then}, 1), to_char({then}, 'YYYYMM')")[0][1]
    task = drive.start()
    drive.write(task, "pay#0")
    drive.engine.complete(task)
    drive.seal()
    old = task.run - (200 * 86_400_000 << 20)
    for table, columns in {"run": ("id", "root"), "ti": ("run", "id"), "step_ledger": ("dag_run", "ti")}.items():
        drive.db.sql(f"update onceflow.{table} set {', '.join(f'{c} = {old}' for c in columns)}")
    drive.db.sql("delete from onceflow.ledger_seal")
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l)")
    before = [(p, d) for p, _, _, d in drive.findings()]
    assert {p for p, _ in before} == {"rewritten entry", "broken seal"}, "the test itself made them old"
    drive.db.sql("update onceflow.sealer set last_seal = 0")
    drive.seal()
    assert drive.problems() == ["rewritten entry"]
    drive.app.execute("select onceflow.archive_month(%s, 90)", (month,))
    assert drive.db.sql("select count(*) from onceflow.step_ledger") == [(0,)]
    assert drive.problems() == ["rewritten entry"] == drive.problems(old)
    drive.db.sql("delete from onceflow_archive.step_ledger where step_key = 'pay#0'")
    assert drive.problems() == ["removed entry", "rewritten entry"] == drive.problems(old)


def test_a_restored_ledger_is_clean_and_begins_a_segment_of_its_own(drive: Drive) -> None:
    """After dump and restore the rows' xmins say nothing more: the old entries stand by their hashes and seals; what was unsealed is sealed, and a
    new chain of windows begins visibly. A change to an old entry is found as before."""
    task = drive.start()
    steps(drive, task, 3)
    drive.seal()
    drive.write(task, "pay#3")
    with dump_and_restore(drive.db) as restored:
        other = Drive(restored)
        assert other.findings() == []
        new = other.start()
        other.write(new, "pay#0")
        assert other.findings() == []
        assert other.seal() == {"seals": 2, "entries": 2}
        assert other.findings() == []
        seals = restored.sql("select entries, cluster = lag(cluster) over (order by no), xid_from = '0' from onceflow.ledger_seal order by no")
        assert seals == [(3, None, True), (1, True, False), (1, False, True)]
        restored.sql("update onceflow.step_ledger set output = '2' where step_key = 'pay#1'")
        restored.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l) where step_key = 'pay#1'")
        assert other.problems() == ["changed entry"] == other.problems(task.run)
        other.close()


def test_verifying_under_load_has_no_false_alarm(drive: Drive, db: TestDatabase) -> None:
    """While steps commit, tasks end, fail, are rescued and cancelled and seals are made, every look finds a clean ledger."""
    problems: list[Any] = []
    is_over = threading.Event()
    busy = [threading.Thread(target=work, args=(db, is_over, problems, number)) for number in range(3)]
    busy.append(threading.Thread(target=seal, args=(db, is_over, problems)))
    for thread in busy:
        thread.start()
    try:
        looks, deadline = 0, time.monotonic() + 60
        while looks < 10 or drive.db.sql("select count(*) > 200, count(distinct to_state) >= 4 from onceflow.step_ledger") != [(True, True)]:
            assert drive.findings() == [] == problems
            looks += 1
            assert time.monotonic() < deadline, "the load has not come about"
    finally:
        is_over.set()
        for thread in busy:
            thread.join()
    assert problems == []
    drive.seal()
    assert drive.findings() == []


def work(db: TestDatabase, is_over: threading.Event, problems: list[Any], number: int) -> None:
    """Runs with steps of several entries each, ended in several ways."""
    drive = Drive(db)
    drive.engine.queues = (f"q{number}",)
    drive.engine.register()
    try:
        count = 0
        while not is_over.is_set():
            count += 1
            run = drive.engine.start(queue=f"q{number}")
            task = drive.engine.claim_one()
            with drive.transaction(task, "pay#0") as conn:
                drive.complete_step(task, "pay#0", conn)
            with drive.step.transaction(force_rollback=True):
                drive.complete_step(task, "pay#1")
            if count % 4 == 0:
                drive.engine.fail(task)
                drive.engine.retry(run)
                task = drive.engine.claim_one()
            elif count % 4 == 1:
                drive.engine.cancel(run)
                continue
            elif count % 4 == 2:
                drive.engine.unclaim(task)
                task = drive.engine.claim_one()
            drive.engine.complete(task)
    except BaseException as error:
        problems.append(error)
    finally:
        drive.close()


def seal(db: TestDatabase, is_over: threading.Event, problems: list[Any]) -> None:
    """Small windows, as often as possible."""
    try:
        with db.connect("worker") as conn:
            while not is_over.is_set():
                conn.execute("select onceflow.seal_ledger(0, 5, 7)")
    except BaseException as error:
        problems.append(error)
