"""The dags in examples/ do what they say with real workers, one of which is killed inside a task's transaction."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from currency_converter import CurrencyConverter, RateNotFoundError

from onceflow import Client, InvalidArgument
from onceflow.demo.statements import BrokenStatement, read_statement
from tests.database import TestDatabase
from tests.examples.page_run import ROOT
from tests.examples.test_examples import EXAMPLES, run_example
from tests.examples.test_pages import page_environment
from tests.processes import Workers

SHORT_LEASE = {"ONCEFLOW_LEASE_S": "2"}
STATEMENTS = [folder for folder in (ROOT / "src/onceflow/demo/data", ROOT / "../shared/data/statements") if folder.is_dir()]
HELD = "select w.pid from onceflow.lease l join onceflow.ti t on t.run = l.run and t.id = l.ti join onceflow.worker w on w.id = l.worker where t.task_id = %s"
BLOCKED = "select count(*) > 0 from pg_stat_activity where datname = current_database() and usename = 'onceflow_step' and wait_event_type = 'Lock'"


def start_two(workers: Workers, example: str) -> None:
    for _ in range(2):
        workers.start(EXAMPLES / f"{example}.py", env=SHORT_LEASE)


def kill_inside(db: TestDatabase, workers: Workers, task: str, lock: str, begin: Callable[[], object] = bool) -> None:
    """SIGKILL to a worker that stands in the transaction of that task: it waits there for what the lock's statement locks. `begin` is called under the lock."""
    with db.connect("app") as conn, conn.transaction():
        conn.execute(lock.encode())
        begin()
        db.wait_for(BLOCKED)
        pid = db.wait_for(HELD, task)
        next(worker for worker in workers.started if worker.pid == pid).kill()


def run_command(db: TestDatabase, *args: str, code: int = 0) -> str:
    """An `onceflow` command of the application's; what it prints."""
    environment = {**page_environment(db), "ONCEFLOW_DSN": db.app_dsn}
    done = subprocess.run([sys.executable, "-m", "onceflow", *args], env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def assert_once(db: TestDatabase, dag: str) -> None:
    """A task was taken over, and the ledger says nothing but what happened."""
    assert db.sql("select count(*) > 0 from onceflow.step_ledger where dag_id = %s and to_state = 'rescued'", dag) == [(True,)]
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_each_day_of_a_backfill_is_closed_once(db: TestDatabase, workers: Workers) -> None:
    """fx_close: each business day has one close, two postings for each position and an entry for each pair; the worth is that of the last day's rates."""
    start_two(workers, "fx_close")
    run_example(db, "fx_close", "open")
    assert "31 runs" in run_command(db, "dags", "backfill", "fx_close", "--start-date", "2022-01-01", "--end-date", "2022-01-31")
    db.wait_for("select count(*) > 5 from closed_day")
    kill_inside(db, workers, "revalue", "select from position where currency = 'USD' for update")
    db.wait_for("select state = 'done' from onceflow.backfill", timeout=60)
    days = quoted_days(date(2022, 1, 1), date(2022, 1, 31))
    assert [day for (day,) in db.sql("select day from closed_day order by day")] == days and len(days) == 21
    assert db.sql("select count(*), sum(euro) from posting where day > '2021-12-31'") == [(6 * len(days), 0)]
    written = "select count(distinct w.xid), count(distinct w.how) from posting p, onceflow.who_wrote(p.tableoid, p.ctid) w where day > '2021-12-31'"
    assert db.sql(written) == [(3 * len(days), 1)]
    assert db.sql("select euro from position where currency = 'USD'") == [(round(1_000_000 / Decimal("1.1156"), 2),)]  # the rate of 31 January
    assert_once(db, "fx_close")
    assert "21 days closed" in run_example(db, "fx_close")


def quoted_days(first: date, last: date) -> list[date]:
    """The days for which the ECB has a rate of the dollar."""
    rates, found = CurrencyConverter(), []
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        try:
            rates.convert(1, "EUR", "USD", day)
        except RateNotFoundError:
            continue
        found.append(day)
    return found


@pytest.mark.parametrize("statements", STATEMENTS, ids=lambda folder: folder.parent.name)
def test_a_load_is_published_whole_or_not_at_all(db: TestDatabase, workers: Workers, tmp_path: Path, statements: Path) -> None:
    """warehouse_load: every entry of every good file is published once; with more refused than allowed none is; nothing stays staged."""
    for number in range(4):
        for path in statements.glob("*.*"):
            shutil.copy(path, tmp_path / f"{number}-{path.name}")
    good, refused = count_entries(tmp_path)
    start_two(workers, "warehouse_load")
    assert "held back" in run_example(db, "warehouse_load", str(tmp_path))
    assert db.sql("select count(*) from entry union all select count(*) from staged") == [(0,), (0,)]
    params = json.dumps({"folder": str(tmp_path), "max_refused": 0.9})
    kill_inside(
        db, workers, "load_file", "lock table staged in share mode",
        lambda: run_command(db, "runs", "start", "warehouse_load", "--run-id", "second", "--params", params),
    )  # fmt: skip
    with Client(db.app_dsn) as client:
        assert client.find("second").result(timeout_s=60) == "success"
    assert db.sql("select entries, cardinality(refused), is_published from load where run_id = 'second'") == [(sum(good.values()), refused, True)]
    assert dict(db.sql("select file, count(*) from entry group by file")) == {name: count for name, count in good.items() if count}
    assert db.sql("select count(*) from staged") == [(0,)]
    assert_once(db, "warehouse_load")


def count_entries(folder: Path) -> tuple[dict[str, int], int]:
    """How many entries each good file has, and how many files are refused."""
    good, refused = {}, 0
    for path in folder.glob("*.*"):
        if path.suffix in (".sta", ".xml"):
            try:
                good[path.name] = sum(len(one.entries) for one in read_statement(path))
            except BrokenStatement:
                refused += 1
    return good, refused


def test_params_are_refused_before_there_is_a_run(db: TestDatabase, workers: Workers) -> None:
    """Of a dag that is started by its name alone the database knows the schemas: by command and by client."""
    workers.start(EXAMPLES / "warehouse_load.py")
    assert "5 is greater than the maximum of 1" in run_command(db, "runs", "start", "warehouse_load", "--params", '{"max_refused": 5}', code=2)
    with Client(db.app_dsn) as client, pytest.raises(InvalidArgument, match="maximum of 1"):
        client.using(queue="default").trigger("warehouse_load", {"max_refused": 5})
    assert db.sql("select count(*) from onceflow.dag_run") == [(0,)]


def test_large_payments_wait_for_a_person(db: TestDatabase, workers: Workers) -> None:
    """payments_approval: nobody holds the wait, so nobody's death ends it; each invoice is paid once, the large ones with who approved them."""
    first = workers.start(EXAMPLES / "payments_approval.py", env=SHORT_LEASE)
    run_example(db, "payments_approval", "order", "2026-03-02")
    db.wait_for("select count(*) = 1 from onceflow.task_instance where task_id = 'approval' and state = 'deferred'")
    db.wait_for("select count(*) = 2 from payment")
    assert "1 tasks of payments wait for a person's answer" in run_command(db, "doctor")
    first.kill()
    start_two(workers, "payments_approval")
    with Client(db.app_dsn) as client:
        run = client.find("2026-03-02", "payments")
        kill_inside(
            db, workers, "pay_large", "select from balance for update",
            lambda: run_command(db, "approvals", "answer", "payments/2026-03-02", "approval", "approve", "--actor", "ada"),
        )  # fmt: skip
        assert run.result(timeout_s=60) == "success"
    assert db.sql("select invoice, approved_by from payment order by 1") == [(4711, None), (4712, None), (4713, "ada"), (4714, "ada")]
    assert db.sql("select 100000 - amount, (select sum(amount) from payment) from balance") == [(Decimal("22140.50"), Decimal("22140.50"))]
    assert db.sql("select actor from onceflow.step_ledger where task_id = 'approval' and kind = 'human'") == [("ada",)]
    assert_once(db, "payments")


def test_what_is_not_approved_is_not_paid(db: TestDatabase, workers: Workers) -> None:
    """payments_approval: a refusal skips the large payments only, and the report tells of the small ones."""
    workers.start(EXAMPLES / "payments_approval.py")
    run_example(db, "payments_approval", "order", "2026-03-02")
    db.wait_for("select count(*) = 1 from onceflow.task_instance where task_id = 'approval' and state = 'deferred'")
    assert run_example(db, "payments_approval", "answer", "2026-03-02", "reject", "bob") == "success\n"
    assert db.sql("select invoice from payment order by 1") == [(4711,), (4712,)]
    assert db.sql("select output from onceflow.step_ledger where task_id = 'report' and to_state = 'success'") == [("2 + 0 payments of 1240.50",)]
