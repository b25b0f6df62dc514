"""`make demo`: it runs to its end in time, its exit code is its verdict, and its proof can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from onceflow import Client
from onceflow.demo import flows, proof
from onceflow.demo.expectation import OWN_STATEMENTS, foresee
from onceflow.demo.processes import lay_out_dags
from onceflow.demo.show import SCHEMA
from tests.database import TestDatabase
from tests.examples.page_run import ROOT
from tests.processes import Workers


def demo_environment(folder: Path) -> dict[str, str]:
    """With TMPDIR there, what the demo leaves behind shows."""
    return {**os.environ, "TMPDIR": str(folder)}


def test_the_demo_kills_a_worker_and_proves_its_claims(server_folder: Path) -> None:
    """`python -m onceflow.demo` ends with 0 in under a minute, names the killed process, and leaves nothing behind."""
    started = time.monotonic()
    command = [sys.executable, "-m", "onceflow.demo"]
    done = subprocess.run(command, cwd=ROOT, env=demo_environment(server_folder), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - started < 60
    assert "kill -9 " in done.stdout and "Every claim holds." in done.stdout and "FAILS" not in done.stdout
    assert not list(server_folder.glob("onceflow-demo-*"))


def test_make_demo_runs_it() -> None:
    """The recipe of `make demo` is that very command."""
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True)
    assert "-m onceflow.demo" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(server_folder: Path, number: signal.Signals) -> None:
    """Ctrl-C or `kill` in the middle: workers and server are stopped, the folder is removed, the exit code is not 0."""
    command = [sys.executable, "-u", "-m", "onceflow.demo"]
    with subprocess.Popen(command, cwd=ROOT, env=demo_environment(server_folder), stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "kill -9" in line:
                break
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(timeout=30) == 128 + number
    assert not list(server_folder.glob("onceflow-demo-*"))


@pytest.fixture
def books(db: TestDatabase, workers: Workers, tmp_path: Path) -> TestDatabase:
    """A database with one statement file imported."""
    with psycopg.connect(db.app_dsn) as app:
        app.execute(SCHEMA.read_bytes())
    workers.start(lay_out_dags(tmp_path))
    with Client(db.app_dsn) as client:
        client.using(run_id=WANT.run_id).start(flows.import_statement, str(WANT.path)).result(timeout_s=30)
    return db


WANT = foresee(OWN_STATEMENTS / "nordlicht_coffee.sta")
FRAUDS = {
    "a double entry": (
        "insert into posting (file, statement, entry, account, currency, amount, amount_eur, booked_on, text, reference) "
        "select file, statement, entry, account, currency, amount, amount_eur, booked_on, text, reference from posting limit 1"
    ),
    "a lost entry": "delete from posting where id = (select max(id) from posting)",
    "a changed amount": "update posting set amount = amount + 1 where id = (select min(id) from posting)",
    "a changed total": "update account set posted = posted + 1 where number <> 'counterparties'",
    "a statement that does not reconcile": "update statement set closing = closing + 1",
    "a ledger entry without its rows": "delete from statement",
}


@pytest.mark.parametrize("fraud", FRAUDS)
def test_the_proof_fails_where_the_books_are_wrong(books: TestDatabase, fraud: str) -> None:
    """What holds on honest books does not hold once a row is doubled, lost or changed."""

    def failing() -> list[str]:
        with books.connect("auditor") as auditor:
            checks = [*proof.check_books(auditor, [WANT]), *proof.check_ledger(auditor)]
        return [check.claim for check in checks if not check.holds]

    assert failing() == []
    books.sql(FRAUDS[fraud])
    assert failing()
