"""A step's connection: for each annotation a binding that opens, begins, finishes and abandons it.

`binding_for(annotation)` finds the binding and imports its driver; SQLAlchemy is imported only for its own kinds.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from onceflow.authoring import connection_kinds
from onceflow.db.driver_errors import is_connection_lost, is_stale_plan, sqlstate_of
from onceflow.engine.bindings.protocol import CLEAN_SESSION, Binding, BlockingSteps, StepConnection

__all__ = [
    "CLEAN_SESSION",
    "Binding",
    "BlockingSteps",
    "StepConnection",
    "binding_for",
    "is_connection_lost",
    "is_stale_plan",
    "sqlstate_of",
]

_PLACES = {
    connection_kinds.ASYNCPG: ("asyncpg_binding", "AsyncpgBinding"),
    connection_kinds.PSYCOPG: ("psycopg_binding", "PsycopgBinding"),
    connection_kinds.PSYCOPG_ASYNC: ("psycopg_binding", "PsycopgAsyncBinding"),
    connection_kinds.SESSION: ("sqlalchemy_binding", "SessionBinding"),
    connection_kinds.ASYNC_SESSION: ("sqlalchemy_binding", "AsyncSessionBinding"),
    connection_kinds.SA_CONNECTION: ("sqlalchemy_binding", "SaConnectionBinding"),
    connection_kinds.SA_ASYNC_CONNECTION: ("sqlalchemy_binding", "SaAsyncConnectionBinding"),
}


@lru_cache(maxsize=64)
def binding_for(annotation: object) -> type[Binding] | None:
    """The binding class for a connection annotation, None for any other; the same class for the same annotation.

    Raises AuthoringError for an annotation that looks like a connection and is none (see `connection_kind`).

    >>> binding_for(int) is None
    True
    """
    kind = connection_kinds.connection_kind(annotation)
    if kind is None:
        return None
    module, name = _PLACES[kind]
    binding: type[Binding] = getattr(import_module(f"{__name__}.{module}"), name)
    return binding.for_class(connection_kinds.plain_class(annotation))
