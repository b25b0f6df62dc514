"""The payments of a day: small ones go out at once, the others when a person has approved them. Waiting holds no worker, and survives any crash.

In both:      eval "$(python examples/server.py)"
Terminal 1:   onceflow worker --dags examples/payments_approval.py
Terminal 2:   python examples/payments_approval.py order 2026-03-02      four invoices are due, and the day's run is started
              python examples/payments_approval.py answer 2026-03-02 approve ada
                                                  or: onceflow approvals list, onceflow approvals answer (with --dsn "$APP_DSN")
"""

import os
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal

import psycopg

from onceflow import ApprovalOperator, Client, dag, task

LIMIT = Decimal(1000)
INVOICES = {4711: Decimal("250.00"), 4712: Decimal("990.50"), 4713: Decimal("18400.00"), 4714: Decimal("2500.00")}
SCHEMA = """
create table if not exists invoice (id int primary key, due date not null, amount numeric not null);
create table if not exists payment (id bigint generated always as identity primary key, invoice int not null, amount numeric not null, approved_by text);
create table if not exists balance (account text primary key, amount numeric not null check (amount >= 0));
insert into balance values ('bank', 100000) on conflict do nothing;"""


@task
def list_small(conn: psycopg.Connection, ds: str) -> list[int]:
    return [invoice for (invoice,) in conn.execute("select id from invoice where due = %s and amount <= %s order by id", [ds, LIMIT])]


@task
def list_large(conn: psycopg.Connection, ds: str) -> list[int]:
    return [invoice for (invoice,) in conn.execute("select id from invoice where due = %s and amount > %s order by id", [ds, LIMIT])]


@task.short_circuit
def is_any(invoices: list[int]) -> bool:
    """Nobody is asked about nothing."""
    return bool(invoices)


@task(map_index_template="invoice {{ invoice }}")
def pay(conn: psycopg.Connection, invoice: int, approval: dict | None = None) -> Decimal:
    """Transactional: the payment, the balance and this instance's success are one commit. A worker that dies has paid, or it has not."""
    actor = approval["actor"] if approval else None
    (amount,) = conn.execute(
        "insert into payment (invoice, amount, approved_by) select id, amount, %s from invoice where id = %s returning amount", [actor, invoice]
    ).fetchone()
    conn.execute("update balance set amount = amount - %s where account = 'bank'", [amount])
    return amount


@task(trigger_rule="all_done")
def report(small: list[Decimal], large: list[Decimal]) -> str:
    """Runs in any case: what was not approved is not in it."""
    return f"{len(small)} + {len(large)} payments of {sum(small) + sum(large)}"


@dag(schedule=None, tags=["payments"])
def payments():
    large = list_large()
    approval = ApprovalOperator("approval", subject="Large payments of {{ ds }}", timeout=timedelta(days=3), refuse_skips=True)
    is_any(large) >> approval
    report(
        pay.expand(invoice=list_small()),
        pay.override(task_id="pay_large").partial(approval=approval.output).expand(invoice=large),
    )


def main(command: str, day: str, answer: str = "", actor: str = "") -> None:
    dsn = os.environ["APP_DSN"]
    with psycopg.connect(dsn) as conn, Client(dsn) as client:
        if command == "order":
            conn.execute(SCHEMA)
            conn.cursor().executemany("insert into invoice values (%s, %s, %s)", [(id, date.fromisoformat(day), amount) for id, amount in INVOICES.items()])
            run = client.trigger(payments, logical_date=datetime.fromisoformat(day), run_id=day, conn=conn)
            print(f"{run.dag_id}/{run.run_id} was started, with {len(INVOICES)} invoices")
        else:
            run = client.find(day, "payments")
            conn.execute("select onceflow.answer_approval(%s, 'approval', %s, actor => %s)", [run.run, answer, actor])
            conn.commit()
            print(run.result(timeout_s=60))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
