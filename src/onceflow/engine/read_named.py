"""Connections and variables for a task that runs: from a thread of it, which waits for the database."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from onceflow.db import dag_calls
from onceflow.engine.named_values import MissingValue, NamedValues, Secrets
from onceflow.engine.secret_box import SecretBox
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.engine.task_run import TaskRun


def open_values(task: TaskRun) -> NamedValues:
    """What the task may read."""

    def find(kind: str, name: str) -> dict[str, Any] | None:
        if asyncio._get_running_loop() is task.loop:
            raise AuthoringError(f"{kind} {name!r} lies in the database and cannot be read here")
        row: dict[str, Any] | None = task.perform_blocking(lambda: task.services.call_again(dag_calls.read_named_value(kind, name)))
        return row

    return NamedValues(Secrets(), find, SecretBox(task.services.settings.fernet_key))


def read_connection(task: TaskRun, name: str) -> Any:
    """What get_connection answers."""
    return open_values(task).read_connection(name)


def read_variable(task: TaskRun, name: str, default: Any, parse: bool) -> Any:
    """What get_variable answers; `...` for the default: there is none."""
    try:
        text = open_values(task).read_variable(name)
    except MissingValue:
        if default is ...:
            raise
        return default
    return json.loads(text) if parse else text
