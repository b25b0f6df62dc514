"""`@workflow`: durable code. Each step inside is executed once, recorded, and replayed from the ledger after a crash."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from onceflow.authoring import registry
from onceflow.authoring.context import need_here
from onceflow.authoring.reading import declaring_file
from onceflow.authoring.retry import RetryPolicy
from onceflow.authoring.signature import START_OPTIONS, bind, check_function, read_connection, read_hints, reference
from onceflow.authoring.testing import Setup, run_test
from onceflow.checks import check_duration, check_name, check_queue, check_text
from onceflow.errors import AuthoringError

P = ParamSpec("P")
R = TypeVar("R")

TEST_OPTIONS = frozenset({"setup", "dsn"})


class Workflow(Generic[P, R]):
    """A declared workflow. Start it with `Client.start`; calling it directly raises, since it would not be durable."""

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        queue: str = "default",
        code_version: str | None = None,
    ) -> None:
        where = check_function(fn, "workflow")
        self.fn = fn
        self.name = check_name(fn.__name__ if name is None else name, where, error=AuthoringError)
        self.reference = reference(fn)
        self.fileloc = declaring_file(fn.__code__.co_filename)
        self.hints = read_hints(fn, "workflow")
        self.signature = inspect.signature(fn)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.retry = retry or RetryPolicy()
        self.timeout = None if timeout is None else check_duration(timeout, f"{where}: timeout", error=AuthoringError)
        self.queue = check_queue(queue, f"{where}: queue", error=AuthoringError)
        self.code_version = None if code_version is None else check_text(code_version, f"{where}: code_version", error=AuthoringError)
        self.__name__, self.__qualname__, self.__doc__, self.__module__ = fn.__name__, fn.__qualname__, fn.__doc__, fn.__module__
        self._check()
        registry.add_workflow(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise AuthoringError(
            f"workflow {self.name} was called directly: that would not be durable. Start it with Client(...).start({self.name}, ...), "
            f"in a body as a child run with {self.name}.start(...), or in a test with {self.name}.test(...)."
        )

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """In a body or a step: starts a child run, in one transaction with its record; answers a handle with `result()`. Cancelled with its parent.

        Inside a transactional step the child is there when, and only when, the step commits; the step may return the handle.
        """
        return ChildStart(self, None).start(*args, **kwargs)

    def using(self, *, deduplicate: str) -> ChildStart[P, R]:
        """In a body: a child start with an option, fully typed: `refresh.using(deduplicate="rates").start(day)`. See Client.start for what it means."""
        return ChildStart(self, check_text(deduplicate, "deduplicate"))

    def test(self, *args: Any, setup: Setup | Sequence[Setup] = (), dsn: str | None = None, timeout: float | timedelta | None = None, **kwargs: Any) -> R:
        """Runs the workflow in this process, on a throw-away database, and answers its result, or raises its error.

        The database is one of the bundled Postgres in .onceflow/, dropped afterwards. `setup` prepares it, as login app: SQL text, the path
        of a file of SQL, a function of a psycopg connection, or several of these. Waits for a time (sleep, retry delays) are skipped; `timeout`
        limits the run. A worker runs beside, in threads of its own: this call works in a plain script, under pytest and in a notebook, and
        breakpoints work. With `dsn`: on that database, for real and in real time, as a run of type test; it says so on stderr.
        `onceflow.Trial` runs several workflows on one throw-away database, and looks into it.

        Raises WaitTimeout if the run waits for what cannot come any more, such as a message.

        >>> transfer.test(1, 2, 10, setup="create table account (id int primary key, balance int)")  # doctest: +SKIP
        'moved 10'
        """
        if taken := TEST_OPTIONS & set(self.signature.parameters):
            raise AuthoringError(
                f"{self.name}.test: the workflow's own parameters {sorted(taken)} are named like options of test. "
                f"Keep them apart: with Trial(setup) as trial: trial.run({self.name}, ...)"
            )
        return run_test("workflow", self, args, kwargs, setup=setup, dsn=dsn, timeout=timeout)  # type: ignore[no-any-return]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return bind(self.signature, self.name, args, kwargs)

    def source_version(self) -> str:
        """The code version: as declared, else a digest of the file that holds the workflow (12 hex digits)."""
        if self.code_version:
            return self.code_version
        return file_version(getattr(sys.modules.get(self.fn.__module__), "__file__", None))

    def _check(self) -> None:
        where = f"workflow {self.name} in {self.__module__}"
        if taken := START_OPTIONS & set(self.signature.parameters):
            raise AuthoringError(f"{where}: the parameter names {sorted(taken)} are start options of Client.start; rename them")
        if read_connection(self.fn, self.hints) is not None:
            raise AuthoringError(f"{where} takes a connection; a workflow has no transaction of its own. Move the database work into a @step.")
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in self.signature.parameters.values()):
            raise AuthoringError(f"{where} takes *args or **kwargs; name its parameters, so that a start can be checked and read")

    def __repr__(self) -> str:
        return f"<workflow {self.name} {self.reference}>"


class ChildStart(Generic[P, R]):
    """A child start with its options fixed, so that type checkers see the workflow's own signature."""

    def __init__(self, workflow: Workflow[P, R], deduplicate: str | None) -> None:
        self._workflow, self._deduplicate = workflow, deduplicate

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As Workflow.start."""
        workflow = self._workflow
        place = need_here(f"workflow {workflow.name}.start")
        return place.form("start_child", workflow=workflow, arguments=workflow.bind(args, kwargs), deduplicate=self._deduplicate)


def file_version(file: str | None) -> str:
    """The code version of what a file declares: a digest of its text (12 hex digits)."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file and Path(file).exists() else "unknown"


class WorkflowDecorator(Protocol):
    """What `workflow(...)` with options answers."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]: ...
@overload
def workflow(fn: Callable[P, R]) -> Workflow[P, R]: ...
@overload
def workflow(
    fn: None = None,
    *,
    name: str | None = ...,
    retries: int = ...,
    retry_delay: timedelta = ...,
    timeout: timedelta | None = ...,
    queue: str = ...,
    code_version: str | None = ...,
) -> WorkflowDecorator: ...
def workflow(
    fn: Any = None,
    *,
    name: str | None = None,
    retries: int = 0,
    retry_delay: timedelta = timedelta(0),
    timeout: timedelta | None = None,
    queue: str = "default",
    code_version: str | None = None,
) -> Any:
    """Declares a workflow; bare, or with options.

    The body may use if, for, while, gather; it must take the same path for the same step results (no clock, no random
    of its own: `onceflow.now`, `random`, `uuid4` are recorded). `timeout` limits a whole run. `retries` re-run a failed
    body: its successful steps are reused.

    >>> @workflow
    ... async def hello(name: str) -> str:
    ...     return f"hello {name}"
    >>> hello.name
    'hello'
    """
    policy = RetryPolicy(retries=retries, delay=retry_delay)

    def declare(function: Callable[..., Any]) -> Workflow[..., Any]:
        return Workflow(function, name=name, retry=policy, timeout=timeout, queue=queue, code_version=code_version)

    return declare if fn is None else declare(fn)
