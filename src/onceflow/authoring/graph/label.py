"""`Label`: words beside an arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.authoring.graph.xcom_arg import Arrows, flatten

if TYPE_CHECKING:
    from onceflow.authoring.graph.operator import BaseOperator


class Label(Arrows):
    """Shown beside the arrows that go through it.

    >>> check >> Label("no rates yet") >> wait   # doctest: +SKIP
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._above: list[BaseOperator] = []
        self._below: list[BaseOperator] = []

    def list_ends(self, *, first: bool) -> list[BaseOperator]:
        return self._below if first else self._above

    def receive_arrow(self, above: Arrows) -> None:
        self._above += above.list_ends(first=False)
        self._draw()

    def set_downstream(self, others: Any) -> None:
        for other in flatten(others):
            self._below += other.list_ends(first=True)
        self._draw()

    def _draw(self) -> None:
        for above in self._above:
            for below in self._below:
                above.connect(below, self.label)

    def __repr__(self) -> str:
        return f"<label {self.label!r}>"
