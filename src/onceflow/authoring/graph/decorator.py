"""`@dag`: a function that describes a dag."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, overload

from onceflow.authoring import registry
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.reading import declaring_file
from onceflow.authoring.testing import TrialRun
from onceflow.errors import AuthoringError

P = ParamSpec("P")


class DagFunction(Generic[P]):
    """A declared dag. Its function is run once, when the file is read to its end or when it is called; a second call answers the same dag."""

    def __init__(self, fn: Callable[P, Any], dag_id: str | None, options: dict[str, Any]) -> None:
        self.fn = fn
        self.dag_id = dag_id or fn.__name__
        self.options = {"fileloc": declaring_file(fn.__code__.co_filename), "description": (fn.__doc__ or "").strip().split("\n")[0] or None} | options
        self.__name__, self.__doc__, self.__module__ = fn.__name__, fn.__doc__, fn.__module__
        self._dag: DAG | None = None
        if inspect.iscoroutinefunction(fn):
            raise AuthoringError(f"dag {self.dag_id} in {fn.__module__} is an async def; its function only describes the graph, so a plain def will do")
        registry.add_dag_function(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> DAG:
        if self._dag is None:
            with DAG(self.dag_id, **self.options) as self._dag:
                self.fn(*args, **kwargs)
        return self._dag

    @property
    def dag(self) -> DAG:
        """The described dag. Parameters without defaults must have been given by a call."""
        return self()  # type: ignore[call-arg]

    def test(self, **options: Any) -> TrialRun:
        """As DAG.test: runs it once in this process, on a throw-away database."""
        return self.dag.test(**options)

    def __repr__(self) -> str:
        return f"<dag {self.dag_id}>"


@overload
def dag(fn: Callable[P, Any]) -> DagFunction[P]: ...
@overload
def dag(fn: str | None = ..., **options: Any) -> Callable[[Callable[P, Any]], DagFunction[P]]: ...
def dag(fn: Any = None, *, dag_id: str | None = None, **options: Any) -> Any:
    """Declares a dag; bare, or with the options of `DAG`. Inside the function calls of @task steps add tasks.

    >>> @dag(schedule=None)
    ... def nightly():
    ...     EmptyOperator("begin") >> EmptyOperator("end")
    >>> list(nightly.dag.tasks)
    ['begin', 'end']
    """
    if isinstance(fn, str):
        dag_id, fn = fn, None

    def declare(function: Callable[..., Any]) -> DagFunction[...]:
        return DagFunction(function, dag_id, options)

    return declare if fn is None else declare(fn)
