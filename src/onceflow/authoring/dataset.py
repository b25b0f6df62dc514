"""Datasets: what tasks write and other dags run by; and how several are combined into a schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onceflow.authoring.timetable import Timetable
from onceflow.checks import check_text, show
from onceflow.codec import encode
from onceflow.errors import AuthoringError

MOST_URI = 3000
MOST_ALIAS = 1500


class DatasetExpression:
    """What a dag can run by: a dataset, an alias, or several of these joined by `&` (all) and `|` (any)."""

    def __and__(self, other: object) -> DatasetAll:
        return DatasetAll(self, other)

    def __or__(self, other: object) -> DatasetAny:
        return DatasetAny(self, other)

    def describe(self) -> dict[str, Any]:
        """As plain JSON."""
        raise NotImplementedError

    def leaves(self) -> Iterator[Dataset | DatasetAlias]:
        """Its datasets and aliases."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Dataset(DatasetExpression):
    """Data by its URI, of any form; two with the same URI are the same. `extra` and `classification` (of the data: "personal", "public") are kept with it.

    A task with `outlets=[dataset]` has written it once it succeeds: that is an event. A dag with `schedule=[dataset]` runs once for it, made in the transaction
    that completes the task. Raises AuthoringError for a URI that is empty, longer than 3,000 characters, or has control characters or spaces at its ends.

    >>> Dataset("s3://warehouse/orders/") & Dataset("s3://warehouse/customers/")
    Dataset('s3://warehouse/orders/') & Dataset('s3://warehouse/customers/')
    """

    uri: str
    extra: dict[str, Any] | None = field(default=None, compare=False)
    classification: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_text(self.uri, "a dataset's URI", most=MOST_URI, error=AuthoringError)
        if self.uri != self.uri.strip():
            raise AuthoringError(f"a dataset's URI must not begin or end with a space: {show(self.uri)}")
        check_extra(self.extra, f"dataset {self.uri}", AuthoringError)
        if self.classification is not None:
            check_text(self.classification, f"dataset {self.uri}: classification", error=AuthoringError)

    def describe(self) -> dict[str, Any]:
        return {"uri": self.uri}

    def leaves(self) -> Iterator[Dataset | DatasetAlias]:
        yield self

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r})"


Asset = Dataset


@dataclass(frozen=True, slots=True)
class DatasetAlias(DatasetExpression):
    """A name for datasets that are known only while the task runs: `outlet_events[alias].add(Dataset(…))`. A dag that runs by it runs by all these.

    >>> DatasetAlias("daily-exports")
    DatasetAlias('daily-exports')
    """

    name: str

    def __post_init__(self) -> None:
        check_text(self.name, "a dataset alias", most=MOST_ALIAS, error=AuthoringError)

    def describe(self) -> dict[str, Any]:
        return {"alias": self.name}

    def leaves(self) -> Iterator[Dataset | DatasetAlias]:
        yield self

    def __repr__(self) -> str:
        return f"DatasetAlias({self.name!r})"


class _Joined(DatasetExpression):
    word: str
    sign: str

    def __init__(self, *parts: object) -> None:
        if not parts:
            raise AuthoringError(f"{type(self).__name__}() needs at least one dataset")
        self.parts: list[DatasetExpression] = []
        for part in parts:
            if not isinstance(part, DatasetExpression):
                raise AuthoringError(f"{type(self).__name__} joins datasets, aliases and expressions of these, not {show(part)}")
            self.parts += part.parts if isinstance(part, _Joined) and type(part) is type(self) else [part]

    def describe(self) -> dict[str, Any]:
        return {self.word: [part.describe() for part in self.parts]}

    def leaves(self) -> Iterator[Dataset | DatasetAlias]:
        for part in self.parts:
            yield from part.leaves()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Joined) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({part!r})" if isinstance(part, _Joined) else repr(part) for part in self.parts)


class DatasetAll(_Joined):
    """All of them: each has an event that no run has taken yet. Written `a & b`, or as a list.

    >>> DatasetAll(Dataset("a"), Dataset("b")) == Dataset("a") & Dataset("b")
    True
    """

    word, sign = "all", "&"


class DatasetAny(_Joined):
    """Any of them. Written `a | b`.

    >>> Dataset("a") | Dataset("b") & Dataset("c")
    Dataset('a') | (Dataset('b') & Dataset('c'))
    """

    word, sign = "any", "|"


class DatasetOrTime:
    """A dag that runs by datasets, and by a schedule of time too, each on its own.

    >>> DatasetOrTime(Dataset("s3://warehouse/orders/"), "0 6 * * *")
    DatasetOrTime(Dataset('s3://warehouse/orders/'), '0 6 * * *')
    """

    def __init__(self, datasets: Any, time: Any) -> None:
        found = read_condition(datasets)
        if found is None:
            raise AuthoringError(f"DatasetOrTime takes a dataset, a list or an expression of datasets first, not {show(datasets)}")
        if time is None or read_condition(time) is not None or isinstance(time, DatasetOrTime):
            raise AuthoringError(f"DatasetOrTime takes a schedule of time second: a cron text, a timedelta or a timetable, not {show(time)}")
        self.datasets, self.time = found, time

    def __repr__(self) -> str:
        return f"DatasetOrTime({self.datasets!r}, {self.time!r})"


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a task has to say of the event of an outlet: `yield Metadata(dataset, extra={"rows": 7})`, in a `def` task with outlets.

    With `alias`, an outlet of the task that is an alias, it tells that the alias stands for this dataset, whose event it is.

    >>> Metadata(Dataset("s3://warehouse/orders/"), {"rows": 7}).extra
    {'rows': 7}
    """

    dataset: Dataset | DatasetAlias | str
    extra: dict[str, Any] = field(default_factory=dict)
    alias: DatasetAlias | None = None


def read_condition(schedule: object) -> DatasetExpression | None:
    """Of a `schedule=`, what it says of datasets: a list means all of them. None: it is about time only. Raises AuthoringError for a list of both."""
    if isinstance(schedule, DatasetOrTime):
        return schedule.datasets
    if isinstance(schedule, DatasetExpression):
        return schedule
    if isinstance(schedule, list | tuple | set) and any(isinstance(one, DatasetExpression) for one in schedule):
        if wrong := [one for one in schedule if not isinstance(one, DatasetExpression)]:
            raise AuthoringError(f"schedule cannot be a list of datasets and {show(wrong[0])}; for both write DatasetOrTime(datasets, time)")
        return DatasetAll(*schedule)
    return None


def read_time(schedule: object) -> Any:
    """Of a `schedule=`, what it says of time; None: it is about datasets only."""
    if isinstance(schedule, DatasetOrTime):
        return schedule.time
    return None if read_condition(schedule) is not None else schedule


def show_schedule(schedule: object, timetable: Timetable) -> str:
    """What people read on pages and in lists."""
    condition = read_condition(schedule)
    if condition is None:
        return timetable.description
    by_datasets = f"after {condition!r}"
    return f"{by_datasets}; or {timetable.description}" if timetable.makes_runs else by_datasets


def check_datasets(value: object, where: str, *, may_alias: bool) -> tuple[Dataset | DatasetAlias, ...]:
    """The inlets or outlets of a task: a dataset, or a list of these."""
    given = value if isinstance(value, list | tuple | set) else [value]
    kinds = (Dataset, DatasetAlias) if may_alias else (Dataset,)
    for one in given:
        if not isinstance(one, kinds):
            raise AuthoringError(f"{where} must be datasets, such as [Dataset('s3://warehouse/orders/')], not {show(one)}")
    return tuple(dict.fromkeys(given))


def check_extra(extra: object, where: str, error: Any) -> str:
    """What is told of a dataset, as JSON: an object with texts for keys."""
    if extra is not None and (not isinstance(extra, dict) or not all(isinstance(key, str) for key in extra)):
        raise error(f"{where}: extra must be a dict with texts for keys, not {show(extra)}")
    return encode(extra, where=f"extra of {where}")


def describe_datasets(condition: DatasetExpression | None, tasks: Any) -> dict[str, Any]:
    """What a dag's plan says of datasets: nothing, if it has none to do with."""
    named = [*(condition.leaves() if condition else ()), *(one for task in tasks for one in (*task.options.outlets, *task.options.inlets))]
    found: dict[str, dict[str, Any]] = {}
    for one in named:
        if isinstance(one, Dataset):  # the same one may be declared in several places, and only in one of them with all that is known of it
            described = found.setdefault(one.uri, {"uri": one.uri})
            described |= {"extra": _read_extra(one)} if one.extra is not None else {}
            described |= {"classification": one.classification} if one.classification else {}
    if not named:
        return {}
    return {"datasets": list(found.values())} | ({"condition": condition.describe()} if condition else {})


def _read_extra(dataset: Dataset) -> Any:
    return json.loads(check_extra(dataset.extra, f"dataset {dataset.uri}", AuthoringError))


def describe_task_datasets(outlets: Any, inlets: Any) -> dict[str, Any]:
    """What a task's plan says of datasets."""
    described = {
        "outlets": [one.uri for one in outlets if isinstance(one, Dataset)],
        "outlet_aliases": [one.name for one in outlets if isinstance(one, DatasetAlias)],
        "inlets": [one.uri for one in inlets],
    }
    return {name: value for name, value in described.items() if value}
