"""What the instances of a mapped task gave, for a task that takes all of it: a list, or one that is read page by page."""

from __future__ import annotations

import asyncio
import collections.abc
import json
from typing import TYPE_CHECKING, Any, get_origin

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.step_operator import StepOperator
from onceflow.authoring.graph.xcom_arg import MappedArgument, XComArg
from onceflow.codec import decode
from onceflow.codec.paged import PagedList
from onceflow.db import calls
from onceflow.engine.stored_values import StoredValue, load_stored
from onceflow.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from onceflow.engine.task_run import TaskRun

MOST_AT_ONCE = 1000  # more values than these are read page by page, where nothing says that a list is wanted
_LAZY = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, collections.abc.Reversible)


async def load_value(task: TaskRun, value: Any) -> Any:
    """A value that lies elsewhere is fetched in a thread."""
    if isinstance(value, StoredValue | list):
        return await asyncio.get_running_loop().run_in_executor(task.services.threads, load_stored, task.services.store, value)
    return value


async def open_pages(task: TaskRun, task_id: str, key: str, most: int) -> PagedList | None:
    """The values of a mapped task's instances, in the order of their numbers, when there are more than `most`."""
    numbers = await task.services.call_again(calls.list_values(task.claimed.run, task_id, key))
    if len(numbers) <= most:
        return None

    def fetch(start: int, stop: int) -> list[Any]:
        if asyncio._get_running_loop() is task.loop:
            raise InvalidArgument(f"the values of task {task_id} are read page by page in a def task's own thread; make a list of them there: list(values)")
        return list(task.perform_blocking(lambda: _read(task, task_id, key, numbers[start:stop])))

    return PagedList(len(numbers), fetch, f"task {task_id}")


async def _read(task: TaskRun, task_id: str, key: str, numbers: list[int]) -> list[Any]:
    texts = await task.services.call_again(calls.read_values(task.claimed.run, json.dumps([[task_id, key, number] for number in numbers])))
    for number, text in zip(numbers, texts, strict=True):
        if text is None:
            raise NotFound(f"task {task_id}[{number}] has been cleared since this task began, and its value with it; this task will run again")
    return [await load_value(task, decode(text)) for text in texts]


async def read_pages(task: TaskRun, operator: StepOperator, arguments: dict[str, Any]) -> dict[str, PagedList]:
    """Those arguments of a def task that are read page by page: annotated as Sequence or Iterable, or not annotated and long."""
    found = {}
    for name, value in arguments.items():
        if (most := _find_limit(operator, name, value)) is not None:
            pages = await open_pages(task, value.operator.task_id, value.key, most)
            if pages is not None:
                found[name] = pages
    return found


def _find_limit(operator: StepOperator, name: str, value: Any) -> int | None:
    """How many values the parameter takes at once; None: all."""
    if not isinstance(value, XComArg) or isinstance(value, MappedArgument) or value.operator.mapping is None or _is_beside(operator, value.operator):
        return None
    if operator.step.is_async or operator.step.isolate == "process":
        return None
    hint = operator.step.hints.get(name, Any)
    return MOST_AT_ONCE if hint is Any else 0 if (get_origin(hint) or hint) in _LAZY else None


def _is_beside(operator: BaseOperator, other: BaseOperator) -> bool:
    return operator.mapped_group is not None and other.mapped_group is operator.mapped_group


def describe_pages(pages: dict[str, PagedList]) -> dict[str, Any]:
    """What the ledger keeps of them as inputs: the values stand there already, as outputs."""
    return {name: {"values_of": values.what, "count": len(values)} for name, values in pages.items()}


def make_lists(value: Any) -> Any:
    """The value with lists in place of those read page by page, so that it can be recorded."""
    if isinstance(value, PagedList):
        return list(value)
    if type(value) is dict:
        return {key: make_lists(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(make_lists(item) for item in value)
    return value
