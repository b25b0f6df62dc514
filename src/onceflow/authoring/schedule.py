"""From what `schedule=` may be to a timetable, and from a timetable to JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

from onceflow.authoring.cron import PRESETS
from onceflow.authoring.timetable import Bounds, Timetable
from onceflow.authoring.timetables import Continuous, CronInterval, CronTrigger, Interval, IntervalTrigger, Once, Unscheduled
from onceflow.codec import decode, encode
from onceflow.errors import AuthoringError, OnceflowError

_BUILT_IN: dict[str, type[Timetable]] = {kind.__name__: kind for kind in (CronInterval, CronTrigger, Interval, IntervalTrigger, Once, Continuous, Unscheduled)}
_WHOLE: dict[str, type[Timetable]] = {"@once": Once, "@continuous": Continuous}


def resolve_schedule(schedule: object, *, timezone: str | tzinfo | None = None, start_date: datetime | None = None) -> Timetable:
    """The timetable of a `schedule=` that is about time: None, a preset, a cron text or a list of them, a timedelta, a timetable.

    Plain cron texts are in `timezone`, else in that of the start date if it has a named one, else in UTC. Intervals of elapsed time are counted from
    `start_date`. Raises AuthoringError.

    >>> resolve_schedule("@daily", timezone="Asia/Tokyo")
    CronInterval('@daily', timezone='Asia/Tokyo')
    """
    timezone = timezone or (start_date.tzinfo if start_date and isinstance(start_date.tzinfo, ZoneInfo) else "UTC")
    if schedule is None:
        return Unscheduled()
    if isinstance(schedule, timedelta):
        return Interval(schedule, anchor=start_date)
    if isinstance(schedule, str):
        whole = _WHOLE.get(schedule.strip().lower())
        return whole() if whole else CronInterval(schedule, timezone=timezone)
    if isinstance(schedule, list | tuple) and schedule and all(isinstance(one, str) for one in schedule):
        return CronInterval(*schedule, timezone=timezone)
    if isinstance(schedule, Interval | IntervalTrigger):
        return schedule.anchored(start_date)
    if isinstance(schedule, Timetable):
        return schedule
    raise AuthoringError(
        f"schedule cannot be {schedule!r} ({type(schedule).__name__}); give a cron text ('0 6 * * *'), one of {', '.join([*PRESETS, *_WHOLE])}, "
        "a timedelta, a timetable, datasets, or None"
    )


def serialize_timetable(timetable: Timetable) -> dict[str, Any]:
    """A timetable as plain JSON: the name of its class (of a class of yours its import path) and the arguments it was made with.

    Guarantees that deserialize_timetable gives an equal one in another process. Raises AuthoringError for a class that cannot be imported there.

    >>> serialize_timetable(CronTrigger("0 6 * * *"))
    {'timetable': 'CronTrigger', 'args': ['0 6 * * *'], 'kwargs': {'timezone': 'UTC'}}
    """
    kind = type(timetable)
    built_in = _BUILT_IN.get(kind.__name__) is kind
    if not built_in and ("<locals>" in kind.__qualname__ or kind.__module__ == "__main__"):
        raise AuthoringError(f"timetable {kind.__qualname__} of {kind.__module__} cannot be imported by the scheduler; move it to the top of a module")
    args, kwargs = timetable._arguments
    try:
        return {
            "timetable": kind.__name__ if built_in else f"{kind.__module__}:{kind.__qualname__}",
            "args": json.loads(encode(list(args), where="args")),
            "kwargs": {name: json.loads(encode(value, where=name)) for name, value in kwargs.items()},
        }
    except OnceflowError as error:
        raise AuthoringError(f"timetable {kind.__qualname__}: {error}") from error


def deserialize_timetable(data: dict[str, Any]) -> Timetable:
    """The timetable of such JSON. Raises AuthoringError that names what is missing: the module, the class, or an argument it no longer takes."""
    try:
        name, args, kwargs = data["timetable"], data["args"], data["kwargs"]
        kind = _BUILT_IN.get(name) or _import_class(name)
        return kind(*decode(json.dumps(args)), **{key: decode(json.dumps(value)) for key, value in kwargs.items()})
    except (KeyError, TypeError) as error:
        raise AuthoringError(f"the timetable {data!r} cannot be made again: {type(error).__name__}: {error}; let its dag be parsed again") from error


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a dag runs, as a scheduler needs it. `timezone`: whose days a plain date means."""

    timetable: Timetable
    bounds: Bounds
    catchup: bool
    timezone: str


def pack_schedule(timetable: Timetable, bounds: Bounds, catchup: bool, timezone: str | None) -> dict[str, Any]:
    """A schedule as plain JSON."""
    earliest, latest = (None if moment is None else moment.isoformat() for moment in (bounds.earliest, bounds.latest))
    zone = str(getattr(timetable, "timezone", timezone or "UTC"))
    return {**serialize_timetable(timetable), "earliest": earliest, "latest": latest, "catchup": catchup, "timezone": zone}


@lru_cache(maxsize=20_000)
def unpack_schedule(text: str) -> Schedule:
    """The schedule of such JSON, as text. Raises AuthoringError as deserialize_timetable."""
    data = json.loads(text)
    earliest, latest = (None if data[name] is None else datetime.fromisoformat(data[name]) for name in ("earliest", "latest"))
    return Schedule(deserialize_timetable(data), Bounds(earliest, latest), data["catchup"], data["timezone"])


def _import_class(path: str) -> type[Timetable]:
    module, _, qualname = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise AuthoringError(f"timetable {path} cannot be imported: {type(error).__name__}: {error}; is its module on this process's path?") from error
    if not (isinstance(found, type) and issubclass(found, Timetable)):
        raise AuthoringError(f"{path} is no subclass of onceflow.Timetable")
    return found
