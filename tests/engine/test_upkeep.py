"""Archive and clean: whole months of ended runs move, nothing that lives is touched, nothing is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceflow import Client
from onceflow.cli.app import app
from onceflow.db import upkeep
from onceflow.db.upkeep import archive_months, clean_leftovers
from onceflow.errors import NoDatabase, NotFound
from tests.database import TestDatabase
from tests.processes import Workers, write_dags

FLOWS = """
    from onceflow import step, workflow

    @step
    def add(a: int, b: int) -> int:
        return a + b

    @workflow
    def total(n: int) -> int:
        return add(add(n, 1), 2)
"""

AN_APPROVAL = """insert into onceflow.approval (run, ti, dag_id, run_id, task_id, map_index, subject, options, asked_at)
    values (%s, 1, 'flow', 'r', 'ask', -1, 'Pay?', '{yes}', now())"""


def move_clock(db: TestDatabase, days: int) -> None:
    """The engine's one clock, that many days ahead; ids stay of the real time."""
    db.sql(f"create or replace function onceflow.now() returns timestamptz language sql volatile as $$ select clock_timestamp() + interval '{days} days' $$")


def start_run(db: TestDatabase, run_id: str, **options: Any) -> int:
    """A run of a workflow that no worker has."""
    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": "idle"}]))
    named = "".join(f", {name} => %s" for name in options)
    return int(db.sql(f"select onceflow.start_run('idle', run_id => %s{named})", run_id, *options.values())[0][0]["run"])


def end_run(db: TestDatabase, run: int) -> None:
    """End it as an operator would."""
    db.sql("select onceflow.cancel_run(%s)", run)


@pytest.mark.server("18", "15")
def test_an_archived_month_is_complete_and_still_verified(db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """All rows of a month move, with their entries; verify, export and run ids go on as before, and new runs too."""
    worker = workers.start(write_dags(tmp_path, "flows", FLOWS))
    for number in range(3):
        db.sql("select onceflow.start_run('total', %s, %s)", json.dumps({"n": number}), f"r{number}")
    db.wait_for("select count(*) = 3 from onceflow.run where state = 'success'")
    worker.terminate()
    db.sql("select onceflow.seal_ledger()")
    before = db.sql("select id, dag_run, encode(hash, 'hex') from onceflow.step_ledger order by id")
    assert len(before) == 15
    assert archive_months(db.dsn, 90) == []
    move_clock(db, 200)
    (month, *_) = archive_months(db.app_dsn, 90)
    assert (month.moved, month.runs, month.kept_because) == (True, 3, None)
    assert [db.sql(f"select count(*) from onceflow.{table}") for table in ("run", "ti", "step_ledger")] == [[(0,)]] * 3
    assert db.sql("select id, dag_run, encode(hash, 'hex') from onceflow_archive.step_ledger order by id") == before
    assert db.sql("select (select count(*) from onceflow_archive.run), (select count(*) from onceflow_archive.ti)") == [(3, 3)]
    assert db.sql("select * from onceflow.verify_ledger()") == []
    with db.connect("auditor") as auditor:
        assert auditor.execute("select count(*) from onceflow_archive.step_ledger").fetchone() == (15,)
    with Client(db.app_dsn) as client, pytest.raises(NotFound, match="it was archived"):
        client.find("r1").result(1)
    cli = CliRunner()
    assert "was archived" in cli.invoke(app, ["runs", "show", "r1", "--dsn", db.app_dsn]).stderr
    shown = cli.invoke(app, ["ledger", "export", "-", "--dsn", db.auditor_dsn])
    assert shown.exit_code == 0, shown.stderr
    exported = [json.loads(line) for line in shown.stdout.splitlines()]
    assert sorted(line["id"] for line in exported if line["record"] == "entry") == [row[0] for row in before]
    again = db.sql("select onceflow.start_run('total', %s, 'r1')", json.dumps({"n": 1}))[0][0]
    assert again["created"] is False, "a run id stays taken"
    assert db.sql("select onceflow.start_run('total', %s, 'r9')", json.dumps({"n": 1}))[0][0]["created"] is True


def test_a_month_that_something_living_needs_stays(db: TestDatabase) -> None:
    """A living run in it, or a living parent of a run in it, keeps a month, and is named; once it has ended the month goes."""
    alive, parent = start_run(db, "alive"), start_run(db, "parent")
    child = start_run(db, "child", parent_run=parent, parent_ti=parent)
    end_run(db, child)
    move_clock(db, 200)
    (month, *_) = archive_months(db.dsn, 90)
    assert (month.moved, month.kept_because) == (False, "run alive of idle is alive")
    end_run(db, alive)
    end_run(db, parent)
    shown = CliRunner().invoke(app, ["db", "archive", "--dsn", db.dsn, "--json"])
    assert [(one["moved"], one["runs"]) for one in json.loads(shown.stdout)[:1]] == [(True, 3)]
    assert db.sql("select * from onceflow.verify_ledger()") == []


def test_a_child_of_a_living_run_keeps_its_month(db: TestDatabase) -> None:
    """A parent in an older month may ask for its child's result again on replay, so the child's month stays."""
    parent = start_run(db, "parent")
    end_run(db, start_run(db, "child", parent_run=parent, parent_ti=parent))
    month = db.sql("select to_char(now() at time zone 'UTC', 'YYYYMM')")[0][0]
    db.sql("select onceflow.make_partitions('2020-01-05', 1)")
    for table, column in (("run", "id"), ("ti", "run"), ("step_ledger", "dag_run")):  # the parent is of January 2020
        db.sql(f"update onceflow.{table} set {column} = onceflow.id_at('2020-01-07') where {column} = %s", parent)
    db.sql("update onceflow.run set parent_run = onceflow.id_at('2020-01-07') where parent_run = %s", parent)
    move_clock(db, 200)
    kept = {one.month: one.kept_because for one in archive_months(db.dsn, 90)}
    assert kept["202001"] == "run parent of idle is alive"
    assert kept[month] == "run parent of idle, which lives, started run child"


def test_archiving_waits_for_no_transaction_for_long(db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a transaction uses the tables the month waits in short turns and goes as soon as it can; it gives up with an error that says so."""
    end_run(db, start_run(db, "one"))
    move_clock(db, 200)
    with db.connect() as busy:
        busy.execute("begin; update onceflow.run set priority = 1")
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "_TRIES", 1)
            with pytest.raises(NoDatabase, match="in use"):
                archive_months(db.dsn, 90)
        moved: list[Any] = []
        archiver = threading.Thread(target=lambda: moved.extend(archive_months(db.dsn, 90)))
        archiver.start()
        db.wait_for("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'select onceflow.archive_month%%'")
        busy.execute("commit")
    archiver.join(timeout=60)
    assert moved and moved[0].moved


def test_clean_takes_leftovers_only(db: TestDatabase) -> None:
    """Messages, keys, events and callbacks of ended runs, values of archived ones and ended workers go; those of living runs, and everything younger, stay."""
    ended, alive = start_run(db, "ended"), start_run(db, "alive")
    for run in (ended, alive):
        db.sql("select onceflow.send_message(%s, 'topic', '1', 'key')", run)
        db.sql("insert into onceflow.run_event values (%s, 'k', '1', now())", run)
        db.sql("insert into onceflow.pushed values (%s, 1, 'k', '1', now())", run)
    archived = ended - (1 << 40)
    db.sql("insert into onceflow.pushed values (%s, 1, 'k', '1', now())", archived)
    db.sql("insert into onceflow.callback (run, ti, dag_id, event, due_at) values (%s, 0, 'left', 'failed', now())", ended)
    for run in (archived, alive):
        db.sql(AN_APPROVAL, run)
    db.sql("select onceflow.end_triggerer((select onceflow.register_triggerer('h', 1, 10)))")
    end_run(db, ended)
    for number, gone in ((1, True), (2, False)):
        db.sql("select onceflow.register_worker(%s, 'h', 1, array['default'], 10, '[]')", number)
        if gone:
            db.sql("select onceflow.end_worker(%s)", number)
    assert set(clean_leftovers(db.dsn, 90).values()) == {0}
    move_clock(db, 200)
    db.sql("update onceflow.worker set heartbeat_at = onceflow.now() where id = 2")
    assert clean_leftovers(db.app_dsn, 90, "message") == {"message": 1}
    shown = CliRunner().invoke(app, ["db", "clean", "--dsn", db.dsn, "--json"])
    assert json.loads(shown.stdout) == {
        "message": 0,
        "message_key": 1,
        "run_event": 1,
        "pushed": 1,
        "callback": 1,
        "dataset_event": 0,
        "approval": 1,
        "triggerer": 1,
        "worker": 1,
    }
    for table in ("message", "message_key", "run_event"):
        assert db.sql(f"select run from onceflow.{table}") == [(alive,)]
    assert db.sql("select run from onceflow.pushed order by run") == [(ended,), (alive,)], "what tasks gave each other stays as long as their run"
    assert db.sql("select id from onceflow.worker") == [(2,)]
    assert db.sql("select run from onceflow.approval") == [(alive,)] and db.sql("select count(*) from onceflow.triggerer") == [(0,)]
