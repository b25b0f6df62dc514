"""Where the running code is: inside a body, a step, or nowhere. The engine fills it in; authoring only asks."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from onceflow.errors import AuthoringError, LostContext

if TYPE_CHECKING:
    from onceflow.authoring.step import Step


class Here(Protocol):
    """One place in a run: its methods are what the engine offers to the code that stands there."""

    @property
    def run_id(self) -> str: ...
    @property
    def dag_id(self) -> str: ...
    @property
    def step_key(self) -> str: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def try_number(self) -> int: ...
    @property
    def context(self) -> dict[str, Any] | None: ...
    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, from_other_colour: bool) -> Any: ...
    def start_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def form(self, name: str, /, **arguments: Any) -> Any: ...
    def gather(self, branches: tuple[Awaitable[Any], ...], return_exceptions: bool) -> Any: ...
    def first_of(self, branches: tuple[Awaitable[Any], ...]) -> Any: ...
    def timeout(self, branch: Awaitable[Any], seconds: float) -> Any: ...
    def read_named(self, kind: str, name: str, **options: Any) -> Any: ...
    def open_commit(self, connection: type[Any]) -> Any: ...


here: ContextVar[Here | None] = ContextVar("onceflow_here", default=None)

_workers = 0


@contextmanager
def worker_process() -> Iterator[None]:
    """Meanwhile, in the whole process, a step called outside any run is an error, not a plain call: it would go unrecorded."""
    global _workers
    _workers += 1
    try:
        yield
    finally:
        _workers -= 1


def find_here(what: str) -> Here | None:
    """The present place; None outside any run in an ordinary process. In a worker process that raises LostContext."""
    place = here.get()
    if place is None and _workers:
        raise LostContext(
            f"{what} was called in a worker process but outside any run: in a bare thread or a task without the run's context. "
            "It would go unrecorded. Call it from the body itself, or use step.start(...) to run it in parallel."
        )
    return place


def need_here(what: str) -> Here:
    """The present place; outside any run, an error that says so."""
    place = find_here(what)
    if place is None:
        raise AuthoringError(f"{what} works only inside a running workflow or step; start one with Client(...).start(...)")
    return place
