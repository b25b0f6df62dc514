"""An order and its confirmation mail: the intent to send commits with the order; delivery follows, and is repeated until it works.

In all:       eval "$(python examples/server.py)"
Terminal 1:   MAIL_URL=http://localhost:8025/send onceflow worker --dags examples/outbox_mail.py
Terminal 2:   python examples/outbox_mail.py mailbox      stands in for the mail service: prints what it is sent
Terminal 3:   python examples/outbox_mail.py
"""

import json
import os
import sys
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

import psycopg

from onceflow import Client, idempotency_key, step, workflow

SCHEMA = """
create table if not exists shop_order (
    id bigint generated always as identity primary key, customer text not null, item text not null, quantity int not null check (quantity > 0))"""


@step(retries=5, retry_delay=timedelta(seconds=1))
def send_mail(to: str, text: str) -> None:
    """External: it may run twice (a crash after the request), so the mail service gets the same key on every try."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key()}
    with urlopen(Request(os.environ["MAIL_URL"], json.dumps({"to": to, "text": text}).encode(), headers), timeout=10):
        pass


@step
def place_order(conn: psycopg.Connection, customer: str, item: str, quantity: int) -> int:
    """Transactional: the order, the task that will send the mail, and the ledger entry commit together or not at all."""
    send_mail.start(customer, f"We have your order: {quantity} x {item}")
    row = conn.execute("insert into shop_order (customer, item, quantity) values (%s, %s, %s) returning id", (customer, item, quantity)).fetchone()
    assert row is not None
    return int(row[0])


@workflow
def order(customer: str, item: str, quantity: int) -> int:
    return place_order(customer, item, quantity)


class Mailbox(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        print(self.headers["Idempotency-Key"], self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()


def main() -> None:
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        conn.execute(SCHEMA)
    with Client(os.environ["APP_DSN"]) as client:
        good = client.start(order, "ada@example.com", "teapot", 2)
        print("order", good.result(timeout_s=60), "- and its mail is on its way")
        bad = client.start(order, "bob@example.com", "teapot", 0)  # the check constraint refuses it: no order, no mail
        try:
            bad.result(timeout_s=60)
        except Exception as error:
            print("refused:", type(error).__name__)


if __name__ == "__main__":
    if "mailbox" in sys.argv:
        HTTPServer(("localhost", 8025), Mailbox).serve_forever()
    main()
