"""Many worker processes on one database: do they slow each other down?"""

from __future__ import annotations

import time

from bench.claim_rows import count_ended, fill_runs
from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures

DEPTH_PER_S = 10_000  # more than they take


def fleets(place: BenchPlace, size: Size) -> Figures:
    """Transactional steps per second of 1, 2 and 4 worker processes, and of one beside a hundred that have nothing to do."""
    figures: Figures = {}
    for workers in size.fleet:
        figures[f"fleet_{workers}"] = (rate_of(place, size, workers, 0), "steps/s")
    figures["fleet_1_beside_idle"] = (rate_of(place, size, 1, size.idle), "steps/s")
    figures["fleet_kept_beside_idle"] = (figures["fleet_1_beside_idle"][0] / figures["fleet_1"][0], "x")
    return figures


def rate_of(place: BenchPlace, size: Size, workers: int, idle: int) -> float:
    """The idle ones serve a queue that is empty; all of them are there before the work begins."""
    place.renew()
    with place.worker(1, idle, ONCEFLOW_QUEUES="empty"), place.worker(32, workers), place.connect() as conn:
        fill_runs(place, "insert_one", int(size.rate_s * DEPTH_PER_S), "queued")
        place.await_true("select count(*) > %s from onceflow.step_ledger", size.count // 20)
        before, started = count_ended(conn), time.monotonic()
        time.sleep(size.rate_s)
        return (count_ended(conn) - before) / (time.monotonic() - started)
