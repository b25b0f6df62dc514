"""`map_index_template`: what an instance of a mapped task is called, beside its index."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.codec import decode
from onceflow.db import calls
from onceflow.engine.read_named import open_values
from onceflow.engine.task_run import TaskRun
from onceflow.engine.templates import Renderer
from onceflow.errors import AuthoringError

log = logging.getLogger("onceflow.task")


async def name_instance(task: TaskRun, operator: BaseOperator, context: dict[str, Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Names the instance before it runs, by its context and its item; where the template wants more, once the function (answered) has put that into the context."""
    if operator.options.map_index_template is None or task.claimed.map_index < 0:
        return fn
    name = _render(task, operator, context)
    if name is None:
        return _name_afterwards(task, operator, context, fn)
    await _write(task, name)
    return fn


def _name_afterwards(task: TaskRun, operator: BaseOperator, context: dict[str, Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    async def name() -> None:
        found = _render(task, operator, context)
        if found is None:
            log.warning(
                "map_index_template %r of task %s wants a name that is neither in the context nor in the item",
                operator.options.map_index_template,
                task.claimed,
            )
        else:
            await _write(task, found)

    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await fn(*args, **kwargs)
            finally:
                await name()

        return call_async

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            task.perform_blocking(name)

    return call


def _render(task: TaskRun, operator: BaseOperator, context: dict[str, Any]) -> str | None:
    try:
        return str(
            Renderer(operator, {**decode(task.claimed.args), **context}, open_values(task)).render(operator.options.map_index_template, "map_index_template")
        )
    except AuthoringError:
        return None


async def _write(task: TaskRun, name: str) -> None:
    token = await task.claimed.settled_token()
    await task.services.call_again(calls.name_instance(task.claimed.run, task.claimed.ti, token, name))
