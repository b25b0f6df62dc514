"""Over what a task is expanded: checked as it is described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.authoring.graph.xcom_arg import XComArg, find_references
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.graph.operator import BaseOperator

Mapping = list[tuple[str, Any]]  # parameter and source; "" stands for expand_kwargs


def set_mapping(task: BaseOperator, mapping: Mapping) -> None:
    """Makes a mapped task of it, with arrows from the tasks it is expanded over."""
    where = f"task {task.task_id} of dag {task.dag.dag_id}"
    if task.decides:
        raise AuthoringError(f"{where} decides which tasks go on, so it cannot be expanded; decide in a task after it")
    if group := task.mapped_group:
        raise AuthoringError(f"{where} is inside the mapped group {group.group_id}, so it cannot be expanded; expand one of the two, over both lists")
    for parameter, source in mapping:
        check_source(where, parameter, source)
        task.follow(source)
    task.mapping = mapping


def check_expand(name: str, fixed: dict[str, Any], mapped: dict[str, Any]) -> None:
    """Refuses an expand() over nothing, or over what partial() has set."""
    if not mapped:
        raise AuthoringError(f"expand() of {name} needs a parameter to expand over; to run it once, call it")
    if twice := fixed.keys() & mapped.keys():
        raise AuthoringError(f"{name}: {sorted(twice)} is given to both partial() and expand()")


def check_source(where: str, parameter: str, source: Any) -> None:
    """Refuses what nothing can be expanded over."""
    if isinstance(source, XComArg):
        return
    if not isinstance(source, (list, tuple, dict)):
        raise AuthoringError(f"{where}: expand({parameter}=…) takes a list, a dict or the output of a task, not {type(source).__name__}")
    if any(True for _ in find_references(source)):
        raise AuthoringError(f"{where}: expand({parameter}=…) takes a list of values or ONE output, not a list of outputs; collect them in a task")
