"""What a running task says of the datasets it writes, and what it knows of those that started its run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onceflow.authoring.dataset import Dataset, DatasetAlias, Metadata, check_extra
from onceflow.checks import show
from onceflow.codec import decode
from onceflow.errors import InvalidArgument

OUTLET_EVENTS = "$outlet_events"  # beside what a task pushes, on the same way into its transaction


@dataclass(frozen=True, slots=True)
class DatasetEvent:
    """One writing of a dataset, as the run's tasks see it. The source is empty for an event that was told from SQL."""

    uri: str
    extra: dict[str, Any] | None
    timestamp: datetime
    source_dag_id: str | None
    source_task_id: str | None
    source_run_id: str | None
    source_map_index: int


class TriggeringEvents(dict[str, list[DatasetEvent]]):
    """The events that started the run, by URI (a Dataset will do): exactly those, and no other run of the dag has them. Empty for other runs."""

    def __getitem__(self, key: str | Dataset) -> list[DatasetEvent]:
        return super().__getitem__(key.uri if isinstance(key, Dataset) else key)

    def get(self, key: str | Dataset, default: Any = None) -> Any:
        return super().get(key.uri if isinstance(key, Dataset) else key, default)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key.uri if isinstance(key, Dataset) else key)


def read_triggering_events(rows: list[dict[str, Any]]) -> TriggeringEvents:
    """From what read_run_events answers."""
    found = TriggeringEvents()
    for row in rows:
        extra = None if row["extra"] is None else decode(json.dumps(row["extra"]))
        event = DatasetEvent(**row | {"extra": extra, "timestamp": datetime.fromisoformat(row["timestamp"]).astimezone(UTC)})
        found.setdefault(event.uri, []).append(event)
    return found


@dataclass(slots=True)
class OutletEvent:
    """The event that the task's success will be for one outlet: `extra` is yours to fill."""

    outlet: Dataset | DatasetAlias
    extra: dict[str, Any] = field(default_factory=dict)
    added: list[tuple[Dataset, dict[str, Any]]] = field(default_factory=list)

    def add(self, dataset: Dataset | str, extra: dict[str, Any] | None = None) -> None:
        """Of an alias: it stands for this dataset, too. Each dataset added is an event, with this extra, or that of the alias where there is none."""
        if not isinstance(self.outlet, DatasetAlias):
            raise InvalidArgument(f"outlet_events[{self.outlet!r}].add works for aliases; of a dataset, fill in the extra: outlet_events[…].extra[…] = …")
        found = Dataset(dataset) if isinstance(dataset, str) else dataset
        if not isinstance(found, Dataset):
            raise InvalidArgument(f"outlet_events[{self.outlet!r}].add takes a dataset, not {show(dataset)}")
        self.added.append((found, dict(extra or {})))


class OutletEvents:
    """`outlet_events[dataset].extra`, `outlet_events[alias].add(…)`: what goes with the events of a task, committed with its success or not at all."""

    def __init__(self, task_id: str, outlets: tuple[Dataset | DatasetAlias, ...]) -> None:
        self._task_id, self._outlets = task_id, outlets
        self.is_elsewhere = False  # the task's transaction is in another database
        self.clear()

    def clear(self) -> None:
        """Before each pass of the task."""
        self._events = {outlet: OutletEvent(outlet) for outlet in self._outlets}

    def __getitem__(self, key: Dataset | DatasetAlias | str) -> OutletEvent:
        if isinstance(key, str):
            key = Dataset(key) if Dataset(key) in self._events else DatasetAlias(key)
        try:
            return self._events[key]
        except (KeyError, TypeError):
            raise InvalidArgument(f"task {self._task_id} has no outlet {show(key)}; it has {list(self._outlets)}: add it to outlets=") from None

    def __iter__(self) -> Iterator[Dataset | DatasetAlias]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def collect(self, value: Any) -> Any:
        """What the task's function returned; a generator has yielded Metadata first."""
        while inspect.isgenerator(value):
            try:
                said = next(value)
            except StopIteration as end:
                value = end.value
                break
            if not isinstance(said, Metadata):
                raise InvalidArgument(
                    f"task {self._task_id} yielded {show(said)}; a task with outlets yields Metadata(dataset, extra=…), and returns its result"
                )
            if said.alias is not None:
                self[said.alias].add(said.dataset, said.extra)  # type: ignore[arg-type]  # an alias is refused there
            else:
                check_extra(said.extra, f"Metadata of task {self._task_id}", InvalidArgument)
                self[said.dataset].extra.update(said.extra)
        return value

    def save(self, pushed: dict[str, str]) -> None:
        """Puts what was said beside what the task pushed."""
        said: list[tuple[str, dict[str, Any], str | None]] = [
            (one.outlet.uri, one.extra, None) for one in self._events.values() if isinstance(one.outlet, Dataset) and one.extra
        ]
        for one in self._events.values():
            if isinstance(one.outlet, DatasetAlias):
                said += [(dataset.uri, extra or one.extra, one.outlet.name) for dataset, extra in dict(one.added).items()]
        if not said:
            return
        if self.is_elsewhere:
            raise InvalidArgument(f"outlet_events in task {self._task_id}, whose transaction is in another database, could be lost in a crash; leave them out")
        where = f"outlet_events of task {self._task_id}"
        parts = [
            f'{{"uri": {json.dumps(uri)}, "alias": {json.dumps(alias)}, "extra": {check_extra(extra or None, where, InvalidArgument)}}}'
            for uri, extra, alias in said
        ]
        pushed[OUTLET_EVENTS] = f"[{', '.join(parts)}]"
