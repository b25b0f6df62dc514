"""`@setup` and `@teardown`: tasks that make and remove what others need."""

from __future__ import annotations

import copy
from typing import Any

from onceflow.authoring.step import Step, step


def setup(fn: Any) -> Any:
    """Declares a task that prepares something; above @task, or by itself. What comes after depends on it, its teardown runs only if it succeeded.

    >>> @setup
    ... def make_table() -> None: ...
    """
    return _mark(fn, is_setup=True)


def teardown(fn: Any = None, *, on_failure_fail_dagrun: bool = False) -> Any:
    """Declares a task that cleans up: it runs once all upstream tasks have ended, however they did, if a setup among them succeeded.

    A run's state does not depend on it, unless on_failure_fail_dagrun=True. `setup_task >> work >> teardown_task` with
    `teardown_task.as_teardown(setups=setup_task)` draws the arrow from the setup too.
    """

    def declare(function: Any) -> Any:
        return _mark(function, is_teardown=True, on_failure_fail_dagrun=on_failure_fail_dagrun, trigger_rule="all_done_setup_success")

    return declare if fn is None else declare(fn)


def _mark(fn: Any, **options: Any) -> Any:
    marked = copy.copy(fn if isinstance(fn, Step) else step(fn))
    marked.task_options = {**marked.task_options, **options}
    return marked
