"""The ECB's daily euro rates, fetched and stored, then averaged by month inside the database.

In both:      eval "$(python examples/server.py)"
Terminal 1:   onceflow worker --dags examples/fx_import.py
Terminal 2:   python examples/fx_import.py [URL of eurofxref-hist.zip]
"""

import csv
import io
import os
import sys
import zipfile
from datetime import date, timedelta
from decimal import Decimal
from urllib.request import urlopen

import psycopg

from onceflow import Client, commit_with, sql_step, step, workflow

ECB = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip"
SCHEMA = """
create table if not exists fx_rate (day date, currency text, rate numeric not null, primary key (day, currency));
create table if not exists fx_month (month date, currency text, average numeric not null, days int not null, primary key (month, currency));"""


@step(retries=3, retry_delay=timedelta(seconds=5))
def load_rates(url: str, currency: str, since: date) -> int:
    """External: no transaction is open while it downloads and parses; then its rows and its record commit together."""
    rows = read_rates(url, currency, since)
    with commit_with(psycopg.Connection) as conn:
        conn.cursor().executemany("insert into fx_rate values (%s, %s, %s) on conflict (day, currency) do update set rate = excluded.rate", rows)
    return len(rows)


average_by_month = sql_step(
    """
    insert into fx_month
    select date_trunc('month', day)::date, currency, avg(rate), count(*) from fx_rate where currency = $1 group by 1, 2
    on conflict (month, currency) do update set average = excluded.average, days = excluded.days
    returning month""",
    name="average_by_month",
)


@workflow
def import_rates(url: str, currency: str, since: date) -> str:
    days = load_rates(url, currency, since)
    months = average_by_month(currency)
    return f"{currency}: {days} days, {len(months)} months"


def read_rates(url: str, currency: str, since: date) -> list[tuple[date, str, Decimal]]:
    """The days on which the ECB quotes the currency; N/A means no rate that day."""
    with urlopen(url, timeout=60) as answer, zipfile.ZipFile(io.BytesIO(answer.read())) as archive:
        lines = archive.read(archive.namelist()[0]).decode().splitlines()
    quoted = ((date.fromisoformat(row["Date"]), row[currency]) for row in csv.DictReader(lines))
    return [(day, currency, Decimal(rate)) for day, rate in quoted if day >= since and rate != "N/A"]


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else ECB
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        conn.execute(SCHEMA)
    with Client(os.environ["APP_DSN"]) as client:
        for currency in ("USD", "CHF", "GBP"):
            run = client.start(import_rates, url, currency, date(2020, 1, 1))
            print(run.result(timeout_s=120))


if __name__ == "__main__":
    main()
