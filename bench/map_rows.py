"""What a wide map costs: a thousand instances and their join, against as many steps that have nothing to do with each other."""

from __future__ import annotations

from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures


def map_join(place: BenchPlace, size: Size) -> Figures:
    """Time of a map and its join / time of as many independent steps, on the same worker."""
    place.sql("update onceflow.slot_pool set slots = -1 where pool_name = 'default_pool'")
    with place.worker():
        alone = time_steps(place, size.width)
        mapped = time_map(place, size.width)
    return {"map_join_1000": (mapped / alone, "x")}


def time_map(place: BenchPlace, width: int) -> float:
    """Seconds from the start of the run to its end; the join has had all values, in order, once."""
    run = int(place.sql("select onceflow.start_run('map_join', jsonb_build_object('width', %s::int)) ->> 'run'", width)[0][0])
    place.await_true("select state is not null from onceflow.run where id = %s", run)
    joined = place.sql("select output from onceflow.step_ledger where dag_run = %s and task_id = 'join' and final", run)
    assert joined == [(list(range(width)),)], f"the join of {width} instances was wrong: {str(joined)[:200]}"
    return float(place.sql("select extract(epoch from end_date - start_date)::float8 from onceflow.run where id = %s", run)[0][0])


def time_steps(place: BenchPlace, width: int) -> float:
    place.sql("select onceflow.register_dags(%s)", '[{"dag_id":"external","kind":"step","code_version":"any"}]')
    since = place.sql("select coalesce(max(id), 0) from onceflow.step_ledger")[0][0]
    started = "select clock_timestamp() from (select count(onceflow.start_run('external', jsonb_build_array(g), task_kind => 'step', notify => g = %s)) from generate_series(1, %s) g) n"
    begun = place.sql(started, width, width)[0][0]
    place.await_true("select count(*) >= %s from onceflow.step_ledger where id > %s and final", width, since)
    return float(place.sql("select extract(epoch from max(at) - %s)::float8 from onceflow.step_ledger where id > %s and final", begun, since)[0][0])
