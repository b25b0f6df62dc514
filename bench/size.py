"""How much is measured: as for the record, or just enough to see that every row still runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Counts and durations of the rows. What ends in _s is seconds."""

    count: int = 10_000
    """Steps of a throughput row, jobs of a peer."""
    starts: int = 500
    finished: int = 1_000_000
    depth: int = 1_000_000
    rate_s: float = 10.0
    """For so long a rate at a constant depth, or of a fleet, is measured."""
    held_s: float = 300.0
    """For so long a transaction pins the xmin horizon."""
    minutes: float = 10.0
    """Of the sustained load."""
    fleet: tuple[int, ...] = (1, 2, 4)
    idle: int = 100
    files: int = 10_000
    settle_s: float = 3.0
    steady_s: float = 10.0
    dags: int = 10_000
    ticks: int = 100
    width: int = 1_000
    long: int = 33
    """fibonacci(n) of the long tasks."""
    repeats: int = 5
    ceiling_s: int = 5


QUICK = Size(
    count=64, starts=5, finished=2_000, depth=4_000, rate_s=0.5, held_s=1.0, minutes=0.02, fleet=(1, 2), idle=2, files=20, settle_s=0.2, steady_s=0.3, dags=600, ticks=2,
    width=20, long=15, repeats=1, ceiling_s=1,
)  # fmt: skip
