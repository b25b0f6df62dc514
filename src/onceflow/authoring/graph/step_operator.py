"""A step as a task of a dag: the step, its arguments, and what of them are references."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from onceflow.authoring.graph.mapping import Mapping, set_mapping
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.retry import RetryPolicy
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.step import Step


class StepOperator(BaseOperator):
    """What a call of a step adds to the dag that is being described."""

    may_repeat = True

    def __init__(self, step: Step[..., Any], arguments: dict[str, Any], options: dict[str, Any], mapping: Mapping | None = None) -> None:
        given = {**step.task_options, **options}
        super().__init__(given.pop("task_id", step.name), **given)
        self.step = copy.copy(step)  # with this task's own policy and limit
        if step.retry != RetryPolicy() and not given.keys() & {"retries", "retry_delay"}:
            self.retry = step.retry  # given whole
        self.step.retry, self.step.execution_timeout = self.retry, self.options.execution_timeout
        self.decides = step.decides
        if step.isolate == "process" and (step.decides or self.options.multiple_outputs):
            raise AuthoringError(
                f"task {self.task_id} of dag {self.dag.dag_id} runs in a process of its own, so it can neither branch nor have multiple_outputs"
            )
        self.arguments = arguments
        self.follow(arguments)
        if mapping is not None:
            set_mapping(self, mapping)

    def list_arguments(self) -> list[Any]:
        return list(self.arguments.values())

    def make_step(self, method: str = "execute", given: dict[str, Any] | None = None) -> Step[..., Any]:
        return self.step

    @property
    def operator_name(self) -> str:
        return "@task" if self.step.kind == "external" else f"@task {self.step.kind}"
