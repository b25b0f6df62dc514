"""Dags: many light tasks and few long ones in sequence, and a load of dags for minutes."""

from __future__ import annotations

import statistics
import time

from bench.flows import fibonacci
from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures, count_kept

LIVING = 8  # runs of the sustained load at any moment: tasks wait for few others, so that dispatch says something
TASKS = 15


def time_run(place: BenchPlace, dag: str, params: str = "{}") -> float:
    """Seconds from the start of a run until it has ended well."""
    run = place.sql("select (onceflow.start_run(%s, %s) ->> 'run')::bigint", dag, params)[0][0]
    place.await_true("select state is not null from onceflow.run where id = %s", run)
    state, took = place.sql("select state, extract(epoch from end_date - created_at)::float8 from onceflow.run where id = %s", run)[0]
    assert state == "success", f"{dag}: {state}"
    return float(took)


def light_40(place: BenchPlace, size: Size) -> Figures:
    """Median seconds of a dag of 40 tasks in sequence, each fibonacci(10)."""
    with place.worker():
        return {"dag_40_light": (statistics.median(time_run(place, "light_40") for _ in range(size.repeats)), "s")}


def long_10(place: BenchPlace, size: Size) -> Figures:
    """Seconds of a dag of 10 tasks in sequence, each fibonacci(33), and how much that is of the time of the bare function."""
    started = time.perf_counter()
    for _ in range(10):
        fibonacci(size.long)
    bare = time.perf_counter() - started
    with place.worker():
        took = time_run(place, "long_10", f'{{"n": {size.long}}}')
    return {"dag_10_long": (took, "s"), "dag_10_long_to_bare": (took / bare, "x")}


def sustained(place: BenchPlace, size: Size) -> Figures:
    """Task instances an hour over minutes of dags of 15 tasks with one INSERT each, and how soon each began once it could; read from task_instance.
    At the end Postgres is killed, and effects are counted against the ledger."""
    with place.worker() as processes:
        time_run(place, "fifteen")
        since = place.sql("select clock_timestamp()")[0][0]
        keep_living(place, size.minutes * 60)
        until = place.sql("select clock_timestamp()")[0][0]
        place.await_true("select not exists (select from onceflow.run where state is null)")
        place.crash_and_recover(processes)
    ended, p50, p99 = place.sql(
        """select count(*), percentile_cont(0.5) within group (order by wait), percentile_cont(0.99) within group (order by wait)
        from (select extract(epoch from start_date - queued_when)::float8 * 1000 wait from onceflow.task_instance where end_date between %s and %s) t""",
        since,
        until,
    )[0]
    assert count_kept(place) % TASKS == 0
    return {
        "sustained_dags": (ended * 3600 / (until - since).total_seconds(), "task instances/h"),
        "sustained_dispatch_p50": (p50, "ms"),
        "sustained_dispatch_p99": (p99, "ms"),
    }


def keep_living(place: BenchPlace, seconds: float) -> None:
    """Starts a run whenever one has ended, for so long."""
    ended = "select count(*) from unnest(%s::bigint[]) k(id) join onceflow.run r on r.id = k.id where r.state is null"
    start = "select (onceflow.start_run('fifteen', '{}', notify => %s) ->> 'run')::bigint from generate_series(1, %s)"
    runs: list[int] = []
    stop = time.monotonic() + seconds
    with place.connect() as conn:
        while time.monotonic() < stop:
            living = conn.execute(ended, [runs]).fetchone()
            assert living is not None
            if missing := LIVING - living[0]:
                runs = [
                    row[0]
                    for row in conn.execute("select r.id from unnest(%s::bigint[]) k(id) join onceflow.run r on r.id = k.id where r.state is null", [runs])
                ]
                runs += [row[0] for row in conn.execute(start, [True, missing])]
            time.sleep(0.01)
