"""An operator's `execute` as a step: so it is run, limited, retried and recorded like any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from onceflow.authoring.connection_kinds import ASYNC_KINDS
from onceflow.authoring.retry import RetryPolicy
from onceflow.authoring.signature import read_connection, read_hints, visible_signature
from onceflow.authoring.step import Step
from onceflow.errors import AuthoringError


class ExecuteStep(Step[..., Any]):
    """Its kind is read from execute's first parameter after self, as a step's is."""

    def __init__(
        self,
        execute: Callable[..., Any],
        name: str,
        retry: RetryPolicy,
        execution_timeout: timedelta | None,
        database: str | None,
        given: dict[str, Any] | None = None,
    ) -> None:
        self.fn, self.name, self.text = partial(execute, **given) if given else execute, name, None
        self.reference = f"{execute.__module__}:{execute.__qualname__}"
        self.hints = read_hints(execute, "operator")
        self.connection = read_connection(execute, self.hints)
        self.kind = "external" if not self.connection else "outpost" if database else "transactional"
        self.is_async = inspect.iscoroutinefunction(execute)
        self.signature = visible_signature(execute, skip_first=self.connection is not None)
        self.retry, self.execution_timeout, self.database = retry, execution_timeout, database
        self.group_commit, self.isolation, self.isolate = False, "read committed", "thread"
        self.decides, self.task_options = None, {}
        if self.connection is not None and self.is_async != (self.connection in ASYNC_KINDS):
            raise AuthoringError(
                f"{execute.__qualname__} asks for a connection of the other colour ({self.connection}); use {'its async' if self.is_async else 'the blocking'} sibling"
            )
        try:
            self.signature.bind({}, **(given or {}))
            is_fit = len(self.signature.parameters) == 1 or given is not None
        except TypeError:
            is_fit = False
        if not is_fit:
            rest = f"and {', '.join(given)}" if given else "and nothing else"
            raise AuthoringError(f"{execute.__qualname__}{self.signature} must take the context {rest} (before it, if you like, a connection)")
