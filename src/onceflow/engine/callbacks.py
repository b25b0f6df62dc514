"""Callbacks of dags and tasks: called by a worker after the commit, at least once; what they raise is logged and changes no state."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from onceflow.authoring import registry
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.codec import decode_error
from onceflow.db import calls
from onceflow.engine.services import Services
from onceflow.engine.task_context import TaskInstance, build_context, read_run
from onceflow.engine.user_code import call_user

log = logging.getLogger("onceflow.callback")
PATIENCE_S = 60.0  # who has taken a callback and not dropped it by then is thought dead
_OPTION = {"success": "on_success_callback", "failed": "on_failure_callback", "up_for_retry": "on_retry_callback", "skipped": "on_skipped_callback"}


async def run_callbacks(services: Services) -> None:
    """Calls, for ever, what is to be called of the dags of this process."""
    dags = [dag.dag_id for dag in registry.list_dags() if dag.listens or dag.deadlines or any(task.options.listens() for task in dag.tasks.values())]
    while dags:
        services.callbacks.clear()
        try:
            for item in await services.call_again(calls.take_callbacks(dags, 10, PATIENCE_S)):
                services.callbacks.set()  # there may be more
                await _call_one(services, item)
                await services.call_again(calls.drop_callback(item["id"]))
        except Exception as error:
            log.warning("callbacks cannot be called: %s; trying again", error)
            services.callbacks.clear()
        try:
            async with asyncio.timeout(services.settings.poll_s):
                await services.callbacks.wait()
        except TimeoutError:
            pass


async def _call_one(services: Services, item: dict[str, Any]) -> None:
    """One event of a task, or of a run. A task that has left the file since has nobody to call."""
    try:
        dag = registry.find_dag(item["dag_id"])
        operator = dag.tasks.get(item["task_id"]) if item["ti"] else None
        if item["ti"] and operator is None:
            return
        context = _context(dag, operator, item)
    except Exception as error:
        log.error("callback not called: %s", error, extra={"dag": item["dag_id"], "run": item["run_id"], "event": item["event"]})
        return
    if item["event"] == "deadline":
        option, called = "deadline", context["deadline"].callback if context["deadline"] else None
    else:
        option = _OPTION[item["event"]]
        called = getattr(dag if operator is None else operator.options, option)
    await call_all(services, called, context, f"{option} of {item['dag_id']}/{item['run_id']}/{item['task_id'] or ''}")


def _context(dag: DAG, operator: BaseOperator | None, item: dict[str, Any]) -> dict[str, Any]:
    run = read_run(dag, run=item["run"], run_id=item["run_id"], logical_date=item["logical_date"], dag_run=item["dag_run"])
    ti = None
    if operator is not None:
        ti = TaskInstance(item["dag_id"], item["run_id"], item["task_id"], item["map_index"], item["try_number"], item["max_tries"] + 1, item["event"])
    error = None if item["error"] is None else decode_error(item["error"])
    of_deadline = {}
    if item["event"] == "deadline":  # its file may have fewer by now
        of_deadline = {"deadline": dag.deadlines[item["try_number"] - 1] if item["try_number"] <= len(dag.deadlines) else None}
    return {**build_context(dag, run, operator, ti), "reason": item["event"], "exception": error, **of_deadline}


async def call_all(services: Services, called: Any, context: dict[str, Any], what: str) -> None:
    """Calls one function, or each of a list, in a thread, a coroutine function here; never raises."""
    for one in called if isinstance(called, list | tuple) else [called] if called is not None else []:
        try:
            if asyncio.iscoroutinefunction(one):
                await one(context)
            else:
                await asyncio.get_running_loop().run_in_executor(services.threads, call_user, lambda one=one: one(context), what)
        except Exception:
            log.exception("%s raised; the state stays as it is", what)
