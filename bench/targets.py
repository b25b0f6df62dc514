"""What is wanted of each figure: at least, or at most. Ratios are to the ceiling of the same run."""

from __future__ import annotations

from typing import Any

AT_LEAST_RATIO = {"transactional": 0.25, "transactional_grouped": 0.6, "external": 0.5, "sql": 0.4, "sql_grouped": 1.5}
AT_LEAST = {"queue_depth_kept": 0.8, "fleet_kept_beside_idle": 0.9, "sustained_dags": 1_000_000}
AT_MOST = {
    "start_latency_p50": 5, "start_latency_p99": 25, "empty_claim": 5, "ten_deep_claim": 5, "map_join_1000": 2, "scheduler_tick_p95": 50,
    "pinned_xmin_slowdown": 3, "pinned_xmin_recovery": 30, "sustained_dispatch_p99": 1_000,
}  # fmt: skip


def describe_target(name: str, row: dict[str, Any]) -> str:
    """The target of a figure and whether it is met; empty where there is none."""
    if name in AT_LEAST_RATIO:
        return f"ratio >= {AT_LEAST_RATIO[name]:g}: {say(row['ratio'] >= AT_LEAST_RATIO[name])}"
    if name in AT_LEAST:
        return f">= {AT_LEAST[name]:,g}: {say(row['value'] >= AT_LEAST[name])}"
    if name in AT_MOST:
        return f"<= {AT_MOST[name]:,g}: {say(row['value'] <= AT_MOST[name])}"
    return ""


def say(is_met: bool) -> str:
    return "met" if is_met else "NOT met"
