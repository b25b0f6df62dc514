"""Is a dag being described right now? Then a call of a step adds a task to it and answers a reference."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from onceflow.authoring.step import Step


class Tracer(Protocol):
    """The dag that is being described; graph.dag implements it."""

    def add_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> Any: ...
    def map_step(self, step: Step[..., Any], fixed: dict[str, Any], mapped: dict[str, Any], options: dict[str, Any]) -> Any: ...
    def map_step_kwargs(self, step: Step[..., Any], fixed: dict[str, Any], mapped: Any, options: dict[str, Any]) -> Any: ...


tracer: ContextVar[Tracer | None] = ContextVar("onceflow_tracer", default=None)


def need_tracer(what: str) -> Tracer:
    """The dag being described; outside of one, an error that says so."""
    found = tracer.get()
    if found is None:
        raise AuthoringError(f"{what} works only while a dag is described: inside the function under @dag, or inside `with DAG(...)`")
    return found
