"""Who runs tests of workflows and dags: it needs a database, which nothing in authoring does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Setup = str | Path | Callable[[Any], object]  # SQL text, a file of SQL, or a function of a psycopg connection
_runners: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class TrialRun:
    """What came of a dag's test. `tasks` (their states), `outputs` and `errors` are by task id; that of a mapped task has its index: `load[0]`."""

    dag_id: str
    run_id: str
    state: str
    tasks: dict[str, str]
    outputs: dict[str, Any]
    errors: dict[str, BaseException]


def bind_tests(of_workflow: Callable[..., Any], of_dag: Callable[..., Any]) -> None:
    """Tells who runs them."""
    _runners.update(workflow=of_workflow, dag=of_dag)


def run_test(kind: str, *args: Any, **options: Any) -> Any:
    """Runs the test of a "workflow" or a "dag"."""
    return _runners[kind](*args, **options)
