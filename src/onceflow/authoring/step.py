"""`@step`: one unit of work that the ledger records once.

A step whose first parameter is a database connection is transactional: its writes, its ledger entry and the state of its
task commit in one transaction, exactly once. Any other step is external: a `started` entry is committed before it runs,
its completion after; it runs at least once, and `idempotency_key()` is stable over its tries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from onceflow.authoring import registry
from onceflow.authoring.connection_kinds import ASYNC_KINDS
from onceflow.authoring.context import find_here, need_here
from onceflow.authoring.retry import RetryPolicy
from onceflow.authoring.signature import bind, check_function, read_connection, read_hints, reference, visible_signature
from onceflow.authoring.task_options import TaskOptions
from onceflow.authoring.trace import need_tracer, tracer
from onceflow.checks import check_choice, check_duration, check_flag, check_name, check_text, show
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    import sqlalchemy
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Isolation = Literal["read committed", "repeatable read", "serializable"]
Decision = Literal["branch", "short_circuit", "short_circuit_all"]
STEP_OPTIONS = frozenset({"name", "execution_timeout", "transactional", "group_commit", "isolation", "isolate", "database"})
TASK_OPTIONS = frozenset({"task_id", *TaskOptions.names()})


class Step(Generic[P, R]):
    """A declared step. Call it inside a workflow's body; `fn` is the plain function, for tests.

    Attributes: `name` (also its ledger name), `kind` ("transactional", "external", "sql", or "outpost": transactional in another database), `retry` (its RetryPolicy),
    `execution_timeout` (of one try; None = no limit), `isolation`, `group_commit`, `isolate`, `database`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        execution_timeout: timedelta | None = None,
        transactional: bool | None = None,
        group_commit: bool = False,
        isolation: Isolation = "read committed",
        isolate: Literal["thread", "process"] = "thread",
        database: str | None = None,
        text: str | None = None,
        task_options: dict[str, Any] | None = None,
        decides: Decision | None = None,
    ) -> None:
        is_local = tracer.get() is not None  # declared inside a dag's function: a worker finds it in the dag
        where = check_function(fn, "step", may_be_local=is_local, may_yield=bool((task_options or {}).get("outlets")))
        self.fn = fn
        self.name = check_name(fn.__name__ if name is None else name, where, error=AuthoringError)
        self.reference = reference(fn)
        self.hints = read_hints(fn, "step")
        self.connection = read_connection(fn, self.hints)
        self.text = text
        self.kind = "sql" if text else "external" if not self.connection else "outpost" if database else "transactional"
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = visible_signature(fn, skip_first=self.connection is not None)
        self.retry = RetryPolicy() if retry is None else retry
        self.execution_timeout = execution_timeout
        self.group_commit, self.isolation, self.isolate, self.database = group_commit, isolation, isolate, database
        self.__name__, self.__qualname__, self.__doc__, self.__module__ = fn.__name__, fn.__qualname__, fn.__doc__, fn.__module__
        self._check_options(where)
        self._check_kind(transactional)
        self.task_options = dict(task_options or {})
        self.decides = decides  # does its output say which tasks of a dag go on?
        if not is_local:
            registry.add_step(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Inside a run: executed once, recorded, replayed. In a dag's function: adds a task. Outside: an external step is simply called."""
        if (dag := tracer.get()) is not None:
            return cast(R, dag.add_step(cast("Step[..., Any]", self), args, kwargs, {}))
        here = find_here(f"step {self.name}")
        if here is not None:
            return cast(R, here.call_step(self, args, kwargs, from_other_colour=False))
        if self.kind != "external":
            raise AuthoringError(
                f"step {self.name} is {self.kind}: outside a run it has no transaction to join. Call {self.name}.fn(conn, ...) in a test of your own."
            )
        return cast(R, self.fn(*args, **kwargs))

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Calls a `def` step from an `async def` body; it runs in a thread."""
        here = need_here(f"step {self.name}.aio")
        return cast("Coroutine[Any, Any, R]", here.call_step(self, args, kwargs, from_other_colour=True))

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Runs the step as a task of its own, in parallel, on any worker; answers a handle with `result()` for a body to wait for.

        Inside a transactional step it is the outbox: the intent commits with the step's writes, delivery follows. The step may
        return the handle. A task begun so that fails for good fails its run.
        """
        return need_here(f"step {self.name}.start").start_step(cast("Step[..., Any]", self), args, kwargs)

    def override(self, **options: Any) -> StepForm:
        """In a dag's function: the step with other task options (task_id, pool, trigger_rule, …) for the call that follows."""
        return StepForm(cast("Step[..., Any]", self), {}, options)

    def partial(self, **fixed: Any) -> StepForm:
        """In a dag's function: arguments that all mapped instances share; `expand` follows."""
        return StepForm(cast("Step[..., Any]", self), fixed, {})

    def expand(self, **mapped: Any) -> Any:
        """In a dag's function: one instance for each item of a list, dict or output; of several, for each combination."""
        return StepForm(cast("Step[..., Any]", self), {}, {}).expand(**mapped)

    def expand_kwargs(self, mapped: Any) -> Any:
        """In a dag's function: one instance for each dict of arguments."""
        return StepForm(cast("Step[..., Any]", self), {}, {}).expand_kwargs(mapped)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return bind(self.signature, self.name, args, kwargs)

    def _check_options(self, where: str) -> None:
        if not isinstance(self.retry, RetryPolicy):
            raise AuthoringError(f"{where}: retry must be a RetryPolicy, not {show(self.retry)}")
        if self.execution_timeout is not None:
            check_duration(self.execution_timeout, f"{where}: execution_timeout", error=AuthoringError)
        check_flag(self.group_commit, f"{where}: group_commit", error=AuthoringError)
        check_choice(self.isolation, f"{where}: isolation", ("read committed", "repeatable read", "serializable"), error=AuthoringError)
        check_choice(self.isolate, f"{where}: isolate", ("thread", "process"), error=AuthoringError)
        if self.database is not None:
            check_text(self.database, f"{where}: database", error=AuthoringError)

    def _check_kind(self, transactional: bool | None) -> None:
        where = f"step {self.name} in {self.__module__}"
        if transactional is not None and transactional != (self.kind != "external"):
            raise AuthoringError(f"{where} is {self.kind} by its first parameter, but transactional={transactional} was asserted")
        if self.connection is not None and self.is_async != (self.connection in ASYNC_KINDS):
            fault, cure = ("async", "its async sibling, or a plain def") if self.is_async else ("a plain def", "async def, or psycopg.Connection")
            raise AuthoringError(f"{where} is {fault} but asks for a connection of the other colour ({self.connection}); use {cure}")
        if database_fault := self._database_fault():
            raise AuthoringError(f"{where}: {database_fault}")
        if group_commit_fault := self._group_commit_fault():
            raise AuthoringError(f"{where}: group_commit=True {group_commit_fault}")

    def _database_fault(self) -> str | None:
        if self.database is None or self.connection is not None:
            return None
        return f"database={self.database!r} needs a connection as its first parameter; that is the one to the other database"

    def _group_commit_fault(self) -> str | None:
        if not self.group_commit:
            return None
        if self.kind not in ("transactional", "sql"):
            return "is for transactional and SQL steps; completions of external steps are grouped anyway"
        return "and an isolation above read committed exclude each other" if self.isolation != "read committed" else None

    def __repr__(self) -> str:
        return f"<{self.kind} step {self.reference}>"


class StepForm:
    """A step on its way into a dag: with some of its arguments and options set."""

    def __init__(self, step: Step[..., Any], fixed: dict[str, Any], options: dict[str, Any]) -> None:
        self._step, self._fixed, self._options = step, fixed, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return need_tracer(f"step {self._step.name}.override").add_step(self._step, args, {**self._fixed, **kwargs}, self._options)

    def override(self, **options: Any) -> StepForm:
        return StepForm(self._step, self._fixed, {**self._options, **options})

    def partial(self, **fixed: Any) -> StepForm:
        return StepForm(self._step, {**self._fixed, **fixed}, self._options)

    def expand(self, **mapped: Any) -> Any:
        return need_tracer(f"step {self._step.name}.expand").map_step(self._step, self._fixed, mapped, self._options)

    def expand_kwargs(self, mapped: Any) -> Any:
        return need_tracer(f"step {self._step.name}.expand_kwargs").map_step_kwargs(self._step, self._fixed, mapped, self._options)


if TYPE_CHECKING:
    C = TypeVar(
        "C",
        asyncpg.Connection[Any],
        psycopg.Connection[Any],
        psycopg.AsyncConnection[Any],
        sqlalchemy.orm.Session,
        sqlalchemy.ext.asyncio.AsyncSession,
        sqlalchemy.Connection,
        sqlalchemy.ext.asyncio.AsyncConnection,
    )

    class Declared(Protocol):
        @overload
        def __call__(self, fn: Callable[Concatenate[C, P], T], /) -> Step[P, T]: ...
        @overload
        def __call__(self, fn: Callable[P, T], /) -> Step[P, T]: ...


class StepDecorator:
    """Declares a step; bare, or with options.

    `retries=3` means up to 4 tries, `retry_delay` apart (or give a whole RetryPolicy as `retry`). `execution_timeout` limits
    one try. `transactional=True|False` asserts the kind. `isolation="serializable"` makes serialization failures replay.
    As a task of a dag (`task` is the same decorator) it takes the options of TaskOptions too.

    >>> @step(retries=3, retry_delay=timedelta(seconds=1))
    ... def fetch_rate(currency: str) -> str:
    ...     return "1.08"
    >>> fetch_rate("USD")
    '1.08'
    """

    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], T]) -> Step[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T]) -> Step[P, T]: ...
    @overload
    def __call__(
        self,
        fn: None = None,
        *,
        name: str | None = ...,
        retries: int = ...,
        retry_delay: timedelta = ...,
        retry: RetryPolicy | None = ...,
        execution_timeout: timedelta | None = ...,
        transactional: bool | None = ...,
        group_commit: bool = ...,
        isolation: Isolation = ...,
        isolate: Literal["thread", "process"] = ...,
        database: str | None = ...,
        **task_options: Any,
    ) -> Declared: ...
    def __call__(self, fn: Any = None, **options: Any) -> Any:
        return self._declare(fn, None, **options)

    def _declare(self, fn: Any, decides: Decision | None, *, retry: RetryPolicy | None = None, **options: Any) -> Any:
        if unknown := options.keys() - STEP_OPTIONS - TASK_OPTIONS:
            raise AuthoringError(f"@step: there is no option {min(unknown)!r}; it takes {', '.join(sorted(STEP_OPTIONS | TASK_OPTIONS | {'retry'}))}")
        task_options = {name: options[name] for name in options if name in TASK_OPTIONS}
        policy = TaskOptions().replaced({name: value for name, value in task_options.items() if name != "task_id"}, "@step").retry_policy()
        if retry is not None:
            if policy != RetryPolicy():
                raise AuthoringError("@step: give retries and retry_delay, or a whole RetryPolicy as retry, not both")
            policy = retry
        options = {name: value for name, value in options.items() if name in STEP_OPTIONS}

        def declare(function: Callable[..., Any]) -> Step[..., Any]:
            return Step(function, retry=policy, task_options=task_options, decides=decides, **options)

        return declare if fn is None else declare(fn)

    def branch(self, fn: Any = None, **options: Any) -> Any:
        """In a dag: a task that answers the id of the task (or group) directly downstream that goes on, a list of such, or None; the others are skipped.

        >>> @task.branch
        ... def choose(day: int) -> str:
        ...     return "weekend" if day > 4 else "workday"
        """
        return self._declare(fn, "branch", **options)

    def short_circuit(self, fn: Any = None, *, ignore_downstream_trigger_rules: bool = True, **options: Any) -> Any:
        """In a dag: a task after which the rest is skipped when it answers something false; its output is True or False.

        All that comes after it is skipped, but for teardowns; with ignore_downstream_trigger_rules=False only what is directly downstream, and trigger
        rules decide the rest.
        """
        return self._declare(fn, "short_circuit_all" if ignore_downstream_trigger_rules else "short_circuit", **options)


step = StepDecorator()
task = step


def sql_step(text: str, *, name: str, retries: int = 0, retry_delay: timedelta = timedelta(0), group_commit: bool = False) -> Step[..., Any]:
    """A step that is one SQL statement, with $1, $2… for its arguments; answers the rows it returns as a list of objects.

    PostgreSQL runs, records and commits it in one round trip. `group_commit=True` lets many small ones share a transaction.

    >>> archive = sql_step("insert into archive select * from payment where day = $1::text::date", name="archive")
    >>> archive.kind
    'sql'
    """

    check_name(name, "sql_step", error=AuthoringError)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise AuthoringError(f"sql_step {name}: the first argument must be the text of one SQL statement, not {show(text)}")

    def fn(*args: Any) -> Any:
        raise AuthoringError(f"SQL step {name} has no plain function")

    fn.__name__ = name
    frame = inspect.currentframe()
    fn.__module__ = frame.f_back.f_globals.get("__name__", __name__) if frame and frame.f_back else __name__
    fn.__qualname__ = name
    return Step(fn, name=name, text=text, retry=RetryPolicy(retries=retries, delay=retry_delay), group_commit=group_commit)
