"""All rows, by group and name. Each measures something on a fresh database and answers figures; a row may have several."""

from __future__ import annotations

from collections.abc import Callable

from bench.claim_rows import claim_over_history, pinned_xmin, queue_depth
from bench.dag_rows import light_40, long_10, sustained
from bench.fleet_rows import fleets
from bench.map_rows import map_join
from bench.parse_rows import parse_all, see_edit, watch_all
from bench.place import BenchPlace
from bench.schedule_rows import backfill_rows, scheduler_tick
from bench.size import Size
from bench.step_rows import Figures, StepsPerSecond, start_latency

Row = Callable[[BenchPlace, Size], Figures]

GROUPS: dict[str, dict[str, Row]] = {
    "throughput": {
        "transactional": StepsPerSecond("transactional", "insert_one"),
        "transactional_grouped": StepsPerSecond("transactional_grouped", "insert_grouped"),
        "sql": StepsPerSecond("sql", "insert_sql"),
        "sql_grouped": StepsPerSecond("sql_grouped", "insert_sql_grouped"),
        "external": StepsPerSecond("external", "external", has_effects=False),
    },
    "latency": {"start_latency": start_latency},
    "claims": {"claim_over_history": claim_over_history, "queue_depth": queue_depth},
    "fleets": {"fleets": fleets},
    "dags": {"dag_40_light": light_40, "dag_10_long": long_10, "map_join_1000": map_join},
    "schedules": {"scheduler_tick": scheduler_tick, "backfill_rows": backfill_rows},
    "parsing": {"parse_10000": parse_all, "parse_10000_steady": watch_all, "parse_10000_edit": see_edit},
    "soak": {"pinned_xmin": pinned_xmin, "sustained_dags": sustained},
}
ROWS: dict[str, Row] = {name: row for rows in GROUPS.values() for name, row in rows.items()}
