"""One bank statement file -> its entries, in euro -> double entries -> reconciled with the bank's own closing balance.

Each entry is posted by a step of its own. A worker may be killed anywhere: what was posted stays posted with its
record, and the next worker goes on at the entry after it.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import asyncpg

from onceflow import step, workflow
from onceflow.demo.rates import to_euro
from onceflow.demo.statements import Entry, Statement, read_statement

COUNTERPARTIES = "counterparties"

ADD_TO_ACCOUNT = """
insert into account (number, currency, posted) values ($1, $2, $3)
on conflict (number, currency) do update set posted = account.posted + excluded.posted"""

POST_LEG = """
insert into posting
    (file, statement, entry, account, currency, amount, amount_eur, booked_on, text, reference)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"""

RECONCILE = """
insert into statement
    (file, statement, account, reference, currency, opening, computed, closing, closed_on, entries, reconciled)
select $1::text, $2::integer, $3::text, $4::text, $5::text, $6::numeric, $6::numeric + total, $7::numeric, $8::date,
    posted, $6::numeric + total = $7::numeric and posted = $9::integer
from (select coalesce(sum(amount), 0) as total, count(*)::integer as posted from posting
      where file = $1::text and statement = $2::integer and account = $3::text and currency = $5::text) as legs
returning reconciled"""


@step
def parse(path: str) -> list[Statement]:
    """The statements of the file, or BrokenStatement: nothing of a broken file is posted."""
    return read_statement(path)


@step
def convert(statement: Statement) -> list[Decimal]:
    """The euro amount of each entry, in order, by the ECB's rate of its day; NoRate where the ECB has none."""
    return [to_euro(entry.amount, entry.currency, entry.booked_on) for entry in statement.entries]


@step
async def post_entry(conn: asyncpg.Connection, head: Statement, number: int, entry: Entry, amount_eur: Decimal) -> None:
    """Post both legs of one entry: on the bank account, and the opposite on the counterparties of its currency."""
    legs = ((head.account, entry.amount, amount_eur), (COUNTERPARTIES, -entry.amount, -amount_eur))
    for account, amount, euro in legs:
        await conn.execute(
            POST_LEG, head.file, number, entry.seq, account, entry.currency, amount, euro,
            entry.booked_on, entry.text, entry.reference,
        )  # fmt: skip
    # The totals last, and the counterparties' very last: that row is everybody's, so it is locked for the shortest time.
    for account, amount, _ in legs:
        await conn.execute(ADD_TO_ACCOUNT, account, entry.currency, amount)


@step
async def reconcile(conn: asyncpg.Connection, head: Statement, number: int, entries: int) -> bool:
    """Write whether opening + postings = closing, added up by the database from what is posted, not from the file."""
    reconciled: bool = await conn.fetchval(
        RECONCILE, head.file, number, head.account, head.reference, head.currency, head.opening, head.closing,
        head.closing_date, entries,
    )  # fmt: skip
    return reconciled


@workflow
async def import_statement(path: str) -> dict[str, int]:
    """Import one file; returns how many statements and entries were posted, and how many statements reconcile."""
    statements = await parse.aio(path)
    # All rates before the first posting: a currency without a rate refuses the file as a whole.
    euros = [await convert.aio(statement) for statement in statements]
    done = {"statements": len(statements), "entries": 0, "reconciled": 0}
    for number, (statement, amounts) in enumerate(zip(statements, euros, strict=True), start=1):
        head = replace(statement, entries=())
        for entry, amount_eur in zip(statement.entries, amounts, strict=True):
            await post_entry(head, number, entry, amount_eur)
            done["entries"] += 1
        done["reconciled"] += await reconcile(head, number, len(statement.entries))
    return done
