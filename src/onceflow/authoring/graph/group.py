"""Task groups: tasks that are shown, named and connected as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onceflow.authoring.graph.mapping import Mapping, check_expand, check_source
from onceflow.authoring.graph.xcom_arg import Arrows, MappedArgument, find_references
from onceflow.authoring.trace import need_tracer
from onceflow.checks import check_name
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.graph.dag import DAG
    from onceflow.authoring.graph.operator import BaseOperator


class TaskGroup(Arrows):
    """Tasks described inside `with TaskGroup("load"):` are named `load.…`; an arrow to the group leads to its first tasks, one from it leaves its last ones.

    Groups may lie in each other. `default_args` are those of its tasks, over the dag's. `prefix_group_id=False` leaves the tasks' ids as they are.
    Teardowns are no last tasks: what follows the group does not wait for them.
    """

    def __init__(
        self,
        group_id: str,
        *,
        prefix_group_id: bool = True,
        tooltip: str = "",
        default_args: dict[str, Any] | None = None,
        dag: DAG | None = None,
        may_repeat: bool = False,
        mapping: Mapping | None = None,
    ) -> None:
        found: Any = dag or need_tracer(f"TaskGroup({group_id!r})")
        self.dag: DAG = found
        self.parent = self.dag.open_group
        self.group_id = self.dag.name_task(check_name(group_id, f"a task group of dag {self.dag.dag_id}", error=AuthoringError), may_repeat=may_repeat)
        self.prefix = f"{self.group_id}." if prefix_group_id else (self.parent.prefix if self.parent else "")
        self.tooltip = tooltip
        self.default_args = {**(self.parent.default_args if self.parent else {}), **(default_args or {})}
        self.mapping = mapping  # over what it is expanded; None: it is not mapped
        if mapping is not None:
            where = f"task group {self.group_id} of dag {self.dag.dag_id}"
            if outer := self.parent and self.parent.find_mapped():
                raise AuthoringError(f"{where} is inside the mapped group {outer.group_id}, so it cannot be expanded; expand one of the two, over both lists")
            for parameter, source in mapping:
                check_source(where, parameter, source)
        self.dag.groups[self.group_id] = self

    def find_mapped(self) -> TaskGroup | None:
        """The mapped group that this one is, or is in."""
        group: TaskGroup | None = self
        while group is not None and group.mapping is None:
            group = group.parent
        return group

    def list_sources(self) -> list[BaseOperator]:
        """The tasks it is expanded over."""
        found = [task for _, source in self.mapping or () for one in find_references(source) for task in (one.operator, *one.origins)]
        return list({task.task_id: task for task in found}.values())

    def list_tasks(self) -> list[BaseOperator]:
        """Its tasks, those of groups inside it too."""
        return [task for task in self.dag.tasks.values() if self.contains(task)]

    def contains(self, task: BaseOperator) -> bool:
        group = task.group
        while group is not None and group is not self:
            group = group.parent
        return group is self

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        inside = {task.task_id: task for task in self.list_tasks()}
        if first:
            return [task for task in inside.values() if not task.upstream.keys() & inside.keys()]
        work = {name: task for name, task in inside.items() if not task.options.is_teardown}
        return [task for task in work.values() if not task.downstream.keys() & work.keys()]

    def __enter__(self) -> TaskGroup:
        self.dag.open_group = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.dag.open_group = self.parent
        for source in self.list_sources():
            for task in self.list_ends(first=True):
                source.connect(task)

    def __repr__(self) -> str:
        return f"<group {self.group_id} of dag {self.dag.dag_id}>"


class GroupFunction:
    """A function under @task_group: each call in a dag describes a group of its name; the call answers what the function returns, or the group."""

    def __init__(self, fn: Callable[..., Any], group_id: str | None, options: dict[str, Any]) -> None:
        self.fn, self.group_id, self.options = fn, group_id or fn.__name__, options
        wraps(fn)(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with TaskGroup(self.group_id, may_repeat=True, **self.options) as group:
            found = self.fn(*args, **kwargs)
        return group if found is None else found

    def override(self, *, group_id: str | None = None, **options: Any) -> GroupFunction:
        """The same with another group_id or other options, for the call that follows."""
        return GroupFunction(self.fn, group_id or self.group_id, {**self.options, **options})

    def partial(self, **fixed: Any) -> GroupForm:
        """Arguments that are the same for all items; `expand` follows."""
        return GroupForm(self, fixed)

    def expand(self, **mapped: Any) -> Any:
        """The group once for each item of a list, dict or output (of several: for each combination). Inside, item i depends on item i only."""
        return GroupForm(self, {}).expand(**mapped)

    def expand_kwargs(self, mapped: Any) -> Any:
        """The group once for each dict of arguments."""
        return GroupForm(self, {}).expand_kwargs(mapped)


class GroupForm:
    """A group function on its way into a dag, with some of its arguments set."""

    def __init__(self, function: GroupFunction, fixed: dict[str, Any]) -> None:
        self._function, self._fixed, self._signature = function, fixed, inspect.signature(function.fn)

    def expand(self, **mapped: Any) -> Any:
        check_expand(f"task group {self._function.group_id}", self._fixed, mapped)
        return self._describe(list(mapped.items()), list(mapped))

    def expand_kwargs(self, mapped: Any) -> Any:
        return self._describe([("", mapped)], [name for name in self._signature.parameters if name not in self._fixed])

    def _describe(self, mapping: Mapping, names: list[str]) -> Any:
        function = self._function
        self._signature.bind(**self._fixed, **dict.fromkeys(names))
        with TaskGroup(function.group_id, may_repeat=True, mapping=mapping, **function.options) as group:
            found = function.fn(**self._fixed, **{name: MappedArgument(group, name, self._signature.parameters[name].default) for name in names})
        return group if found is None else found


def task_group(fn: Any = None, *, group_id: str | None = None, **options: Any) -> Any:
    """Declares a task group as a function; bare, or with the options of TaskGroup.

    >>> @task_group
    ... def load(rows):
    ...     write(check(rows))
    """
    if isinstance(fn, str):
        group_id, fn = fn, None

    def declare(function: Callable[..., Any]) -> GroupFunction:
        tooltip = (function.__doc__ or "").strip().split("\n")[0]
        return GroupFunction(function, group_id, {"tooltip": tooltip} | options)

    return declare if fn is None else declare(fn)
