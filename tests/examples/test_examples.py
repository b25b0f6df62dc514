"""Every program in examples/ runs, with a worker that serves them all, and does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest
from currency_converter import CURRENCY_FILE

from onceflow.db.embedded import find_server
from tests.database import TestDatabase
from tests.examples.page_run import ROOT
from tests.examples.shell import Shell
from tests.examples.test_pages import page_environment
from tests.processes import Workers

EXAMPLES = ROOT / "examples"


def run_example(db: TestDatabase, name: str, *args: str) -> str:
    """Run an example to its end, as a user would; what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *args]
    done = subprocess.run(command, env=page_environment(db), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class MailService:
    """A mail service that forgets nothing: each request's key and body. It refuses the first request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        service = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append((self.headers["Idempotency-Key"], body))
                self.send_response(503 if len(service.requests) == 1 else 204)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}/send"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def mail_service() -> Iterator[MailService]:
    """A running mail service on the loopback."""
    service = MailService()
    yield service
    service.server.shutdown()
    service.server.server_close()


def test_every_example_has_its_test() -> None:
    """A new file in examples/ gets a test, here or beside the other dags."""
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*examples.py"))
    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.stem}"' in tested or f"{example.name} " in tested, example


def test_server_names_its_logins_to_the_shell(server_folder: Path) -> None:
    """server.py: after eval of what it prints, each login is there and is what it says; `stop` stops the server."""
    shell = Shell(server_folder, {"PATH": os.environ["PATH"]})
    try:
        assert shell.run(f'eval "$(python {EXAMPLES}/server.py )"')[1] == 0
        for name, user in {"APP": "app", "ONCEFLOW": "worker", "ONCEFLOW_STEP": "onceflow_step", "AUDITOR": "auditor"}.items():
            with psycopg.connect(shell.value(f"{name}_DSN")) as conn:
                assert conn.execute("select current_user").fetchone() == (user,)
        assert shell.run(f"python {EXAMPLES}/server.py stop")[1] == 0
        assert find_server(server_folder / ".onceflow") is None
    finally:
        shell.close()


def test_money_moves_once_though_the_worker_dies(db: TestDatabase, workers: Workers) -> None:
    """transfer: two workers, the one that takes the run dies; the balances and the ledger are as they should be."""
    for _ in range(2):
        workers.start(EXAMPLES / "transfer.py", env={"ONCEFLOW_LEASE_S": "2"})
    printed = run_example(db, "transfer")
    assert printed.startswith("moved 10\n")
    assert "[(1, 90), (2, 110)]" in printed
    assert sum(worker.running for worker in workers.started) == 1


def test_a_mail_goes_out_with_its_order_and_only_then(db: TestDatabase, workers: Workers, mail_service: MailService) -> None:
    """outbox_mail: the order that commits has its mail delivered, repeated under one key; the refused order has none."""
    workers.start(EXAMPLES, env={"MAIL_URL": mail_service.url})
    printed = run_example(db, "outbox_mail")
    assert "order 1" in printed and "refused: CheckViolation" in printed
    db.wait_for("select count(*) = 2 from onceflow.dag_run where dag_id = 'order' and state in ('success', 'failed')")
    assert db.sql("select customer from shop_order") == [("ada@example.com",)]
    keys = {key for key, _ in mail_service.requests}
    assert len(keys) == 1 and len(mail_service.requests) == 2, mail_service.requests
    assert {body["to"] for _, body in mail_service.requests} == {"ada@example.com"}


def test_two_mails_of_one_run_have_two_keys(db: TestDatabase, workers: Workers, mail_service: MailService, tmp_path: Path) -> None:
    """idempotency_key tells tasks of the same step apart: a mail service that drops repeated keys drops none of them."""
    (tmp_path / "two.py").write_text(
        "from outbox_mail import send_mail\nfrom onceflow import workflow\n"
        "@workflow\ndef two_mails() -> None:\n    handles = [send_mail.start('a@example.com', text) for text in ('one', 'two')]\n"
        "    for handle in handles:\n        handle.result()\n"
    )
    (tmp_path / "outbox_mail.py").write_text((EXAMPLES / "outbox_mail.py").read_text())
    workers.start(tmp_path, env={"MAIL_URL": mail_service.url})
    from onceflow import Client

    with Client(db.app_dsn) as client:
        client.trigger("two_mails").result(timeout_s=30)
    sent = {(key, body["text"]) for key, body in mail_service.requests}
    assert len(sent) == 2 and len({key for key, _ in sent}) == 2, sent


def test_a_payment_waits_for_its_approval(db: TestDatabase, workers: Workers) -> None:
    """approval: above the limit nothing is paid before a human says so; a second start is the same run."""
    workers.start(EXAMPLES, env={"ONCEFLOW_SUSPEND_AFTER_S": "0"})
    assert run_example(db, "approval", "pay", "1", "500") == "invoice-1: started\n"
    assert run_example(db, "approval", "pay", "4711", "2500") == "invoice-4711: started\n"
    assert run_example(db, "approval", "pay", "4711", "2500") == "invoice-4711: is there already\n"
    db.wait_for("select count(*) from onceflow.task_instance where run_id = 'invoice-4711' and state = 'deferred'")
    assert db.sql("select invoice, approved_by from payment") == [(1, None)]
    assert run_example(db, "approval", "approve", "4711", "ada") == "paid, approved by ada\n"
    assert db.sql("select invoice, approved_by from payment order by 1") == [(1, None), (4711, "ada")]


def test_rates_are_imported_and_averaged(db: TestDatabase, workers: Workers) -> None:
    """fx_import: each day's rate is stored once, also when imported again; the averages are those of the stored rates."""
    workers.start(EXAMPLES)
    url = Path(CURRENCY_FILE).as_uri()
    first, second = run_example(db, "fx_import", url), run_example(db, "fx_import", url)
    assert first == second and first.startswith("USD: ")
    days = db.sql("select count(*), count(distinct currency) from fx_rate")
    assert days == db.sql("select sum(days)::bigint, count(distinct currency) from fx_month")
    assert days[0][1] == 3 and days[0][0] > 3 * 1500
