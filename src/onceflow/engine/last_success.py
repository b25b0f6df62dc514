"""The last run before this one that succeeded, for those tasks that ask for it."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onceflow.authoring.context_names import LAST_SUCCESS
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.step_operator import StepOperator
from onceflow.db import dag_calls
from onceflow.engine.templates import find_texts

if TYPE_CHECKING:
    from onceflow.engine.task_run import TaskRun


def asks_for_last_success(operator: BaseOperator) -> bool:
    """By a parameter's name, in a template, or perhaps in the context as a whole: only then is the database asked."""
    if not isinstance(operator, StepOperator):
        return True  # execute(context)
    parameters = operator.step.signature.parameters
    gets_all = "context" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    texts = find_texts([operator.arguments, [source for _, source in operator.mapping or ()]])
    return gets_all or bool(parameters.keys() & LAST_SUCCESS.keys()) or any("prev_" in text for text in texts)


async def read_last_success(task: TaskRun) -> dict[str, Any]:
    """Its interval and times by their names in a context; None each when there is none."""
    found = await task.services.call_again(dag_calls.read_last_success(task.claimed.run)) or {}
    return {name: None if found.get(field) is None else datetime.fromisoformat(found[field]).astimezone(UTC) for name, field in LAST_SUCCESS.items()}
