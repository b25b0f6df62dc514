"""The runs that schedules make. What is due is worked out here, from the timetables that the database keeps; no file of a dag is imported.

As a client's requests, it is a generator of calls without I/O. Schedulers beside each other may work the same out: `schedule_runs` makes each run once.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onceflow.authoring.schedule import unpack_schedule
from onceflow.authoring.timetable import DataInterval, PlannedRun, plan_runs
from onceflow.db import dag_calls
from onceflow.db.calls import Call

BATCH = 100  # dags in one transaction
BACKLOG = 100  # runs of a dag with catchup that may wait before more are made

log = logging.getLogger("onceflow.scheduler")


@dataclass(frozen=True, slots=True)
class Made:
    """How many runs were made, and in how many seconds to look again; None: nothing is to come yet."""

    runs: int
    next_s: float | None


def make_due_runs(scheduler: int | None = None) -> Generator[Call, Any, Made]:
    """Makes what is due of one batch of dags, and answers Made. The runs tell which scheduler made them."""
    found = yield dag_calls.list_due_dags(BATCH, BACKLOG)
    if not found["dags"]:
        return Made(0, found["next_s"])
    now = datetime.fromisoformat(found["now"])
    plans = [plan_dag(dag, now) for dag in found["dags"]]
    made = yield dag_calls.schedule_runs(json.dumps(plans), scheduler)
    return Made(made, 0.0 if len(plans) == BATCH or made else found["next_s"])


def plan_dag(dag: dict[str, Any], now: datetime) -> dict[str, Any]:
    """What schedule_runs is told of one dag. A timetable that fails keeps nobody from the others: its error is shown as an import error of the dag."""
    plan = {"dag_id": dag["dag_id"], "planned": dag["planned"], "runs": [], "next": None, "error": None}
    last = DataInterval(_moment(dag["last_start"]), _moment(dag["last_end"])) if dag["last_end"] else None
    try:
        schedule = unpack_schedule(dag["schedule"])
        limit = 0 if dag["is_paused"] else max(dag["room"], 0) if schedule.catchup else min(max(dag["room"], 0), 1)
        found = plan_runs(schedule.timetable, last, schedule.bounds, catchup=schedule.catchup, now=now, limit=limit)
    except Exception as error:
        log.error("the schedule of dag %s does not say when its next run comes: %s; it is asked again in a minute", dag["dag_id"], error)
        return {**plan, "error": f"its schedule does not say when the next run comes: {error}\n\n{traceback.format_exc()}"}
    return {**plan, "runs": [_show(run) for run in found.due], "next": None if found.upcoming is None else found.upcoming.run_after.isoformat()}


def _show(run: PlannedRun) -> list[str]:
    return [moment.isoformat() for moment in (run.logical_date, run.interval_start, run.interval_end)]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
