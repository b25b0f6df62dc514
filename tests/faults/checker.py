"""What must be true of the database after any fault, read from the database alone."""

from __future__ import annotations

from tests.database import TestDatabase

SUCCESSES = """
    with entry as (
        select *, mod(xid::text::numeric, 4294967296) as low_xid from onceflow.step_ledger
        where to_state = 'success' and (kind in ('transactional', 'sql') or step_name = any(%s))
    ), row as (select id, step, key, worker, xmin::text::numeric as low_xid from effect)
"""
COUNTS = "(select low_xid, count(*) as n from {} group by 1)"
LATE_STEPS = [
    "pay_late",
    "pay_late_booked",
    "pay_late_again",
    "tell_late",
    "lose_connection_late",
    "lose_connection_late_async",
]  # external steps whose effect commits with their record
LEFTOVERS = ("ready", "lease", "timer", "wait", "join_count", "queued_run", "active_run", "callback")


def expect_none(rows: list[tuple[object, ...]], what: str) -> None:
    """Fails with the first of the rows, which are what must not be."""
    shown = "\n  ".join(str(row) for row in rows[:10])
    assert not rows, f"{len(rows)} {what}:\n  {shown}"


def check_exactly_once(db: TestDatabase) -> int:
    """Each row of `effect` was written by exactly one ledger success, and each success wrote exactly one row.

    In a group they share a transaction: then it holds as many rows as successes. Answers how many rows there are.
    """
    unequal = f"""{SUCCESSES} select low_xid, r.n, e.n from {COUNTS.format("row")} r full join {COUNTS.format("entry")} e using (low_xid)
        where r.n is distinct from e.n"""
    expect_none(db.sql(unequal, LATE_STEPS), "transactions (xid, rows, successes) that hold not as many effects as successes")
    foreign = f"{SUCCESSES} select key, worker from row where worker is not null and not exists (select from entry e where e.low_xid = row.low_xid and e.worker = row.worker)"
    expect_none(db.sql(foreign, LATE_STEPS), "effects that the ledger ascribes to another worker than the one that wrote them")
    doubled = "select step, key, count(*) from effect group by 1, 2 having count(*) > 1"
    expect_none(db.sql(doubled), "effects that happened twice")
    check_entries(db)
    return int(db.sql("select count(*) from effect")[0][0])


def check_entries(db: TestDatabase) -> None:
    """No entry is missing: each ended task counts as many as the ledger holds, and each has the hash of its fields."""
    miscounted = """
        select t.run, t.id, t.entries, count(l.id) from onceflow.ti t left join onceflow.step_ledger l on l.dag_run = t.run and l.ti = t.id
        where not exists (select from onceflow.lease where lease.ti = t.id) group by t.run, t.id, t.entries having t.entries <> count(l.id)"""
    expect_none(db.sql(miscounted), "tasks whose entries do not number what they counted")
    expect_none(db.sql("select id from onceflow.step_ledger l where hash <> onceflow.entry_hash(l)"), "entries with another hash than that of their fields")
    expect_none(db.sql("select * from onceflow.verify_ledger()"), "what verify_ledger() found")


def check_all_succeeded(db: TestDatabase) -> None:
    """No run ended otherwise; of each that did, what its tasks failed of."""
    failed = """
        select r.dag_id, r.run_id, r.state, t.task_id, t.map_index, t.try_number, t.rescues, t.error from onceflow.run r
        left join onceflow.ti t on t.run = r.id and t.state <> 'success' where r.state <> 'success'"""
    expect_none(db.sql(failed), "runs that did not succeed")


def check_nothing_left(db: TestDatabase) -> None:
    """All has ended: no run is open, and nothing is ready, leased, timed, waited for, counted, queued or parked."""
    for table in LEFTOVERS:
        expect_none(db.sql(f"select to_jsonb(t) from onceflow.{table} t"), f"left in {table}")
    expect_none(db.sql("select id, run_id from onceflow.run where state is null"), "runs that never ended")
    expect_none(db.sql("select run, id from onceflow.ti where state is null or state = 'deferred'"), "tasks that never ended")


def check_rescues(db: TestDatabase) -> None:
    """Whoever was taken for dead, and has not been heard of since, had been silent for its whole lease."""
    early = """
        select l.id, l.worker, l.at - w.heartbeat_at from onceflow.step_ledger l join onceflow.worker w on w.id = l.worker
        where l.to_state = 'rescued' and w.heartbeat_at < l.at and l.at - w.heartbeat_at < make_interval(secs => w.lease_s)"""
    expect_none(db.sql(early), "tasks (entry, worker, silence) that were rescued before their lease was over")


SWEEP = """
    with moves as (
        select x.at, x.n from onceflow.step_ledger l join onceflow.ti t on t.run = l.dag_run and t.id = l.ti join onceflow.lane k on k.id = t.lane,
            lateral (values (l.started_at, k.pool_slots), (l.at, -k.pool_slots)) x(at, n)
        where k.pool = %s and l.step_key = l.task_id and l.started_at is not null and l.to_state <> 'started'
    ), running as (select at, sum(n) over (order by at, n) as n from moves)"""


def most_at_once(db: TestDatabase, pool: str) -> int:
    """The most slots of a pool that tries held at one moment: the ledger says when each began and ended."""
    return int(db.sql(f"{SWEEP} select coalesce(max(n), 0) from running", pool)[0][0])


def check_limit(db: TestDatabase, pool: str, slots: int) -> None:
    """At no instant tries of a pool's tasks held more slots than it has."""
    most = f"{SWEEP} select at, n from running where n > %s order by n desc limit 5"
    expect_none(db.sql(most, pool, slots), f"moments at which more than {slots} slots of pool {pool} were held")


def check_money(db: TestDatabase) -> None:
    """The sum is what it was, and each transfer is booked exactly once on both sides."""
    assert db.sql("select sum(value) from counter") == [(0,)], "money was made or lost"
    booked = """
        select r.conf ->> 0, count(e.id), sum(e.note::int) from onceflow.run r left join effect e on e.step in ('debit', 'credit') and e.key = r.conf ->> 0
        where r.dag_id = 'transfer' group by 1 having count(e.id) <> 2 or sum(e.note::int) <> 0 or count(distinct e.step) <> 2"""
    expect_none(db.sql(booked), "transfers that are not booked once on both sides")


def check_joins(db: TestDatabase, dag_id: str, step: str, note: str) -> None:
    """Each run of the dag joined exactly once, after all that it joins, whose results it had."""
    wrong = """
        select r.run_id, count(e.id), min(e.note) from onceflow.run r left join effect e on e.step = %s and e.key = r.run_id
        where r.dag_id = %s group by 1 having count(e.id) <> 1 or min(e.note) <> %s"""
    expect_none(db.sql(wrong, step, dag_id, note), "runs whose join did not fire exactly once with everything")


def check_workers(db: TestDatabase, names: list[str]) -> None:
    """What these steps and bodies answered, their process' id, is that of the worker that the ledger names."""
    wrong = """
        select l.run_id, l.step_key, l.output, w.pid from onceflow.step_ledger l join onceflow.worker w on w.id = l.worker
        where l.step_name = any(%s) and l.to_state = 'success' and (l.output #>> '{}')::int <> w.pid"""
    expect_none(db.sql(wrong, names), "outcomes (with the process that it was, and the one of the worker named) that the ledger ascribes to another worker")


def check_messages(db: TestDatabase) -> None:
    """What was sent was received, once."""
    expect_none(db.sql("select * from onceflow.message"), "messages that nobody received")
    twice = "select output, count(*) from onceflow.step_ledger where step_name = 'recv' and to_state = 'success' group by 1 having count(*) > 1"
    expect_none(db.sql(twice), "messages that were received twice")


def count_entries(db: TestDatabase, to_state: str) -> int:
    """How many ledger entries lead to that state."""
    return int(db.sql("select count(*) from onceflow.step_ledger where to_state = %s", to_state)[0][0])
