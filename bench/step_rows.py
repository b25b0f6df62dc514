"""Steps per second of one worker over a full queue, and how soon an idle one starts."""

from __future__ import annotations

import statistics
import time

from bench.place import BenchPlace
from bench.size import Size

Figures = dict[str, tuple[float, str]]
"""What a row measured: by name, the value and its unit."""

DOUBTFUL = """
    select count(*) from (select xmin::text as xid, count(*) as n from effect group by 1) e
    full join (select (xid::xid)::text as xid, count(*) as n from onceflow.step_ledger where final and to_state = 'success' group by 1) l on l.xid = e.xid
    where e.n is distinct from l.n"""
SUCCESSES = "select count(*) from onceflow.step_ledger where final and to_state = 'success'"
START = "select count(onceflow.start_run(%s, jsonb_build_array(g), %s || g, task_kind => 'step', notify => false)) from generate_series(1, %s) g"


def register_step(place: BenchPlace, name: str) -> None:
    place.sql("select onceflow.register_dags(%s)", f'[{{"dag_id":"{name}","kind":"step","code_version":"any"}}]')


def enqueue(place: BenchPlace, name: str, count: int) -> None:
    """Starts `count` runs of a step, in bulk."""
    register_step(place, name)
    place.sql(START, name, f"{name}-{time.time_ns()}-", count)
    place.sql("analyze")


class StepsPerSecond:
    """Throughput of one worker over a full queue. Once the last step has ended, Postgres is killed and started again, and what it kept is counted."""

    def __init__(self, row: str, step: str, has_effects: bool = True) -> None:
        self.row, self.step, self.has_effects = row, step, has_effects

    def __call__(self, place: BenchPlace, size: Size) -> Figures:
        enqueue(place, self.step, size.count)
        with place.worker() as processes:
            place.await_true("select count(*) >= %s from onceflow.step_ledger where final", size.count)
            place.crash_and_recover(processes)
        span = place.sql("select extract(epoch from max(at) - min(at))::float8 from onceflow.step_ledger where final")[0][0]
        count_kept(place, size.count, self.has_effects)
        return {self.row: (size.count / span, "steps/s")}


def count_kept(place: BenchPlace, count: int | None = None, has_effects: bool = True) -> int:
    """Raises unless the ledger has `count` successes and each transaction wrote as many effects as successes; answers how many there are."""
    kept = int(place.sql(SUCCESSES)[0][0])
    assert count is None or kept == count, f"{kept} successes of {count} steps in the ledger after a crash of Postgres"
    if has_effects:
        effects, doubtful = place.sql("select count(*) from effect")[0][0], place.sql(DOUBTFUL)[0][0]
        assert (effects, doubtful) == (kept, 0), f"{effects} effects of {kept} successes after a crash of Postgres, {doubtful} transactions where they differ"
    return kept


def start_latency(place: BenchPlace, size: Size) -> Figures:
    """Milliseconds from the commit of a start to its claim, on an idle worker."""
    waits = []
    with place.worker(), place.connect("app") as conn, place.connect() as reader:
        register_step(place, "latency")
        for n in range(size.starts):
            started = "select (onceflow.start_run('latency', jsonb_build_object('n', %s::int), %s, task_kind => 'step') ->> 'run')::bigint"
            run = conn.execute(started, [n, f"l{n}"]).fetchone()
            while not reader.execute("select state from onceflow.run where id = %s and state is not null", run).fetchone():
                time.sleep(0.02)
            wait = reader.execute("select extract(epoch from start_date - created_at)::float8 * 1000 from onceflow.dag_run where id = %s", run).fetchone()
            assert wait is not None
            waits.append(wait[0])
    return {"start_latency_p50": (statistics.median(waits), "ms"), "start_latency_p99": (find_p99(waits), "ms")}


def find_p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]
