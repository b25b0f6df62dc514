"""Runs ONE claimed task: finds its code, replays what the ledger holds, runs the rest, commits the end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from functools import partial
from typing import Any

from onceflow.authoring import registry
from onceflow.authoring.context import here
from onceflow.authoring.deferral import TaskDeferred, TaskRescheduled, TaskWaits
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.signature import unbind
from onceflow.authoring.workflow import Workflow
from onceflow.codec import decode, encode, encode_error, inputs_hash
from onceflow.db import calls
from onceflow.engine.arguments import fit_arguments
from onceflow.engine.causes import encode_failure, find_causes
from onceflow.engine.claimed import Claimed
from onceflow.engine.forms import ContinueAs
from onceflow.engine.history import MANY_ENTRIES, History
from onceflow.engine.place import Place
from onceflow.engine.record import Record
from onceflow.engine.run_dag_task import find_task, run_dag_task
from onceflow.engine.run_step import elapsed_us
from onceflow.engine.run_try import run_try
from onceflow.engine.scopes import Scope
from onceflow.engine.services import Services
from onceflow.engine.succession import NewerCode
from onceflow.engine.task_run import TaskRun
from onceflow.engine.user_code import call_user
from onceflow.engine.waits import Suspended
from onceflow.errors import LeaseLost, NonDeterminismError, NotFound, SkipTask

log = logging.getLogger("onceflow.task")
UNWIND_S = 5.0
LOOK_S = 0.5  # how soon it is noticed that a body waits, when no call told


async def run_task(services: Services, claimed: Claimed) -> None:
    """Runs a claimed task to its end, its next retry, its suspension or its named stop; each is one transaction.

    Raises nothing but CancelledError: an error of the user's code is the task's outcome, a lost lease ends it silently.
    """
    started = time.perf_counter()
    history = History(await services.call_again(calls.load_history(claimed.run, claimed.ti)) if claimed.entries else None, strict=claimed.epoch == 0)
    task = TaskRun(services, claimed, history)
    if claimed.entries >= MANY_ENTRIES:
        log.warning("long history: each replay reads all of it; go on with continue_as(...)", extra={"task": str(claimed), "entries": claimed.entries})
    try:
        await _run_claimed(task, started)
    except LeaseLost as error:
        log.warning("LeaseLost: %s: %s", claimed, error, extra={"task": str(claimed)})


async def _run_claimed(task: TaskRun, started: float) -> None:
    """Whatever is raised on the way is recorded as the task's failure, a LeaseLost too: the user's code may have raised it, and if it is
    true, the failure cannot be recorded either."""
    claimed = task.claimed
    try:
        if claimed.kind == "body":
            await _run_body(task, started)
        elif claimed.kind == "task":
            await _run_dag_task(task, started)
        else:
            await _run_step(task, started)
    except Exception as error:
        await _fail(task, Record(claimed, claimed.task_id, claimed.task_id, claimed.kind, "null", "", whole=True), error, started, None, [])


async def _run_step(task: TaskRun, started: float) -> None:
    claimed = task.claimed
    step = registry.find_step(claimed.fn or claimed.dag_id)
    values = fit_arguments(decode(claimed.args), step.signature, step.hints, step.name)
    record = Record(claimed, claimed.task_id, step.name, step.kind, claimed.args, inputs_hash(claimed.args), claimed.try_number, whole=True)
    args, kwargs = unbind(step.signature, values)
    mode: Any = "external" if step.kind == "external" else "transaction"
    try:
        await run_try(task.services, record, step, args, kwargs, Place(task, Scope("", task.seen), mode, step.is_async, claimed.task_id, claimed.try_number))
    except Exception as error:
        await _fail(task, record, error, started, step.retry)
    else:
        _log_end(task, "success", started)


async def _run_dag_task(task: TaskRun, started: float) -> None:
    claimed = task.claimed
    record = Record(claimed, claimed.task_id, claimed.task_id, "external", "null", "", claimed.try_number, whole=True)
    try:
        operator = find_task(claimed)
    except NotFound as error:
        if task.services.is_stale():
            raise NewerCode(f"{claimed}: {error}; the files were edited, and a successor of this worker has them") from None
        await _fail(task, record, error, started, None)
        return
    try:
        await run_dag_task(task, record, operator)
    except SkipTask as skip:
        text = encode_error(skip)
        await task.services.record(record, lambda: record.skip(text, elapsed_us(started)))
        _log_end(task, "skipped", started)
    except TaskWaits as wait:
        await _leave(task, record, operator, wait, started)
        return
    except Exception as error:
        await _fail(task, record, error, started, operator.retry)
    else:
        _log_end(task, "success", started)
    if operator is not None and (operator.dag.listens or operator.options.listens()):
        task.services.callbacks.set()


async def _leave(task: TaskRun, record: Record, operator: BaseOperator, wait: TaskWaits, started: float) -> None:
    """The task gives its lease back until something happens."""
    if isinstance(wait, TaskRescheduled):
        await task.services.record(record, lambda: record.reschedule(wait, elapsed_us(started)))
    else:
        assert isinstance(wait, TaskDeferred)
        limit = operator.options.execution_timeout
        await task.services.record(record, lambda: record.defer(wait, limit.total_seconds() if limit else None, elapsed_us(started)))
    log.info("left", extra={"task": str(task.claimed), "waits": type(wait).__name__})
    task.services.wake_soon()


async def _run_body(task: TaskRun, started: float) -> None:
    claimed = task.claimed
    workflow = registry.find_workflow(claimed.dag_id)
    record = Record(claimed, claimed.task_id, workflow.name, "body", claimed.args, inputs_hash(claimed.args), claimed.try_number, whole=True)
    error: BaseException | None = None
    output = "null"
    try:
        value = await _call_body(task, workflow, fit_arguments(decode(claimed.args), workflow.signature, workflow.hints, workflow.name))
        if task.fatal is None and not task.is_suspended:
            task.refuse(partial(task.history.check_all_called, task.seen))
            output = encode(value, where=workflow.name, limit=task.services.settings.max_value_bytes)
    except asyncio.CancelledError:
        raise
    except BaseException as raised:
        error = task.tame(_find_signal(raised), f"the body of {workflow.name}")
    if task.is_suspended:
        await task.services.record(record, lambda: calls.defer_task(*claimed.owner, encode(task.suspended_on)))
        log.info("deferred", extra={"task": str(claimed), "waits": len(task.suspended_on)})
        return
    error = task.fatal or error
    if isinstance(error, ContinueAs):
        args = encode(error.arguments, where=workflow.name, limit=task.services.settings.max_value_bytes)
        await task.services.record(
            record, lambda: calls.continue_run(*claimed.owner, record.name, record.inputs, record.inputs_hash, args, elapsed_us(started))
        )
        task.services.wake_soon()
    elif error is None:
        await task.services.record(record, lambda: record.complete(output, elapsed_us(started)))
        _log_end(task, "success", started)
    elif isinstance(task.fatal, NonDeterminismError) and task.history.recorded_version() not in (None, claimed.code_version):
        await _stop(task, record, task.fatal)
    elif isinstance(task.fatal, LeaseLost):
        raise task.fatal
    else:
        await _fail(task, record, error, started, workflow.retry, [] if task.fatal is not None else find_causes(error) or None)


async def _call_body(task: TaskRun, workflow: Workflow[..., Any], values: dict[str, Any]) -> Any:
    """The body's result. An async body is a task of its own; a plain one has a thread of its own."""
    args, kwargs = unbind(workflow.signature, values)
    place = Place(task, Scope("", task.seen), "body", workflow.is_async, task.claimed.task_id, task.claimed.try_number)
    context = contextvars.copy_context()
    context.run(here.set, place)
    if workflow.is_async:
        body: asyncio.Future[Any] = task.loop.create_task(workflow.fn(*args, **kwargs), context=context)
    else:
        task.branches.follow_thread()
        body = _start_thread(task, lambda: context.run(workflow.fn, *args, **kwargs), str(task.claimed))
    try:
        await _await_body(task, body)
    except asyncio.CancelledError:
        task.end(Suspended())  # what a finally: still calls is not recorded
        body.cancel()
        await asyncio.wait([body], timeout=UNWIND_S)
        raise
    finally:
        for path in await task.branches.end_all(0.1 if task.is_ignored else UNWIND_S):
            task.forget_branch(path)
    if not body.done():
        body.cancel()  # it hangs in a finally: what it does there is not recorded anyway
        return None
    if body.cancelled():
        raise RuntimeError(f"the body of {workflow.name} was cancelled by its own code")
    return body.result()


async def _await_body(task: TaskRun, body: asyncio.Future[Any]) -> None:
    """Until the body has ended, or has had its time to unwind after it was suspended or lost."""
    patience_s = UNWIND_S
    while not body.done() and patience_s > 0 and not task.is_ignored:
        await asyncio.wait([body], timeout=LOOK_S)
        if task.is_suspended or task.fatal is not None:
            patience_s -= LOOK_S
        else:
            task.consider_suspending()


def _find_signal(error: BaseException) -> BaseException:
    """A task group wraps what a strand raised: continue_as is no error."""
    while isinstance(error, BaseExceptionGroup) and (found := error.subgroup(ContinueAs)) is not None:
        error = found.exceptions[0]
    return error


def _start_thread(task: TaskRun, work: Any, name: str) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = task.loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    def run() -> None:
        value, error = None, None
        try:
            value = call_user(work, f"the body of {name}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the worker has ended without us
            task.loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def _stop(task: TaskRun, record: Record, error: NonDeterminismError) -> None:
    """The named stop: a worker with the code that wrote the ledger can go on."""
    version = task.history.recorded_version() or ""
    text = encode_error(NonDeterminismError(f"{error} (recorded by code version {version}, this worker has {task.claimed.code_version})"))
    await task.services.record(record, lambda: calls.stop_run(*task.claimed.owner, version, text))
    log.warning("needs code", extra={"task": str(task.claimed), "version": version, "difference": str(error)})


async def _fail(task: TaskRun, record: Record, error: BaseException, started: float, retry: Any, causes: list[str] | None = None) -> None:
    """`causes`: the steps whose failures it comes from; None when that is not known, as it may be all of them."""
    text = encode_error(error) if causes is None else encode_failure(error, causes)
    again = retry is not None and retry.is_worth_it(error)
    delay_s = retry.delay_s(task.claimed.try_number) if again else 0.0
    answer = await task.services.record(record, lambda: record.fail(text, again, delay_s, elapsed_us(started)))
    state = answer["state"] if isinstance(answer, dict) else "failed"
    _log_end(task, state, started, error)


def _log_end(task: TaskRun, state: str, started: float, error: BaseException | None = None) -> None:
    if task.claimed.is_awaited:
        task.services.wake_soon()
    extra = {"task": str(task.claimed), "state": state, "try": task.claimed.try_number, "ms": elapsed_us(started) // 1000}
    log.log(logging.WARNING if error else logging.INFO, "task ended", exc_info=error, extra=extra)
