"""One task of a dag by itself, to try it out."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.operator import BaseOperator, MappedOperator
from onceflow.authoring.graph.step_operator import StepOperator
from onceflow.authoring.graph.xcom_arg import RETURN_VALUE, MappedArgument, XComArg
from onceflow.checks import show
from onceflow.errors import AuthoringError, NotFound


@contextmanager
def one_task(dag: DAG, task_id: str, given: dict[str, Any] | None = None) -> Iterator[None]:
    """For the block, the dag has this task alone.

    `given` are the outputs of other tasks by task id; what is not given is None. A task that decides keeps those directly downstream as joints, to choose from.
    Raises NotFound for an unknown task, AuthoringError for an output that cannot be what the task is expanded over.
    """
    given = given or {}
    for name in (task_id, *given):
        if name not in dag.tasks:
            raise NotFound(f"dag {dag.dag_id} has no task {name!r}; it has {', '.join(sorted(dag.tasks))}")
    before = dag.tasks, dag.labels
    task = _set_free(dag.tasks[task_id])
    _give_values(task, given)
    below = [_set_free(one) for one in dag.tasks[task_id].downstream.values()] if task.decides else []
    for one in below:
        one.__class__, one.mapping, one.mapped_group = _Joint, None, None
        one.upstream[task_id], task.downstream[one.task_id] = task, one
    dag.tasks, dag.labels = {one.task_id: one for one in (task, *below)}, {}
    try:
        yield
    finally:
        dag.tasks, dag.labels = before


def _set_free(task: BaseOperator) -> BaseOperator:
    """The same task without arrows, and without what they mean for it."""
    free = copy.copy(task)
    free.upstream, free.downstream, free.setups = {}, {}, []
    free.options = replace(task.options, trigger_rule="all_success", is_setup=False, is_teardown=False, on_failure_fail_dagrun=False)
    return free


class _Joint(BaseOperator):
    """Stands for a task that might go on."""

    @property
    def operator_name(self) -> str:
        return "EmptyOperator"

    @property
    def kind(self) -> str:
        return "external"

    def list_arguments(self) -> list[Any]:
        return []


def _give_values(task: BaseOperator, given: dict[str, Any]) -> None:
    """In place of references to what other tasks would have given."""
    if isinstance(task, StepOperator):
        task.arguments = _fill(task.arguments, given)
    elif isinstance(task, MappedOperator):
        task.fixed = _fill(task.fixed, given)
    else:
        for name in task.template_fields:
            if hasattr(task, name):
                setattr(task, name, _fill(getattr(task, name), given))
    if task.mapping is not None:
        task.mapping = [(parameter, _fill(source, given)) for parameter, source in task.mapping]
        for parameter, source in task.mapping:
            if not isinstance(source, list | tuple | dict):
                wanted = f"task {task.task_id} is expanded over {parameter or 'the output of a task'}"
                raise AuthoringError(f"{wanted}, for which {show(source)} was given; give a list or a dict as the output of that task")


def _fill(value: Any, given: dict[str, Any]) -> Any:
    if isinstance(value, MappedArgument):
        return value
    if isinstance(value, XComArg):
        found = given.get(value.operator.task_id)
        return found if value.key == RETURN_VALUE else found.get(value.key) if isinstance(found, dict) else None
    if isinstance(value, dict):
        return {key: _fill(part, given) for key, part in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_fill(part, given) for part in value)
    return value
