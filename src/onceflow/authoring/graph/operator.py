"""A task of a dag: its place in the graph, its options, and the work it does."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from onceflow.authoring.deferral import BaseTrigger, TaskDeferred, check_trigger
from onceflow.authoring.graph.execute_step import ExecuteStep
from onceflow.authoring.graph.mapping import Mapping, check_expand, set_mapping
from onceflow.authoring.graph.xcom_arg import Arrows, XComArg, find_references
from onceflow.authoring.step import Decision, Step
from onceflow.authoring.task_options import TaskOptions
from onceflow.authoring.trace import need_tracer
from onceflow.checks import check_name
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.graph.dag import DAG


class BaseOperator(Arrows):
    """A task whose work is `execute(context)`; write your own by inheriting.

    `task_id` names it within its dag. The other arguments are TaskOptions; what is not given comes from the dag's
    default_args. Made inside a dag's function or `with DAG(...)`, it belongs to that dag.

    `execute` may be a def or an async def, and what it returns is the task's output. As with steps, a connection as its first parameter
    makes it transactional: its writes, the record and the task's state commit in one transaction. Without one it is external.

    >>> class Greet(BaseOperator):
    ...     template_fields = ("name",)
    ...     def __init__(self, task_id, *, name, **options):
    ...         super().__init__(task_id, **options)
    ...         self.name = name
    ...     def execute(self, context):
    ...         return f"Hello, {self.name}, on {context['ds']}"
    """

    template_fields: ClassVar[tuple[str, ...]] = ()  # attributes in which {{ }} is rendered before execute; recorded as the task's inputs
    template_ext: ClassVar[tuple[str, ...]] = ()  # a template field that ends so names a file beside the dag's
    decides: Decision | None = None  # does its output say which tasks go on?
    database: str | None = None  # another registered database, to which execute's connection leads

    def __init__(self, task_id: str, *, dag: DAG | None = None, **options: Any) -> None:
        found: Any = dag or need_tracer(f"{type(self).__name__}({task_id!r})")
        self.dag: DAG = found
        self.task_id = self.dag.name_task(check_name(task_id, f"a task of dag {found.dag_id}", error=AuthoringError), may_repeat=self.may_repeat)
        self.group = self.dag.open_group
        self.options: TaskOptions = self.dag.merge_options(options, f"task {self.task_id} of dag {self.dag.dag_id}")
        self.retry = self.options.retry_policy()
        self.upstream: dict[str, BaseOperator] = {}
        self.downstream: dict[str, BaseOperator] = {}
        self.mapped_group = self.group.find_mapped() if self.group else None
        self.mapping: Mapping | None = self.mapped_group.mapping if self.mapped_group else None  # over what it, or its mapped group, is expanded
        self.setups: list[BaseOperator] = []  # of a teardown, while its `with` block is open
        self.dag.add_task(self)

    may_repeat: ClassVar[bool] = False  # the second of a name is name__1

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """The task's work: `execute(self, context)`, or `execute(self, conn: asyncpg.Connection, context)`; what it returns is its output."""
        raise NotImplementedError(f"{type(self).__name__} has no execute(context)")

    def defer(self, *, trigger: BaseTrigger, method_name: str, kwargs: dict[str, Any] | None = None, timeout: timedelta | None = None) -> NoReturn:
        """Call it in `execute`: the task gives its slot back, and goes on with `method_name(context, event=…, **kwargs)` when the trigger has fired.

        What execute wrote is rolled back; it is the same try that goes on, and its execution_timeout goes on too. After `timeout` the try fails with WaitTimeout.
        """
        check_trigger(trigger, timeout, f"defer of task {self.task_id}")
        if not callable(getattr(self, method_name, None)):
            raise AuthoringError(f"defer of task {self.task_id}: {type(self).__name__} has no method {method_name!r} to go on with")
        raise TaskDeferred(trigger, method_name, kwargs, timeout)

    def settle_wait(self, error: Exception) -> Any:
        """What to go on with when a wait ended with an error (WaitTimeout, or TriggerFailed): an event, or raise one that says more."""
        raise error

    @classmethod
    def partial(cls, task_id: str, **fixed: Any) -> OperatorForm:
        """Arguments that all instances share; `.expand(name=list)` or `.expand_kwargs(list_of_dicts)` follows, and makes a mapped task of the class."""
        return OperatorForm(cls, task_id, fixed)

    def make_step(self, method: str = "execute", given: dict[str, Any] | None = None) -> Step[..., Any]:
        """What a worker runs: execute, or the method with which it goes on after a wait, with this task's policy and limit."""
        return ExecuteStep(getattr(self, method), self.task_id, self.retry, self.options.execution_timeout, self.database, given)

    @property
    def kind(self) -> str:
        """transactional, external, sql or outpost, read from execute's signature."""
        return self.make_step().kind

    def follow_fields(self) -> None:
        """Arrows to here from the tasks whose outputs stand in template fields."""
        self.follow(self.list_arguments())

    def list_arguments(self) -> list[Any]:
        """Where outputs of other tasks may stand."""
        return [getattr(self, name, None) for name in self.template_fields]

    def as_setup(self) -> Self:
        """Marks it as a setup: what comes after it depends on its success, and its teardown runs only if it succeeded."""
        self.options = replace(self.options, is_setup=True)
        return self

    def as_teardown(self, *, setups: BaseOperator | XComArg | list[Any] | None = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Marks it as a teardown: it runs once all upstream tasks have ended, if a setup of it succeeded; its failure fails no run unless you say so.

        As a context manager it takes in the tasks of the block: they run after its setups and before it.
        """
        fails = self.options.on_failure_fail_dagrun if on_failure_fail_dagrun is None else on_failure_fail_dagrun
        self.options = replace(self.options, is_teardown=True, on_failure_fail_dagrun=fails, trigger_rule="all_done_setup_success")
        for setup in setups if isinstance(setups, list | tuple) else [setups] if setups is not None else []:
            for task in setup.list_ends(first=False):
                task.as_setup().connect(self)
                self.setups.append(task)
        return self

    def __enter__(self) -> Self:
        self._known_before = set(self.dag.tasks)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if not self.options.is_teardown:
            raise AuthoringError(f"`with` over task {self.task_id} works for a teardown: with {self.task_id}.as_teardown(setups=…):")
        inside = {name: task for name, task in self.dag.tasks.items() if name not in self._known_before}
        for task in inside.values():
            if not task.upstream.keys() & inside.keys():
                for setup in self.setups:
                    setup.connect(task)
            if not task.downstream.keys() & inside.keys():
                task.connect(self)

    @property
    def operator_name(self) -> str:
        return type(self).__name__

    @property
    def output(self) -> XComArg:
        """What it will return, for the arguments of other tasks."""
        return XComArg(self)

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        return [self]

    def connect(self, below: BaseOperator, label: str | None = None) -> None:
        """One arrow, from this task to another of its dag; a label is shown beside it."""
        if below.dag is not self.dag:
            raise AuthoringError(f"task {self.task_id} of dag {self.dag.dag_id} cannot lead to task {below.task_id} of dag {below.dag.dag_id}; use datasets")
        self.downstream[below.task_id] = below
        below.upstream[self.task_id] = self
        if label is not None:
            self.dag.labels[self.task_id, below.task_id] = label

    def follow(self, value: Any) -> None:
        """Arrows to here from every task whose output stands inside the value."""
        for reference in find_references(value):
            for task in (reference.operator, *reference.origins):
                task.connect(self)

    def __repr__(self) -> str:
        return f"<task {self.task_id} of dag {self.dag.dag_id}>"


class EmptyOperator(BaseOperator):
    """A task that does nothing: a joint in the graph."""

    def execute(self, context: dict[str, Any]) -> None:
        return None

    @property
    def operator_name(self) -> str:
        """With outlets it has something to do: it is run, and its success tells them."""
        return "EmptyOperator with outlets" if self.options.outlets else "EmptyOperator"


class OperatorForm:
    """An operator on its way into a dag, with some of its arguments set."""

    def __init__(self, kind: type[BaseOperator], task_id: str, fixed: dict[str, Any]) -> None:
        self._kind, self._task_id, self._fixed = kind, task_id, fixed

    def expand(self, **mapped: Any) -> MappedOperator:
        """One instance for each item of a list, dict or output; of several, for each combination."""
        check_expand(f"{self._kind.__name__} {self._task_id}", self._fixed, mapped)
        return MappedOperator(self._kind, self._task_id, self._fixed, list(mapped.items()))

    def expand_kwargs(self, mapped: Any) -> MappedOperator:
        """One instance for each dict of arguments."""
        return MappedOperator(self._kind, self._task_id, self._fixed, [("", mapped)])


class MappedOperator(BaseOperator):
    """A mapped task of an operator class. Stands for the instances: each is made by a worker, of the class, with the fixed arguments and those of its item."""

    def __init__(self, kind: type[BaseOperator], task_id: str, fixed: dict[str, Any], mapping: Mapping) -> None:
        self.operator_class = kind
        super().__init__(task_id, **{name: value for name, value in fixed.items() if name in TaskOptions.names()})
        self.fixed, self.decides = fixed, kind.decides
        self.follow(fixed)
        set_mapping(self, mapping)

    @property
    def operator_name(self) -> str:
        return self.operator_class.__name__

    def make_step(self, method: str = "execute", given: dict[str, Any] | None = None) -> Step[..., Any]:
        bare = self.operator_class.__new__(self.operator_class)
        return ExecuteStep(bare.execute, self.task_id, self.retry, self.options.execution_timeout, self.fixed.get("database"))

    def make_instance(self, item: dict[str, Any]) -> BaseOperator:
        """The operator of one item; it belongs to the dag without being another task of it."""
        aside = copy.copy(self.dag)
        aside.tasks, aside.groups, aside.open_group = {}, {}, None
        made = self.operator_class(self.task_id, dag=aside, **{**self.fixed, **item})
        made.dag, made.group, made.options, made.retry = self.dag, self.group, self.options, self.retry
        made.upstream, made.downstream = self.upstream, self.downstream
        return made

    def data_fields(self, item: dict[str, Any]) -> set[str]:
        """What of the item comes from a task: data, which is never rendered."""
        names = {name for name, source in self.mapping or () if isinstance(source, XComArg)}
        return set(item) if "" in names else names
