"""Claims read as little as they take: the plans of the hot statements, at depth and over much history."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from onceflow.db import calls
from tests.database import TestDatabase
from tests.sql.dag_plans import Node, begin_run, end, make_plan, register
from tests.sql.engine_calls import Engine

DAGS = ("flow", "rates", "report", "ledger")
QUEUED = 20_000
FINISHED = 50_000
BUDGET_S = 0.005
READS = """
    select relname, seq_scan, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
    where schemaname = 'onceflow' and seq_scan + coalesce(idx_scan, 0) > 0"""
MAKE_RUNS = """
    with made as (
        insert into onceflow.run (id, dag_id, run_id, logical_date, state, root, created_at, end_date)
        select n.id, n.dag_id, 'r' || n.id, n.date, %(state)s, n.id, n.date, n.date from (
            select onceflow.new_id() id, (%(dags)s::text[])[1 + i %% 4] dag_id, timestamptz '2026-01-01' + (i * 7919 %% 1000) * interval '1 minute' date
            from generate_series(1, %(count)s) i) n
        returning id, dag_id, logical_date
    ), tis as (
        insert into onceflow.ti (run, id, task_id, kind, lane, logical_date, state)
        select m.id, m.id, m.dag_id, 'body', l.id, m.logical_date, %(state)s from made m join onceflow.lane l on l.dag_id = m.dag_id and l.version is null
        returning run, id, lane, logical_date, state
    )
    insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, 0, logical_date, run, id from tis where state is null"""


def make_runs(db: TestDatabase, count: int, state: str | None) -> None:
    """Many runs at once, ended ones or queued ones."""
    db.sql("select 1")  # opens the connection
    assert db._connection is not None
    db._connection.execute(MAKE_RUNS, {"count": count, "state": state, "dags": list(DAGS)})


@pytest.fixture
def worker(make_engine: Callable[..., Engine]) -> Engine:
    """A worker with a lane for each of four dags."""
    return make_engine(dags=DAGS)


def count_reads(engine: Engine, work: Callable[[], object]) -> dict[str, tuple[int, int]]:
    """For each table of ours that the work's transaction read: how often it was read through, and how many rows were fetched by an index."""
    engine.sql("select pg_stat_force_next_flush()")  # what earlier transactions have read counts no more
    engine.begin()
    work()
    rows = engine.sql(READS)
    engine.commit()
    return {name: (seq, fetched) for name, seq, fetched in rows}


@pytest.mark.server("18", "15")
@pytest.mark.parametrize("statistics_are", ["missing", "of an empty table", "fresh"])
def test_a_claim_at_depth_reads_what_it_takes(db: TestDatabase, worker: Engine, statistics_are: str) -> None:
    """With 20,000 queued tasks in four lanes a claim finds them by the index, whatever the planner knows of the tables; the tenth like the first."""
    if statistics_are == "of an empty table":
        db.sql("vacuum analyze onceflow.ready")
    make_runs(db, QUEUED, None)
    if statistics_are == "fresh":
        for table in ("ready", "ti", "run", "lease"):
            db.sql(f"analyze onceflow.{table}")
    for _ in range(10):
        reads = count_reads(worker, lambda: worker.claim(10))
    assert reads["ready"][1] > 0, "the reads of functions are not counted"
    big = {name: counts for name, counts in reads.items() if name.startswith(("ready", "lease", "ti_", "run_"))}
    assert {name: seq for name, (seq, _) in big.items() if seq} == {}, "read through"
    assert {name: fetched for name, (_, fetched) in big.items() if fetched > 200} == {}, "reads more than it takes"


@pytest.mark.server("15")  # the bundled server has no auto_explain
def test_a_claim_at_a_depth_of_a_million_never_scans_the_ready_set(db: TestDatabase, worker: Engine) -> None:
    """EXPLAIN of every statement inside a claim: with 1,000,000 rows in ready all of them find theirs by an index, and ten tasks are claimed."""
    make_runs(db, 10, None)
    db.sql("insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, 0, timestamptz '2027-01-01' + i * interval '1 second', i, i "
           "from generate_series(1, 1000000) i, (select min(lane) lane from onceflow.ready) l")  # fmt: skip
    db.sql("analyze onceflow.ready")
    plans: list[str] = []
    worker.conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    worker.sql("load 'auto_explain'")
    for name, value in {"log_min_duration": "0", "log_nested_statements": "on", "log_level": "notice"}.items():
        worker.sql(f"set auto_explain.{name} = {value}")
    assert len(worker.claim(10)) == 10
    read = [plan for plan in plans if "on ready" in plan]
    assert any("Index" in plan for plan in read), "the plans of nested statements are not shown"
    assert [plan for plan in read if "Seq Scan on ready" in plan] == []


def best_s(work: Callable[[], object], times: int = 50) -> float:
    """How long the work takes at best: the machine may be busy."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def test_an_empty_claim_stays_fast_over_history(db: TestDatabase, worker: Engine) -> None:
    """With 50,000 ended runs an empty claim and an empty tick take milliseconds, and so does the next claim of ten."""
    make_runs(db, FINISHED, "success")
    assert worker.claim(10) == []
    assert best_s(lambda: worker.claim(10)) < BUDGET_S
    assert best_s(worker.tick) < 2 * BUDGET_S
    make_runs(db, 600, None)
    assert best_s(lambda: worker.claim(10)) < 4 * BUDGET_S
    assert db.sql("select count(*) from onceflow.lease") == [(500,)]


GROW = """
    insert into onceflow.timer select clock_timestamp() + interval '1 day', i, i, 'wait' from generate_series(1, 20000) i;
    insert into onceflow.wait select i, i, 'message', i, 'never' from generate_series(1, 20000) i;
    insert into onceflow.lease (ti, run, worker, claim, epoch, try_number, entries, claimed_at, lane, dag_id, run_id, task_id, map_index, host)
        select i, i, 0, 0, 0, 1, 0, clock_timestamp(), 1, 'flow', 'r', 't', -1, 'h' from generate_series(1, 20000) i;
    insert into onceflow.message (run, body, sent_at) select i, '1', clock_timestamp() from generate_series(1, 20000) i;
    insert into onceflow.step_ledger select nextval('onceflow.ledger_seq'), onceflow.new_id(), i, 'flow', 'r', 't', -1, 0, 'k', 'k', 'external', 1,
        'queued', 'started', i % 2 = 0, null, null, null, null, null, clock_timestamp(), null, null, null, null, null, '3', 0, '' from generate_series(1, 20000) i"""


def live_through(engine: Engine) -> None:
    """A run with a step, a wait, a message, a retry and a child task, from its start to its end; then it is read, forked and cancelled."""
    run = engine.start(retries=1)
    task = engine.claim_one()
    engine.complete_step(task, "a-0")
    child = engine.start_task(task, "work:start-0")
    engine.defer(task, ("message", run, "t"), ("time", 0, "2999-01-01T00:00:00Z"))
    engine.send(run, "t")
    (work,) = engine.claim(5)
    assert work.ti == child
    engine.heartbeat([work])
    engine.complete(work)
    engine.tick()
    task = engine.claim_one()
    engine.receive(task, "recv-0", "t")
    engine.fail(task, retry=True)
    engine.unclaim(engine.claim_one())
    again = engine.claim_one()
    engine.call(calls.load_history(run, run))
    engine.complete(again)
    engine.call(calls.read_run(run))
    engine.call(calls.list_entries(run))
    engine.call(calls.fork_run(run, "recv-0", f"fork of {run}", None))
    engine.cancel(engine.claim_one().run)


def test_a_claim_reads_its_own_leases_alone(db: TestDatabase, worker: Engine) -> None:
    """With 20,000 leases of others, even when its plans were made while there were few."""
    make_runs(db, 200, None)
    db.sql("vacuum analyze onceflow.lease")
    for _ in range(7):
        assert len(worker.claim(5)) == 5
    db.sql(GROW)
    fetched = count_reads(worker, lambda: worker.claim(10))["lease"][1]
    assert 0 < fetched <= 200


@pytest.mark.server("18", "15")
def test_no_call_reads_through_a_table(db: TestDatabase, one: Engine) -> None:
    """Each call finds its rows by an index in tables that grew large, even when its plans were made while they were empty and analysed."""
    for table in ("ready", "lease", "timer", "wait", "wake_up", "message", "ti", "run", "step_ledger"):
        db.sql(f"vacuum analyze onceflow.{table}")
    for _ in range(7):  # from the sixth time on a plan is made for good
        live_through(one)
    db.sql(GROW)
    make_runs(db, QUEUED, "success")
    reads = count_reads(one, lambda: live_through(one))
    small = ("worker", "lane", "dag", "engine", "sealer", "wake_up", "ready", "run_event")
    assert {name: seq for name, (seq, _) in reads.items() if seq and not name.startswith(small)} == {}


WIDE = {
    "first": Node(),
    "left": Node(("first",)),
    "nothing": Node(("first",), options={"operator": "EmptyOperator"}),
    "mapped": Node(("left",), mapping=(("item", [1, 2, 3]),)),
    "join": Node(("mapped", "nothing"), rule="all_done"),
}
HISTORY = """
    with made as (
        insert into onceflow.run (id, dag_id, run_id, logical_date, state, root, version, created_at, start_date, end_date)
        select onceflow.new_id(), v.dag_id, 'old' || i, timestamptz '2020-01-01' + i * interval '1 minute', 'success', 0, v.id, v.created_at, v.created_at, v.created_at
        from onceflow.dag_version v, generate_series(1, 4000) i where v.dag_id = 'graph' returning id, version, logical_date)
    insert into onceflow.ti (run, id, task_id, kind, ix, lane, logical_date, state)
    select m.id, onceflow.new_id(), d.task_id, 'task', d.ix, d.lane, m.logical_date, 'success' from made m join onceflow.dag_task d on d.version = m.version"""


def live_through_a_dag(engine: Engine) -> None:
    """A run of WIDE from its admission to its end, the tick's other work included."""
    run = begin_run(engine)
    while tasks := engine.claim(20):
        for task in tasks:
            end(engine, task, "success")
    engine.tick()
    assert engine.sql("select state from onceflow.run where id = %s", run) == [("success",)]


@pytest.mark.server("18", "15")
@pytest.mark.parametrize("statistics_are", ["of empty tables", "fresh"])
def test_a_run_of_a_dag_reads_nothing_of_the_past(db: TestDatabase, one: Engine, statistics_are: str) -> None:
    """A tick, claims and ends read about as many rows beside 4,000 ended runs and 300 other dags as beside none, whenever their plans were made."""
    register(one, WIDE)
    tables = [name for (name,) in db.sql("select relname from pg_stat_user_tables where schemaname = 'onceflow'")]
    for table in tables:
        db.sql(f"vacuum analyze onceflow.{table}")
    for _ in range(7):
        live_through_a_dag(one)
    plan = make_plan(WIDE)
    one.call(calls.register_dags(json.dumps([{"dag_id": f"other{n}", "kind": "dag", "code_version": "v1", "plan": plan} for n in range(300)]), True))
    db.sql(HISTORY)
    if statistics_are == "fresh":
        for table in tables:
            db.sql(f"analyze onceflow.{table}")
        for _ in range(7):
            live_through_a_dag(one)
    reads = count_reads(one, lambda: live_through_a_dag(one))
    assert any(fetched for name, (_, fetched) in reads.items() if name.startswith("ti_")), "the reads of functions are not counted"
    assert {name: fetched for name, (_, fetched) in reads.items() if fetched > 600} == {}, "reads more than it takes"
