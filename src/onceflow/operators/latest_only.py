"""`LatestOnlyOperator`: lets only the latest of a dag's scheduled runs go on."""

from __future__ import annotations

from typing import Any

import asyncpg

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.timetable import Bounds, DataInterval


class LatestOnlyOperator(BaseOperator):
    """In a run that catches up, what is directly downstream is skipped; the latest run goes on, and so does one started by hand. Its output says which.

    A run is the latest until the next one of the schedule is due, by the database's clock.
    """

    decides = "short_circuit"

    async def execute(self, conn: asyncpg.Connection, context: dict[str, Any]) -> bool:
        run = context["dag_run"]
        if run.run_type in ("manual", "test"):
            return True
        following = context["dag"].timetable.next_run(DataInterval(run.data_interval_start, run.data_interval_end), Bounds())
        return following is None or bool(await conn.fetchval("select onceflow.now() < $1", following.run_after))
