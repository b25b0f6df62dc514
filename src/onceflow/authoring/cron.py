"""Cron texts: what they mean on a wall clock, without zones. The zone is attached in `ticks`."""

from __future__ import annotations

import calendar
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from functools import lru_cache

from onceflow.errors import AuthoringError

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_WEEKDAYS = {name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
_MONTHS = {name: number for number, name in enumerate(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1)}
_LENGTHS = {2: (28, 29), **dict.fromkeys((4, 6, 9, 11), (30,))}
_ITEM = re.compile(r"(?P<first>\*|[0-9]+|[A-Z]+)(-(?P<last>[0-9]+|[A-Z]+))?(/(?P<step>[0-9]+))?")
_NTH = re.compile(r"(?P<day>[0-7]|[A-Z]{3})#(?P<nth>[1-5])|L(?P<last>[0-7])|(?P<last_too>[0-7])L")


@dataclass(frozen=True)
class Cron:
    """A parsed cron text. Its matches are whole seconds of a wall clock; `ceil` and `floor` find them in about a microsecond.

    `days` and `weekdays` hold numbers (0 is Sunday) and for L and #: days -1 for the last, weekdays (day, nth) with nth -1 for the last.
    """

    text: str
    times: array[int] = field(repr=False)  # seconds of the day, in order
    covers_every_hour: bool
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int | tuple[int, int]]
    either_day: bool  # both day fields are restricted: a day matches if one of them does
    _month_days: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def ceil(self, wall: datetime) -> datetime | None:
        """The first match at or after a naive time; None where the calendar ends."""
        at = _second_of_day(wall) + (1 if wall.microsecond else 0)
        for year, month, days in self._months_from(wall, 1):
            here = (year, month) == (wall.year, wall.month)
            for day in days[bisect_left(days, wall.day) :] if here else days:
                found = bisect_left(self.times, at) if here and day == wall.day else 0
                if found < len(self.times):
                    return _compose(year, month, day, self.times[found])
        return None

    def floor(self, wall: datetime) -> datetime | None:
        """The last match at or before a naive time; None where the calendar begins."""
        at = _second_of_day(wall)
        for year, month, days in self._months_from(wall, -1):
            here = (year, month) == (wall.year, wall.month)
            for day in reversed(days[: bisect_right(days, wall.day)] if here else days):
                found = bisect_right(self.times, at) if here and day == wall.day else len(self.times)
                if found > 0:
                    return _compose(year, month, day, self.times[found - 1])
        return None

    def never_matches(self) -> bool:
        """Whether no day of any year matches: every month begins on every weekday at some time, so 28 kinds of months tell."""
        return not any(self._days_of(first, length) for month in self.months for length in _LENGTHS.get(month, (31,)) for first in range(7))

    def _months_from(self, wall: datetime, direction: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        year, month = wall.year, wall.month
        while MINYEAR <= year <= MAXYEAR:
            if month in self.months:
                yield year, month, self._days_of(*calendar.monthrange(year, month))
            year, month = (year + direction, 1 if direction > 0 else 12) if month == (12 if direction > 0 else 1) else (year, month + direction)

    def _days_of(self, first: int, length: int) -> tuple[int, ...]:
        """The matching days of a month of that length whose first day is that weekday (0 is Monday)."""
        found = self._month_days.get((first, length))
        if found is None:
            found = tuple(day for day in range(1, length + 1) if self._is_day(day, (first + day) % 7, length))
            self._month_days[first, length] = found
        return found

    def _is_day(self, day: int, weekday: int, length: int) -> bool:
        by_day = day in self.days or (-1 in self.days and day == length)
        nth = (weekday, (day + 6) // 7) in self.weekdays or ((weekday, -1) in self.weekdays and day + 7 > length)
        by_weekday = weekday in self.weekdays or nth
        return by_day or by_weekday if self.either_day else by_day and by_weekday


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)
    hint: str = ""

    def parse(self, text: str, cron: str) -> frozenset[int]:
        return frozenset(value for item in text.split(",") for value in self._parse_item(item, cron))

    def _parse_item(self, item: str, cron: str) -> Iterator[int]:
        found = _ITEM.fullmatch(item)
        if found is None:
            raise self.refuse(cron, item, f"write {self.low}-{self.high}, *, a list (1,2), a range (1-3) or a step (*/2){self.hint}")
        size = self.high - self.low + 1
        step = int(found["step"] or 1)
        if not 1 <= step <= size:
            raise self.refuse(cron, item, f"a step lies between 1 and {size}; for a longer time between runs use a timedelta")
        if found["first"] == "*":
            if found["last"]:
                raise self.refuse(cron, item, "a range begins with a number")
            return iter(range(self.low, self.high + 1, step))
        first = self._value(found["first"], item, cron)
        last = self._value(found["last"], item, cron) if found["last"] else self.high if found["step"] else first
        if last < first:  # over the end: 22-2, FRI-MON
            last += size
        return ((value - self.low) % size + self.low for value in range(first, last + 1, step))

    def _value(self, text: str, item: str, cron: str) -> int:
        value = self.names.get(text, int(text) if text.isdigit() else -1)
        if self.names is _WEEKDAYS and value == 7:
            value = 0
        if not self.low <= value <= self.high:
            raise self.refuse(cron, item, f"it takes {self.low} to {self.high}{self.hint}")
        return value

    def refuse(self, cron: str, item: str, remedy: str) -> AuthoringError:
        return AuthoringError(f"cron {cron[:60]!r}: the {self.name} field cannot be {item[:60]!r}: {remedy}")


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day-of-month", 1, 31, hint=", or L for the last day"),
    _Field("month", 1, 12, _MONTHS, ", or JAN to DEC"),
    _Field("day-of-week", 0, 6, _WEEKDAYS, ", 7 or SUN for Sunday, MON#1 for the first Monday, L5 for the last Friday"),
    _Field("second", 0, 59),
)


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> Cron:
    """A cron text: minute, hour, day of month, month, day of week and, if there is a sixth field, second; or a preset such as @daily.

    Fields take numbers, names, `*`, lists, ranges (also over the end: 22-2), steps, `?` and `L` for days, `MON#1` and `L5` for weekdays.
    Are both day fields restricted, one of them has to match. Raises AuthoringError, which names the field and the remedy.

    >>> parse_cron("0 6 * * MON-FRI").ceil(datetime(2026, 1, 3))
    datetime.datetime(2026, 1, 5, 6, 0)
    """
    written = PRESETS.get(text.strip().lower(), text).upper().split()
    if not 5 <= len(written) <= 6:
        raise AuthoringError(f"cron {text[:60]!r}: {_explain_count(text, len(written))}")
    minute, hour, day, month, weekday, second = written if len(written) == 6 else [*written, "0"]
    minutes, hours, months, seconds = (
        _FIELDS[at].parse(part, text) for at, part in ((0, minute), (1, hour), (3, month), (5, second))
    )  # fmt: skip
    days, weekdays = _parse_days(day, text), _parse_weekdays(weekday, text)
    cron = Cron(
        text=text.strip(),
        times=array("l", (h * 3600 + m * 60 + s for h in sorted(hours) for m in sorted(minutes) for s in sorted(seconds))),
        covers_every_hour=len(hours) == 24,
        days=days,
        months=months,
        weekdays=weekdays,
        either_day=_restricts(day, days.issuperset(range(1, 32)), weekday) and _restricts(weekday, weekdays.issuperset(range(7)), day),
    )
    if cron.never_matches():
        raise AuthoringError(f"cron {text[:60]!r} never matches: no month {month} has a day {day} with weekday {weekday}; correct the day or the month")
    return cron


def _parse_days(text: str, cron: str) -> frozenset[int]:
    kind = _FIELDS[2]
    if text == "?":
        return kind.parse("*", cron)
    return frozenset(value for item in text.split(",") for value in ({-1} if item == "L" else kind.parse(item, cron)))


def _parse_weekdays(text: str, cron: str) -> frozenset[int | tuple[int, int]]:
    kind = _FIELDS[4]
    days: set[int | tuple[int, int]] = set()
    for item in ("*" if text == "?" else text).split(","):
        if found := _NTH.fullmatch(item):
            (day,) = kind.parse(found["day"] or found["last"] or found["last_too"], cron)
            days.add((day, int(found["nth"] or -1)))
        else:
            days |= kind.parse(item, cron)
    return frozenset(days)


def _restricts(text: str, is_full: bool, other: str) -> bool:
    """Whether a day field counts as restricted, as croniter has it: one that names every day does, if no star is written in the other one."""
    return text not in ("*", "?") and not (is_full and "*" in other)


def _explain_count(text: str, count: int) -> str:
    if text.strip().startswith("@"):
        return f"there is no such preset; there are {', '.join(PRESETS)}, and @once and @continuous as a schedule by themselves"
    hint = "write for example '0 6 * * *'" if count < 7 else "there is no year; in a shell it wants quotes, or each * becomes a list of files"
    return f"{count} fields, but it takes 5 (minute hour day-of-month month day-of-week) or 6 (a second at the end); {hint}"


def _second_of_day(wall: datetime) -> int:
    return wall.hour * 3600 + wall.minute * 60 + wall.second


def _compose(year: int, month: int, day: int, second: int) -> datetime:
    return datetime(year, month, day) + timedelta(seconds=second)
