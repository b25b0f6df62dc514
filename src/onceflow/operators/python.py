"""Operators around a Python function; in new dags @task, @task.branch and @task.short_circuit say the same with less."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from onceflow.authoring.context_names import fill_context
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.step import Decision, Step
from onceflow.checks import show
from onceflow.errors import AuthoringError


class PythonOperator(BaseOperator):
    """Calls a function; what it returns is the task's output. Parameters named as something of the context, and `**context`, are filled in.

    >>> PythonOperator(task_id="sync_users", python_callable=sync_table, op_args=["users"])   # doctest: +SKIP
    """

    template_fields = ("op_args", "op_kwargs")

    def __init__(
        self,
        task_id: str,
        *,
        python_callable: Callable[..., Any],
        op_args: list[Any] | tuple[Any, ...] = (),
        op_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        where = f"task {self.task_id} of dag {self.dag.dag_id}"
        if isinstance(python_callable, Step):
            raise AuthoringError(f"{where}: python_callable is a step; call it in the dag, or pass its function: {python_callable.name}.fn")
        if not callable(python_callable):
            raise AuthoringError(f"{where}: python_callable must be a function, not {show(python_callable)}")
        if inspect.iscoroutinefunction(python_callable):
            raise AuthoringError(f"{where}: python_callable is an async def; put @task above it and call it in the dag")
        self.python_callable, self.op_args, self.op_kwargs = python_callable, list(op_args), dict(op_kwargs or {})
        self.follow_fields()

    def execute(self, context: dict[str, Any]) -> Any:
        signature = inspect.signature(self.python_callable)
        given = {**self.op_kwargs}
        names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        taken = set(names[: len(self.op_args)])
        filled = fill_context(signature, {**dict.fromkeys(taken), **given}, context)
        extra = {name: value for name, value in filled.items() if name not in taken and name in signature.parameters}
        for p in signature.parameters.values():
            if p.kind is p.VAR_KEYWORD:
                extra.update(extra.pop(p.name, {}))
        return self.python_callable(*self.op_args, **{**extra, **given})


class BranchPythonOperator(PythonOperator):
    """Its function answers the id of the task (or group) directly downstream that goes on, a list of such, or None; the others are skipped."""

    decides = "branch"


class ShortCircuitOperator(PythonOperator):
    """When its function answers something false, what comes after is skipped, but for teardowns; its output is True or False.

    `ignore_downstream_trigger_rules=False`: only what is directly downstream is skipped, and trigger rules decide the rest.
    """

    decides: Decision | None = "short_circuit_all"

    def __init__(self, task_id: str, *, ignore_downstream_trigger_rules: bool = True, **given: Any) -> None:
        super().__init__(task_id, **given)
        self.decides = "short_circuit_all" if ignore_downstream_trigger_rules else "short_circuit"
