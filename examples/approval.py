"""A payment above a limit waits for a human, for up to three days, without holding a worker; a crash does not lose the wait.

In both:      eval "$(python examples/server.py)"
Terminal 1:   onceflow worker --dags examples/approval.py
Terminal 2:   python examples/approval.py pay 4711 2500       starts the run
              python examples/approval.py approve 4711 ada    any time later, from any process
"""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import psycopg

from onceflow import Client, recv, set_event, step, workflow

LIMIT = 1000
SCHEMA = "create table if not exists payment (invoice int primary key, amount int not null, approved_by text)"


@dataclass
class Decision:
    """What the human answers."""

    by: str
    approved: bool


@step
async def pay(conn: asyncpg.Connection, invoice: int, amount: int, approved_by: str | None) -> None:
    await conn.execute("insert into payment (invoice, amount, approved_by) values ($1, $2, $3)", invoice, amount, approved_by)


@workflow
async def payment(invoice: int, amount: int) -> str:
    if amount <= LIMIT:
        await pay(invoice, amount, None)
        return "paid"
    await set_event("status", "waits for approval")
    decision: Decision | None = await recv("decision", timeout=timedelta(days=3))
    if decision is None or not decision.approved:
        return "not approved"
    await pay(invoice, amount, decision.by)
    return f"paid, approved by {decision.by}"


def main(command: str, invoice: int, argument: str) -> None:
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        conn.execute(SCHEMA)
    with Client(os.environ["APP_DSN"]) as client:
        if command == "pay":
            run = client.start(payment, invoice, int(argument), run_id=f"invoice-{invoice}")  # the id makes it once per invoice
            print(f"{run.run_id}: {'started' if run.created else 'is there already'}")
        else:
            run = client.find(f"invoice-{invoice}", "payment")
            run.send(Decision(by=argument, approved=command == "approve"), topic="decision", key=f"{command}-{argument}")
            print(run.result(timeout_s=60))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
