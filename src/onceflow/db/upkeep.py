"""Upkeep of a database: whole months of ended runs to the archive, leftovers away. The rules are SQL's."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from onceflow.db import calls
from onceflow.db.queries import open_reader
from onceflow.db.sync_runner import run_call
from onceflow.errors import InvalidTransition, NoDatabase

CLEANED = ("message", "message_key", "run_event", "pushed", "callback", "dataset_event", "approval", "triggerer", "worker")
_TRIES = 20


@dataclass(frozen=True, slots=True)
class ArchivedMonth:
    """One month (YYYYMM) that is old enough: moved with its runs, or kept for the reason given."""

    month: str
    moved: bool
    runs: int
    kept_because: str | None


def archive_months(dsn: str, days: int) -> list[ArchivedMonth]:
    """Move every month that ended `days` days ago and that nothing living needs to schema onceflow_archive; each in one transaction.

    Workers may go on meanwhile: a month waits for them for a third of a second at most, then lets them pass and tries again.
    """
    with open_reader(dsn) as conn:
        return [_archive(conn, month["month"], month["in_use"], days) for month in run_call(conn, calls.list_old_months(days))]


def _archive(conn: psycopg.Connection[Any], month: str, in_use: str | None, days: int) -> ArchivedMonth:
    for attempt in range(_TRIES if in_use is None else 0):
        try:
            return ArchivedMonth(month, True, run_call(conn, calls.archive_month(month, days))["runs"], None)
        except InvalidTransition as error:
            in_use = str(error)
            break
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if attempt == _TRIES - 1:
                raise NoDatabase(f"month {month} could not be archived: the tables were in use at each of {_TRIES} attempts. Try again later.") from error
            time.sleep(0.2 + random.random())
    return ArchivedMonth(month, False, 0, in_use)


def clean_leftovers(dsn: str, days: int, table: str | None = None) -> dict[str, int]:
    """Delete leftovers of runs and workers that ended more than `days` days ago, in small transactions; how many, by table."""
    deleted = dict.fromkeys([table] if table else CLEANED, 0)
    with open_reader(dsn) as conn:
        for name in deleted:
            while count := run_call(conn, calls.clean_leftovers(name, days)):
                deleted[name] += count
    return deleted


_UNKNOWN = """
    select ref from unnest(%s::text[]) ref join onceflow.run r on r.id = split_part(ref, '/', 1)::bigint
    where not exists (select from onceflow.step_ledger e where e.dag_run = r.id and position(ref in e.output::text) > 0)
      and not exists (select from onceflow.pushed p where p.run = r.id and position(ref in p.value::text) > 0)"""


def find_orphans(dsn: str, references: list[str]) -> list[str]:
    """Those of the stored values that nothing in the database refers to: a try that was lost wrote them. Values of archived runs are kept."""
    ours = [reference for reference in references if reference.split("/")[0].isdecimal()]
    with open_reader(dsn) as conn:
        return [row[0] for row in conn.execute(_UNKNOWN.encode(), [ours]).fetchall()]
