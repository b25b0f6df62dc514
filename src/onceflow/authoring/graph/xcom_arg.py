"""References to what a task will give, and the arrows between tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from onceflow.authoring.graph.derived import concat_lists, filter_items, map_items, zip_lists
from onceflow.authoring.step import Step
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.graph.group import TaskGroup
    from onceflow.authoring.graph.operator import BaseOperator

RETURN_VALUE = "return_value"


class Arrows:
    """`a >> b`, `a << b`, and the same with lists, for anything that stands for tasks."""

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        """The tasks an arrow from here leaves (first=False), or an arrow to here reaches (first=True)."""
        raise NotImplementedError

    def set_downstream(self, others: Any) -> None:
        """Draws an arrow from here to each of the others."""
        for other in flatten(others):
            other.receive_arrow(self)

    def receive_arrow(self, above: Arrows) -> None:
        """The other end of `above >> self`."""
        for task in above.list_ends(first=False):
            for below in self.list_ends(first=True):
                task.connect(below)

    def set_upstream(self, others: Any) -> None:
        """Draws an arrow from each of the others to here."""
        for other in flatten(others):
            other.set_downstream(self)

    def __rshift__(self, others: Any) -> Any:
        self.set_downstream(others)
        return others

    def __lshift__(self, others: Any) -> Any:
        self.set_upstream(others)
        return others

    def __rrshift__(self, others: Any) -> Any:
        self.set_upstream(others)
        return self

    def __rlshift__(self, others: Any) -> Any:
        self.set_downstream(others)
        return self


class XComArg(Arrows):
    """What a task will return, or push under `key`. In a dag's function it stands for the value, which is not there yet."""

    def __init__(self, operator: BaseOperator, key: str = RETURN_VALUE, origins: Sequence[BaseOperator] = ()) -> None:
        self.operator = operator
        self.key = key
        self.origins = origins  # the tasks whose outputs it was made from: who uses it depends on them too

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        return [self.operator]

    def __getitem__(self, key: str) -> XComArg:
        """One key of a task with multiple_outputs, or one that it pushes."""
        if not isinstance(key, str):
            raise AuthoringError(f"the output of task {self.operator.task_id} has no [{key!r}] while the dag is described; take it apart in a task of its own")
        if self.key != RETURN_VALUE:
            raise AuthoringError(f"the output of task {self.operator.task_id} has keys of one level; take [{self.key!r}][{key!r}] apart in a task of its own")
        return XComArg(self.operator, key)

    def map(self, fn: Callable[[Any], Any]) -> XComArg:
        """The list of `fn(item)`, made by a task of its own, `<task>__map`. Of a dict the items are its (key, value) pairs."""
        return self._derive("map", map_items(fn, f"map() of the output of task {self.operator.task_id}"), [])

    def filter(self, fn: Callable[[Any], Any] | None = None) -> XComArg:
        """The list of those items for which `fn(item)` is true (without fn: that are true themselves), made by a task of its own, `<task>__filter`."""
        return self._derive("filter", filter_items(fn, f"filter() of the output of task {self.operator.task_id}"), [])

    def zip(self, *others: Any, **fill: Any) -> XComArg:
        """The list of tuples of the first items, the second ones, …: as long as the shortest; with `fillvalue=` as long as the longest."""
        if unknown := fill.keys() - {"fillvalue"}:
            raise AuthoringError(f"zip() takes lists, outputs and fillvalue, not {min(unknown)}")
        return self._derive("zip", zip_lists(fill), others)

    def concat(self, *others: Any) -> XComArg:
        """The list of all their items, one list after the other."""
        return self._derive("concat", concat_lists(), others)

    def _derive(self, verb: str, step: Step[..., Any], others: Sequence[Any]) -> XComArg:
        """A small task that makes a list out of lists. It runs on what there is (none_failed); those who use it see how its sources ended, too."""
        lists = [self, *others]
        task_id = f"{self.operator.task_id.rpartition('.')[2]}__{verb}"
        made: XComArg = self.operator.dag.add_step(step, (lists,), {}, {"task_id": task_id, "trigger_rule": "none_failed"})
        return XComArg(made.operator, origins=list({task.task_id: task for one in find_references(lists) for task in (one.operator, *one.origins)}.values()))

    def __iter__(self) -> Iterator[Any]:
        self._refuse("be looped over or unpacked; use expand() for a task per item")

    def __bool__(self) -> bool:
        self._refuse("be tested; use a branching task")

    def _refuse(self, what: str) -> NoReturn:
        raise AuthoringError(f"the output of task {self.operator.task_id} is not there yet while the dag is described, so it cannot {what}")

    def __str__(self) -> str:
        """Inside a text, as f"echo {extract.output}": a template that pulls the value; in a mapped group, of the same item. Draw the arrow yourself."""
        here, group = self.operator.dag.open_group, self.operator.mapped_group
        index = ", map_indexes=ti.map_index" if group is not None and here is not None and here.find_mapped() is group else ""
        return f"{{{{ ti.xcom_pull(task_ids={self.operator.task_id!r}, key={self.key!r}{index}) }}}}"

    def __repr__(self) -> str:
        return f"<output {self.key} of {self.operator.task_id}>"


class MappedArgument(XComArg):
    """Stands for one parameter of the item, inside a mapped group."""

    def __init__(self, group: TaskGroup, name: str, default: Any) -> None:
        self.group, self.name, self.default, self.key, self.origins = group, name, default, name, ()

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        return self.group.list_sources()

    def take(self, item: dict[str, Any]) -> Any:
        """Its value for one item."""
        if self.name in item:
            return item[self.name]
        if self.default is inspect.Parameter.empty:
            raise AuthoringError(f"the item of mapped group {self.group.group_id} has no {self.name!r}; it has {sorted(item)}")
        return self.default

    def __getitem__(self, key: str) -> XComArg:
        self._refuse("be taken apart")

    def _derive(self, verb: str, step: Step[..., Any], others: Sequence[Any]) -> XComArg:
        self._refuse(f"have a {verb}()")

    def _refuse(self, what: str) -> NoReturn:
        raise AuthoringError(
            f"{self.name!r} of mapped group {self.group.group_id} stands for one item, so it cannot {what} while the dag is described; use it in a task"
        )

    def __str__(self) -> str:
        self._refuse("stand inside a text")

    def __repr__(self) -> str:
        return f"<{self.name} of an item of {self.group.group_id}>"


def flatten(others: Any) -> Iterator[Arrows]:
    """One by one what an arrow leads to; anything that is no task, group or output raises AuthoringError."""
    for other in others if isinstance(others, Sequence) and not isinstance(others, str) else [others]:
        if not isinstance(other, Arrows):
            raise AuthoringError(f"an arrow leads to tasks, groups, their outputs or lists of these, not to {other!r}")
        yield other


def find_references(value: Any) -> Iterator[XComArg]:
    """Every reference to an output inside a value: in lists, tuples, sets and dicts at any depth."""
    return (found for found in _find_arguments(value) if not isinstance(found, MappedArgument))


def find_item_arguments(value: Any) -> Iterator[MappedArgument]:
    """Every parameter of an item inside a value."""
    return (found for found in _find_arguments(value) if isinstance(found, MappedArgument))


def _find_arguments(value: Any) -> Iterator[XComArg]:
    if isinstance(value, XComArg):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _find_arguments(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _find_arguments(item)


def fill_references(value: Any, values: dict[tuple[str, str], Any], item: dict[str, Any]) -> Any:
    """The value with each reference replaced by what (task_id, key) gave, or by what the mapped group's item has."""
    if isinstance(value, MappedArgument):
        return value.take(item)
    if isinstance(value, XComArg):
        return values[value.operator.task_id, value.key]
    if isinstance(value, dict):
        return {key: fill_references(part, values, item) for key, part in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(fill_references(part, values, item) for part in value)
    return value


def chain(*tasks: Any) -> None:
    """Draws arrows along the arguments; two lists of one length are joined pairwise.

    >>> chain(extract, [clean, check], load)   # doctest: +SKIP
    """
    for left, right in pairwise(tasks):
        if isinstance(left, Sequence) and isinstance(right, Sequence):
            if len(left) != len(right):
                raise AuthoringError(f"chain() joins two lists only when they have one length; these have {len(left)} and {len(right)}")
            for above, below in zip(left, right, strict=True):
                above.set_downstream(below)
        elif isinstance(left, Sequence):
            right.set_upstream(left)
        else:
            left.set_downstream(right)


def cross_downstream(from_tasks: Sequence[Any], to_tasks: Sequence[Any]) -> None:
    """Draws an arrow from each of the first to each of the second."""
    for task in from_tasks:
        task.set_downstream(to_tasks)
