"""Limits of dags: pools, tasks and runs at once. What runs is read from the ledger's times."""

from __future__ import annotations

from pathlib import Path

from tests.engine.local_worker import Engine
from tests.engine.test_dags import run_dag
from tests.processes import write_dags

SHARED = Path(__file__).parent / "flows" / "limit_flows.py"
TOO_MANY = """
from onceflow import dag, task

@task(pool="shared", pool_slots=25)
def greedy() -> None: ...

@dag(schedule=None)
def too_many():
    greedy()
"""


def most_at_once(engine: Engine, where: str, *args: object) -> int:
    """The most slots of tasks that had a lease at one moment, swept over claims and ends."""
    rows = engine.db.sql(
        f"""with edge as (
            select start_date as at, pool_slots as n from onceflow.ti where {where} union all select end_date, -pool_slots from onceflow.ti where {where})
        select max(running) from (select sum(n) over (order by at, n) as running from edge) s""",
        *args,
        *args,
    )
    return int(rows[0][0])


def test_a_pool_is_never_exceeded(engine: Engine) -> None:
    """40 eager tasks of a pool with 3 slots: never more than 3 at once, and all end."""
    engine.db.sql("update onceflow.slot_pool set slots = 3 where pool_name = 'api_pool'")
    found = run_dag(engine, "crowd", timeout=40)
    assert found["state"] == "success" and len(found["tis"]) == 41
    assert most_at_once(engine, "run = %s and pool = 'api_pool'", found["run"]) == 3


def test_big_tasks_are_not_passed_by_for_ever(engine: Engine) -> None:
    """A pool of 24, tasks of 12, 12 and 16 slots, and a stream of tasks of one slot that never dries up, two workers: the 16 run too, while small ones wait
    and come; the pool is never exceeded."""
    engine.db.sql("select onceflow.set_pool('shared', 24)")
    for _ in range(2):
        engine.start_worker(SHARED)
    living = "(select count(*) from onceflow.run where dag_id = 'big_ones' and state is null)"
    engine.db.sql("select onceflow.start_run('small_ones') from generate_series(1, 6)")
    engine.db.wait_for("select count(*) > 0 from onceflow.lease where dag_id = 'small_ones'")
    engine.db.sql("select onceflow.start_run('big_ones') from generate_series(1, 3)")
    for _ in range(1_000):
        left, ready = engine.db.sql(f"select {living}, (select count(*) from onceflow.ready)")[0]
        if left == 0:
            break
        if ready < 150:
            engine.db.sql("select onceflow.start_run('small_ones') from generate_series(1, 3)")
        engine.db.wait_for(f"select count(*) <> %s or {living} <> %s from onceflow.ready", ready, left)
    waiting = """select count(*) from onceflow.ti t join onceflow.ti b on b.task_id = 'c16' and t.queued_when < b.start_date and t.start_date > b.start_date
        where t.task_id = 'small'"""
    engine.db.wait_for("select not exists (select from onceflow.run where state is null and dag_id in ('big_ones', 'small_ones'))", timeout=60)
    assert engine.db.sql("select count(*), min(state) from onceflow.ti where task_id = 'c16'") == [(3, "success")]
    assert engine.db.sql(waiting)[0][0] > 0, "no small task waited behind a big one: the stream was dry"
    assert 16 <= most_at_once(engine, "pool = 'shared' and start_date is not null") <= 24


def test_more_slots_than_the_pool_has_are_refused_by_name(engine: Engine, tmp_path: Path) -> None:
    """At once, when the file is read: the error names task, dag, pool and both numbers; a pool that grows is enough."""
    engine.db.sql("select onceflow.set_pool('shared', 24)")
    folder = write_dags(tmp_path, "too_many_flows", TOO_MANY)
    engine.start_worker(folder)
    told = engine.db.wait_for("select stacktrace from onceflow.import_error where dag_id = 'too_many'")
    assert told == "task greedy of dag too_many needs 25 slots, but the pool shared has 24"
    engine.db.sql("select onceflow.set_pool('shared', 25)")
    engine.start_worker(folder)
    engine.db.wait_for("select not exists (select from onceflow.import_error where dag_id = 'too_many')")
    assert run_dag(engine, "too_many")["state"] == "success"
