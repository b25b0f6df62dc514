"""A dag that should be done sooner than it is."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceflow import DeadlineAlert, DeadlineReference, dag, task


def ring(context: dict[str, Any]) -> None:
    """Notes which deadline was missed, by which run."""
    with Path(context["params"]["file"]).open("a") as file:
        file.write(f"{context['run_id']} {context['reason']} {context['dag_run'].state} {context['deadline'].interval.total_seconds()}\n")


SOON = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=1), ring)
LATE = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=1), ring)


@dag(schedule=None, params={"file": ""}, deadline=[LATE, SOON])
def too_slow() -> None:
    @task
    def wait(params: Any) -> None:
        while not Path(params["file"] + ".go").exists():
            time.sleep(0.02)

    wait()


too_slow()
