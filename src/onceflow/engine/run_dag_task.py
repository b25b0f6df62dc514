"""Runs a claimed task of a dag: its code from the dag, its arguments from what upstream tasks gave."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from datetime import timedelta
from typing import Any

from onceflow.authoring import registry
from onceflow.authoring.context_names import fill_context
from onceflow.authoring.deferral import read_event
from onceflow.authoring.graph.operator import BaseOperator, MappedOperator
from onceflow.authoring.graph.step_operator import StepOperator
from onceflow.authoring.graph.xcom_arg import RETURN_VALUE, XComArg, fill_references, find_references
from onceflow.authoring.signature import unbind
from onceflow.authoring.step import Step
from onceflow.codec import decode, encode, inputs_hash
from onceflow.db import calls, dag_calls
from onceflow.engine.arguments import fit_arguments
from onceflow.engine.callbacks import call_all
from onceflow.engine.claimed import Claimed
from onceflow.engine.last_success import asks_for_last_success, read_last_success
from onceflow.engine.map_names import name_instance
from onceflow.engine.mapped_values import describe_pages, load_value, read_pages
from onceflow.engine.outlet_events import read_triggering_events
from onceflow.engine.place import Place
from onceflow.engine.read_named import open_values
from onceflow.engine.record import Record
from onceflow.engine.run_try import run_try
from onceflow.engine.scopes import Scope
from onceflow.engine.task_context import task_context
from onceflow.engine.task_end import end_with
from onceflow.engine.task_run import TaskRun
from onceflow.engine.templates import Renderer, is_template
from onceflow.errors import EncodingError, NotFound, StepTimeout

log = logging.getLogger("onceflow.task")


def find_task(claimed: Claimed) -> BaseOperator:
    """The task as this worker's file describes it."""
    dag = registry.find_dag(claimed.dag_id)
    try:
        return dag.tasks[claimed.task_id]
    except KeyError:
        raise NotFound(f"dag {claimed.dag_id} has no task {claimed.task_id!r} any more in {dag.fileloc}; it has {sorted(dag.tasks)}") from None


async def run_dag_task(task: TaskRun, record: Record, operator: BaseOperator) -> None:
    """Runs one try of the task and commits its end; raises what the user's code raises, or LeaseLost."""
    record.pushed = {}
    check_limit(record, operator, task.claimed.resume)
    task.context = context = task_context(task, operator, record.pushed)
    if context["dag_run"].run_type == "dataset_triggered":
        rows = await task.services.call_again(dag_calls.read_run_events(task.claimed.run))
        context["triggering_dataset_events"] = read_triggering_events(rows)
    if asks_for_last_success(operator):
        context |= await read_last_success(task)
    await call_all(task.services, operator.options.on_execute_callback, context, f"on_execute_callback of {task.claimed}")
    if isinstance(operator, StepOperator):
        step = operator.step
        record.kind = step.kind
        args, kwargs = await prepare_arguments(task, record, operator, context)
    else:
        step = operator.make_step()
        record.kind = step.kind
        step = make_step(await prepare_operator(task, record, operator, context), task.claimed.resume)
        args, kwargs = (context,), {}
    step = copy.copy(step)
    if task.claimed.resume is not None and step.execution_timeout is not None:
        step.execution_timeout = max(timedelta(milliseconds=1), step.execution_timeout - timedelta(seconds=task.claimed.resume["used_s"]))
    context["ti"].is_elsewhere = context["outlet_events"].is_elsewhere = step.kind == "outpost"
    step.fn = end_with(task, operator, context["ti"], record.pushed, await name_instance(task, operator, context, step.fn))
    mode: Any = "external" if step.kind == "external" else "transaction"
    await run_try(task.services, record, step, args, kwargs, Place(task, Scope("", task.seen), mode, step.is_async, record.key, record.try_number))


def make_step(operator: BaseOperator, resume: dict[str, Any] | None) -> Step[..., Any]:
    """The operator's execute; after a wait, the method that it goes on with, if there is another. Raises what ended the wait otherwise."""
    if resume is None or resume["method"] == "execute":
        return operator.make_step()
    try:
        event = read_event(resume)
    except Exception as error:
        event = operator.settle_wait(error)
    return operator.make_step(resume["method"], {"event": event, **decode(json.dumps(resume["kwargs"]))})


def check_limit(record: Record, operator: BaseOperator, resume: dict[str, Any] | None) -> None:
    """The time limit of a try goes on while it waits."""
    if resume is not None and resume.get("event") == {"$over": "limit"}:
        raise StepTimeout(f"task {record.key} exceeded its execution_timeout of {operator.options.execution_timeout} while it waited")


async def prepare_arguments(task: TaskRun, record: Record, operator: StepOperator, context: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a @task function is called with: what the dag's file says, rendered, with the outputs it refers to, and what it wants of the context."""
    step, item = operator.step, decode(task.claimed.args)
    in_file = {name for name, source in operator.mapping or () if not isinstance(source, XComArg)}  # what comes from tasks is data, never a template
    texts = {name: value for name, value in item.items() if name in in_file or "" in in_file}
    written, renderer = [operator.arguments, texts], None
    if is_template(written):
        renderer = Renderer(operator, context, open_values(task))
        written = await in_a_thread(task, lambda: [{name: renderer.render(value, name) for name, value in part.items()} for part in written])
    arguments, item = written[0], {**item, **written[1]}
    pages = await read_pages(task, operator, arguments)
    given = await fill_arguments(task, operator, {name: value for name, value in arguments.items() if name not in pages}, item)
    if operator.mapped_group is None:
        given = {**item, **given}  # in a mapped group, arguments take of the item what they want
    plain = _record_inputs(task, record, given | describe_pages(pages), renderer)
    filled = fill_context(step.signature, {**decode(plain), **pages}, context)
    return unbind(step.signature, fit_arguments(filled, step.signature, step.hints, record.key))


async def prepare_operator(task: TaskRun, record: Record, operator: BaseOperator, context: dict[str, Any]) -> BaseOperator:
    """The operator with its template fields rendered and filled; they are the task's recorded inputs."""
    data: set[str] = set()
    if isinstance(operator, MappedOperator):
        item = decode(task.claimed.args)
        data = operator.data_fields(item)
        operator = operator.make_instance(item)
    renderer = Renderer(operator, context, open_values(task), data)
    item = decode(task.claimed.args) if operator.mapped_group else {}
    fields = await fill_arguments(task, operator, await in_a_thread(task, renderer.render_fields), item)
    ready = copy.copy(operator)
    for name, value in fields.items():
        setattr(ready, name, value)
    try:
        _record_inputs(task, record, fields, renderer)
    except EncodingError:
        _record_inputs(task, record, {name: _shown(value) for name, value in fields.items()}, renderer)  # the file may hold any object
    return ready


def _record_inputs(task: TaskRun, record: Record, given: dict[str, Any], renderer: Renderer | None) -> str:
    """Keeps the inputs for the record, secrets masked; answers their text as it is."""
    text = encode(given, where=f"arguments of task {record.key}", limit=task.services.settings.max_value_bytes)
    record.inputs = renderer.secrets.mask(text) if renderer else text
    record.inputs_hash = inputs_hash(record.inputs)
    return text


def _shown(value: Any) -> Any:
    try:
        encode(value)
    except EncodingError:
        return repr(value)
    return value


async def in_a_thread(task: TaskRun, work: Any) -> Any:
    """Templates may pull from the database, and wait for it."""
    return await asyncio.get_running_loop().run_in_executor(task.services.threads, work)


async def fill_arguments(task: TaskRun, operator: BaseOperator, arguments: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """The arguments with what their references stand for; one query, none when there are no references. In a mapped group, with what the item has."""
    wanted = {(one.operator.task_id, one.key): _name_value(task, operator, one) for one in find_references(arguments)}
    if not wanted:
        return dict(fill_references(arguments, {}, item))
    texts = await task.services.call_again(calls.read_values(task.claimed.run, json.dumps(list(wanted.values()))))
    values = {pair: None if text is None else await load_value(task, decode(text)) for pair, text in zip(wanted, texts, strict=True)}
    for pair, (name, key, *index) in wanted.items():
        if values[pair] is None and key != RETURN_VALUE and task.services.store is not None:
            values[pair] = await _take_key(task, [name, RETURN_VALUE, *index], key)
    return dict(fill_references(arguments, values, item))


def _name_value(task: TaskRun, operator: BaseOperator, reference: XComArg) -> list[Any]:
    """How read_values calls it. Of a task beside this one in a mapped group, only what its instance for the same item gave."""
    is_beside = operator.mapped_group is not None and reference.operator.mapped_group is operator.mapped_group
    return [reference.operator.task_id, reference.key, *([task.claimed.map_index] if is_beside else [])]


async def _take_key(task: TaskRun, named: list[Any], key: str) -> Any:
    """One key of a dict that was returned and lies elsewhere."""
    (text,) = await task.services.call_again(calls.read_values(task.claimed.run, json.dumps([named])))
    value = None if text is None else await load_value(task, decode(text))
    return value.get(key) if isinstance(value, dict) else None
