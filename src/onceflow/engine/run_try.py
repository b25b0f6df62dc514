"""One try of any kind of step."""

from __future__ import annotations

from typing import Any

from onceflow.authoring.step import Step
from onceflow.engine.record import Record
from onceflow.engine.run_outpost import run_outpost
from onceflow.engine.run_sql import run_sql
from onceflow.engine.run_step import run_external, run_transactional
from onceflow.engine.services import Services

_RUNNERS = {"transactional": run_transactional, "sql": run_sql, "external": run_external, "outpost": run_outpost}


async def run_try(services: Services, record: Record, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Any) -> str:
    """Runs the step and commits its outcome; answers the recorded output's text, or raises the step's own error, or LeaseLost."""
    output = await _RUNNERS[step.kind](services, record, step, args, kwargs, place)
    if place.owes_wake:
        services.wake_soon()
    return output
