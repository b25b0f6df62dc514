"""The proof: each claim is asked of the database, by an auditor's login that can only read, and holds or does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from onceflow.demo.expectation import Expectation

Connection = psycopg.Connection[TupleRow]

RUNS = "select run_id, state from onceflow.dag_run where dag_id = 'import_statement'"
FAILURES = """
select distinct on (run_id) run_id, error ->> '$error', error ->> 'message' from onceflow.step_ledger
where dag_id = 'import_statement' and to_state = 'failed' order by run_id, id"""

# Rows and ledger entries find each other by the transaction that wrote them: the row's xmin, the entry's xid.
POSTED = "step_name = 'post_entry' and to_state = 'success'"
RECONCILED = "step_name = 'reconcile' and to_state = 'success'"
ROWS_WITHOUT_ENTRY = f"""
select (select count(*) from posting p
        where not exists (select from onceflow.step_ledger l where l.xid::xid = p.xmin and {POSTED}))
     + (select count(*) from statement s
        where not exists (select from onceflow.step_ledger l where l.xid::xid = s.xmin and {RECONCILED}))"""
ENTRIES_WITHOUT_ROW = f"""
select (select count(*) from onceflow.step_ledger l
        where {POSTED} and (select count(*) from posting p where p.xmin = l.xid::xid) <> 2)
     + (select count(*) from onceflow.step_ledger l
        where {RECONCILED} and (select count(*) from statement s where s.xmin = l.xid::xid) <> 1)"""
ENTRIES = f"select count(*) from onceflow.step_ledger where ({POSTED}) or ({RECONCILED})"

# Both legs of an entry once each, no more: a double post would count 4.
NOT_POSTED_ONCE = """
select count(*) from (select from posting group by file, statement, entry
                      having count(*) <> 2 or sum(amount) <> 0 or sum(amount_eur) <> 0) as wrong"""
WRONG_ACCOUNTS = """
select count(*) from account a
where posted <> (select coalesce(sum(amount), 0) from posting p
                 where p.account = a.number and p.currency = a.currency)"""
BY_FILE = """
select file, count(distinct (statement, entry)), count(*),
       coalesce(sum(amount_eur) filter (where account <> 'counterparties'), 0)
from posting group by file"""
# Added up again, now: what the step saw when it reconciled is compared too.
STATEMENTS = """
select file, account, currency, opening, entries, opening + total, closing,
       reconciled and computed = closing and opening + total = closing and entries = posted
from statement s cross join lateral (
    select coalesce(sum(p.amount), 0) as total, count(*) as posted from posting p
    where (p.file, p.statement, p.account, p.currency) = (s.file, s.statement, s.account, s.currency)) as now
order by file, statement"""

LOST_TRIES = """
select lost.run_id, lost.worker, lost.at, won.worker, w.pid, won.try_number, won.to_state
from onceflow.step_ledger lost
join onceflow.step_ledger won
    on won.dag_run = lost.dag_run and won.ti = lost.ti and won.step_key = lost.step_key and won.final
join onceflow.worker w on w.id = won.worker
where lost.dag_id = 'import_statement' and lost.to_state = 'rescued' order by lost.run_id, lost.try_number"""
# A transaction of the killed worker must have been rolled back, and nothing of it may stand in the books or the ledger.
ABORTED = """
select count(*) from unnest(%(xids)s::text[]) x
where pg_xact_status(x::xid8) = 'aborted'
    and not exists (select from posting p where p.xmin = x::xid)
    and not exists (select from onceflow.step_ledger l where l.xid = x::xid8)"""
TAMPERED = "select count(*) from onceflow.verify_ledger()"
WHO_WROTE = """
select p.id, p.file, w.* from posting p, onceflow.who_wrote(p.tableoid, p.ctid) w
where p.file = %s order by p.id desc limit 1"""
WHO_WROTE_TEXT = "select w.* from posting p, onceflow.who_wrote(p.tableoid, p.ctid) w where p.id = {id};"


@dataclass(frozen=True)
class Kill:
    """The worker that was killed (its id and process), when, inside which runs, and its transactions that were open."""

    worker: int
    pid: int
    at: datetime
    runs: frozenset[str]
    xids: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """One claim, whether it holds, and what was found."""

    claim: str
    holds: bool
    found: str


@dataclass(frozen=True)
class RunEnd:
    """How a run ended; `failure` is the error's name and message, empty for a success."""

    run_id: str
    state: str
    failure: str


@dataclass(frozen=True)
class LostTry:
    """A try that died with its worker, and the try that finished the task."""

    run_id: str
    worker: int
    rescued_at: datetime
    finished_by: int
    finished_by_pid: int
    finished_try: int
    finished_as: str


def read_ends(conn: Connection) -> dict[str, RunEnd]:
    failures = {run_id: f"{str(name).rpartition(':')[2]}: {text}" for run_id, name, text in _rows(conn, FAILURES)}
    return {run_id: RunEnd(run_id, state, failures.get(run_id, "no named failure") if state == "failed" else "") for run_id, state in _rows(conn, RUNS)}


def read_lost_tries(conn: Connection) -> list[LostTry]:
    return [LostTry(*row) for row in _rows(conn, LOST_TRIES)]


def read_statements(conn: Connection) -> list[tuple[Any, ...]]:
    return _rows(conn, STATEMENTS)


def read_writer(conn: Connection, expected: Sequence[Expectation], kill: Kill) -> dict[str, object]:
    """Who wrote the last posting of a file that was being posted when the worker died, as `who_wrote` answers it."""
    want = next((e for e in expected if e.run_id in kill.runs), None)
    cursor = conn.execute(WHO_WROTE, (want.path.name if want else "",))
    names = [column.name for column in cursor.description or ()]
    row = cursor.fetchone()
    return dict(zip(names, row, strict=True)) if row else {}


def check_all(conn: Connection, expected: Sequence[Expectation], kill: Kill) -> list[Check]:
    """Every claim of the demo."""
    return [
        check_ends(read_ends(conn), expected),
        *check_books(conn, expected),
        *check_ledger(conn),
        check_rollback(conn, kill),
        check_rescue(read_lost_tries(conn), kill),
        check_writer(read_writer(conn, expected, kill), kill),
    ]


def check_ends(ends: dict[str, RunEnd], expected: Sequence[Expectation]) -> Check:
    wrong = [want.run_id for want in expected if not _ended_as_expected(ends.get(want.run_id), want)]
    failed = sum(1 for want in expected if want.failure)
    found = ", ".join(wrong) or f"{len(expected) - failed} succeeded, {failed} refused by name"
    return Check("every run ended as its file deserves", not wrong and len(ends) == len(expected), found)


def check_books(conn: Connection, expected: Sequence[Expectation]) -> list[Check]:
    """What stands in the books is what the files say: every entry once, every statement equal to the bank's."""
    want = {e.path.name: (e.entries, 2 * e.entries, e.eur) for e in expected if e.entries}
    have = {file: (entries, legs, eur) for file, entries, legs, eur in _rows(conn, BY_FILE)}
    wrong = sorted(file for file in want.keys() | have.keys() if want.get(file) != have.get(file))
    entries, total = sum(row[0] for row in have.values()), sum((row[2] for row in have.values()), Decimal(0))
    not_once, accounts = _count(conn, NOT_POSTED_ONCE), _count(conn, WRONG_ACCOUNTS)
    statements = _rows(conn, STATEMENTS)
    reconciled = sum(1 for row in statements if row[-1])
    claimed = sum(e.statements for e in expected)
    return [
        Check("every entry is posted, refused files left nothing", not wrong, ", ".join(wrong) or f"{entries} entries"),
        Check("each entry is posted once: two legs, together 0", not_once == 0, f"{not_once} otherwise"),
        Check("each account holds the sum of its postings", accounts == 0, f"{accounts} otherwise"),
        Check(
            "opening + postings = the bank's closing balance",
            reconciled == len(statements) == claimed,
            f"{reconciled} of {claimed} statements",
        ),
        Check("the euro total is that of the files", total == sum((e.eur for e in expected), Decimal(0)), f"{total:,} EUR"),
    ]


def check_ledger(conn: Connection) -> list[Check]:
    """Effects and ledger are one and the same: both anti-joins are empty, and nobody changed the ledger."""
    rows, entries = _count(conn, ROWS_WITHOUT_ENTRY), _count(conn, ENTRIES_WITHOUT_ROW)
    count, tampered = _count(conn, ENTRIES), _count(conn, TAMPERED)
    return [
        Check("no row without a ledger entry of its transaction", rows == 0, f"{rows} rows"),
        Check("no ledger entry without its rows", entries == 0 and count > 0, f"{entries} of {count} entries"),
        Check("verify_ledger() finds nothing", tampered == 0, f"{tampered} rows"),
    ]


def check_rollback(conn: Connection, kill: Kill) -> Check:
    """Of the transactions that were open when the worker died, nothing is left."""
    aborted = int(conn.execute(ABORTED, {"xids": list(kill.xids)}).fetchall()[0][0])
    found = f"{aborted} of {len(kill.xids)} rolled back"
    return Check("of the killed worker's open work nothing is left", aborted == len(kill.xids) > 0, found)


def check_rescue(lost: Sequence[LostTry], kill: Kill) -> Check:
    """Each run that died with the worker was finished by another one."""
    rescued = {row.run_id for row in lost if row.worker == kill.worker != row.finished_by and row.finished_as == "success"}
    found = f"{len(rescued & kill.runs)} of {len(kill.runs)} runs"
    return Check("another worker finished what it had begun", bool(kill.runs) and kill.runs <= rescued, found)


def check_writer(writer: dict[str, object], kill: Kill) -> Check:
    """The database says of a single posting which step of which run wrote it."""
    run_id, key = writer.get("run_id"), str(writer.get("step_key"))
    holds = run_id in kill.runs and key.startswith("post_entry#") and writer.get("how") == "exact"
    return Check("who_wrote() names the step that wrote a row", holds, f"{key} of {run_id}" if writer else "no answer")


def _ended_as_expected(end: RunEnd | None, want: Expectation) -> bool:
    if end is None:
        return False
    return end.state == "success" if want.failure is None else (end.state, end.failure) == ("failed", want.failure)


def _rows(conn: Connection, query: str) -> list[tuple[Any, ...]]:
    return conn.execute(query.encode()).fetchall()


def _count(conn: Connection, query: str) -> int:
    return int(_rows(conn, query)[0][0])
