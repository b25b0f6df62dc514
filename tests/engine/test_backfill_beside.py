"""A backfill beside other work: neither in the other's way."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from tests.engine.local_worker import Engine, wait_until
from tests.engine.test_dag_limits import most_at_once
from tests.processes import start_process, worker_environment

DAGS = Path(__file__).parent / "flows" / "limit_flows.py"
ENDLESS = 25
ROUNDS, RUNS = 4, 12


@pytest.fixture(scope="module", autouse=True)
def _worker(idle_engine: Engine) -> None:
    idle_engine.db.sql("select onceflow.set_pool('shared', 24)")
    idle_engine.start_worker(concurrency=32, env={"ONCEFLOW_POLL_S": "0.1"})


def start_schedulers(engine: Engine, count: int) -> None:
    """They are ended with the workers."""
    for number in range(count):
        env = {**worker_environment(engine.db), "ONCEFLOW_POLL_S": "0.1"}
        command = [sys.executable, "-m", "onceflow", "scheduler", "--dags", str(DAGS)]
        one = start_process(command, env=env, log=engine.folder / f"scheduler-{number}.log")
        engine.workers.started.append(one)
        wait_until(lambda one=one: "scheduler ready" in one.log_text())


def test_a_backfill_beside_endless_runs(idle_engine: Engine) -> None:
    """25 runs of other dags, of higher priority, that never end, and two schedulers: a backfill of one run at a time goes on, never two of its runs at once;
    paused and resumed midway it goes on where it was, cancelled midway it ends; the endless runs are as before."""
    start_schedulers(idle_engine, 2)
    gate = idle_engine.make_gate()
    for number in range(ENDLESS):
        idle_engine.client.trigger(f"endless{number}", params={"gate": str(gate)})
    idle_engine.db.wait_for("select count(*) = %s from onceflow.lease", ENDLESS)
    made = idle_engine.client.backfill("year", "2025-01-01", "2025-12-31")
    assert made.total == 365
    wait_until(lambda: made.progress().success >= 2)
    made.pause()
    idle_engine.db.wait_for("select not exists (select from onceflow.active_run where backfill is not null)")
    halted = made.progress()
    assert (halted.state, halted.queued) == ("paused", 365 - halted.success)
    made.resume()
    wait_until(lambda: made.progress().success >= halted.success + 2)
    made.cancel()
    ended = made.progress()
    assert ended.state == "cancelled" and ended.success + ended.cancelled == 365 and ended.success >= 4
    sweep = """with edge as (
            select start_date as at, 1 as n from onceflow.run where backfill = %s and start_date is not null
            union all select end_date, -1 from onceflow.run where backfill = %s and start_date is not null)
        select max(running) from (select sum(n) over (order by at, n) as running from edge) s"""
    assert idle_engine.db.sql(sweep, made.id, made.id) == [(1,)]
    assert most_at_once(idle_engine, "run in (select id from onceflow.run where backfill is not null) and start_date is not null") == 1
    assert idle_engine.db.sql("select count(*) from onceflow.lease") == [(ENDLESS,)]
    gate.touch()
    idle_engine.db.wait_for("select not exists (select from onceflow.run where state is null)")
    assert idle_engine.db.sql("select * from onceflow.verify_ledger()") == []


def test_other_dags_do_not_wait_for_a_backfill(idle_engine: Engine) -> None:
    """While a year of runs is filled, eight at a time, tasks of another dag are dispatched as soon as while it is paused: read from task_instance rows, in turns."""

    def measure() -> list[float]:
        """From ready to claimed, in seconds."""
        runs = [idle_engine.client.trigger("brief") for _ in range(RUNS)]
        for run in runs:
            run.result(30)
        text = "select extract(epoch from start_date - queued_when)::float8 from onceflow.task_instance where run = any(%s) and start_date is not null"
        return [wait for (wait,) in idle_engine.db.sql(text, [run.run for run in runs])]

    measure()
    made = idle_engine.client.backfill("year", "2024-01-01", "2024-12-31", max_active_runs=8)
    waits: dict[str, list[float]] = {"alone": [], "beside": []}
    for _ in range(ROUNDS):
        before = made.progress().success
        wait_until(lambda before=before: made.progress().success > before)
        waits["beside"] += measure()
        assert made.progress().state == "running" and made.progress().running
        made.pause()
        idle_engine.db.wait_for("select not exists (select from onceflow.active_run where backfill is not null)", timeout=60)
        waits["alone"] += measure()
        made.resume()
    made.cancel()
    alone, beside = (statistics.median(waits[name]) for name in ("alone", "beside"))
    print(json.dumps({"alone_s": alone, "beside_s": beside}))
    assert len(waits["alone"]) == len(waits["beside"]) == ROUNDS * RUNS
    assert beside <= 2 * alone + 0.05, (alone, beside)
