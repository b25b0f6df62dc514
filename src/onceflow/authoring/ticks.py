"""Ticks: the moments a schedule is made of, found forwards and backwards from any moment. All moments are UTC.

The daylight-saving policy is here, and nowhere else:
- A cron whose hour field covers every hour ticks at every moment whose wall clock matches: what is skipped does not tick, what comes twice ticks twice.
- Any other cron means a wall clock time of a day, which ticks once: where the clock is put forward over it, as much later as the clock was put forward;
  where it is put back over it, at its second occurrence. Two times that fall together tick once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from onceflow.authoring.cron import Cron, parse_cron
from onceflow.errors import AuthoringError

RESOLUTION = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Room for every zone and shift of its clock, so that no arithmetic leaves the calendar.
FIRST, LAST = datetime(1, 2, 5, tzinfo=UTC), datetime(9999, 11, 25, tzinfo=UTC)
_SECOND, _LONGEST_SHIFT = timedelta(seconds=1), timedelta(hours=25)  # Samoa skipped a whole day
Unit = Literal["day", "month"]


class Ticks(Protocol):
    """Moments in order. They may be the bounds of intervals; then `due` says when the interval that ends there runs."""

    def ceil(self, moment: datetime) -> datetime | None:
        """The first tick at or after a moment; None after the last."""

    def floor(self, moment: datetime) -> datetime | None:
        """The last tick at or before a moment; None before the first."""

    def due(self, tick: datetime) -> datetime:
        """When a run for this tick may start: at the tick, or later."""

    def last_due(self, moment: datetime) -> datetime | None:
        """The last tick that is due at a moment."""


def as_utc(moment: datetime) -> datetime:
    """A moment in UTC; a naive one is UTC already. Raises AuthoringError for anything that is no datetime of the calendar.

    >>> as_utc(datetime(2026, 1, 1))
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not isinstance(moment, datetime):
        raise AuthoringError(f"{moment!r} is no datetime; write for example datetime(2026, 1, 1)")
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise AuthoringError(f"{moment.isoformat()} lies outside of the calendar in UTC; take a moment between the years 1 and 9999") from None


def find_zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name. Raises AuthoringError, which names the likely one."""
    try:
        if name == "localtime":
            raise ZoneInfoNotFoundError("each machine has its own")
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        raise AuthoringError(f"there is no time zone {name!r}{_guess_zone(name)}; write an IANA name such as 'Europe/Berlin', or 'UTC'") from None


def _guess_zone(name: object) -> str:
    from difflib import get_close_matches

    place = str(name).lower().replace(" ", "_").rpartition("/")[2]
    zones = {zone.lower(): zone for zone in sorted(available_timezones())}
    found = [zone for low, zone in zones.items() if low.rpartition("/")[2] == place] or [zones[low] for low in get_close_matches(str(name).lower(), zones, 1)]
    return f" (did you mean {found[0]!r}?)" if found and place else ""


@dataclass(frozen=True)
class CronTicks:
    """The moments of one cron text in one zone."""

    cron: Cron
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str, timezone: str) -> CronTicks:
        if not isinstance(text, str):
            raise AuthoringError(f"{text!r} is no cron text; write for example '0 6 * * *'")
        return cls(parse_cron(text), find_zone(timezone))

    def ceil(self, moment: datetime) -> datetime | None:
        if moment > LAST:
            return None
        moment = max(moment, FIRST)
        best: datetime | None = None
        wall = self.cron.ceil(self._lowest_wall(moment))
        while wall is not None and (best is None or wall <= self._highest_wall(best)):
            best = min((tick for tick in (best, *self._ticks_of(wall)) if tick is not None and tick >= moment), default=None)
            wall = self.cron.ceil(wall + _SECOND)
        return best if best is None or best <= LAST else None

    def floor(self, moment: datetime) -> datetime | None:
        if moment < FIRST:
            return None
        moment = min(moment, LAST)
        best: datetime | None = None
        wall = self.cron.floor(self._highest_wall(moment))
        while wall is not None and (best is None or wall > self._lowest_wall(best)):
            best = max((tick for tick in (best, *self._ticks_of(wall)) if tick is not None and tick <= moment), default=None)
            wall = self.cron.floor(wall - _SECOND)
        return best if best is None or best >= FIRST else None

    def _ticks_of(self, wall: datetime) -> tuple[datetime, ...]:
        before, after = (_offset(wall.replace(tzinfo=self.zone, fold=fold)) for fold in (0, 1))
        if before == after or not self.cron.covers_every_hour:
            return ((wall - min(before, after)).replace(tzinfo=UTC),)
        return ((wall - before).replace(tzinfo=UTC), (wall - after).replace(tzinfo=UTC)) if before > after else ()

    def _lowest_wall(self, moment: datetime) -> datetime:
        """No wall clock time below it ticks at or after the moment: it may come again, or have been skipped and be made up for."""
        here = moment.astimezone(self.zone)
        then = here if self.cron.covers_every_hour else (moment - _LONGEST_SHIFT).astimezone(self.zone)
        return moment.replace(tzinfo=None) + min(_offset(here.replace(fold=0)), _offset(here.replace(fold=1)), _offset(then))

    def _highest_wall(self, moment: datetime) -> datetime:
        """No wall clock time above it ticks at or before the moment: it may have been before the clock was put back."""
        here = moment.astimezone(self.zone)
        return moment.replace(tzinfo=None) + max(_offset(here.replace(fold=0)), _offset(here.replace(fold=1)))


@dataclass(frozen=True)
class UnitedTicks:
    """The moments of several cron texts together; where two of them meet it is one tick."""

    parts: tuple[CronTicks, ...]

    def ceil(self, moment: datetime) -> datetime | None:
        return min((tick for part in self.parts if (tick := part.ceil(moment)) is not None), default=None)

    def floor(self, moment: datetime) -> datetime | None:
        return max((tick for part in self.parts if (tick := part.floor(moment)) is not None), default=None)

    def due(self, tick: datetime) -> datetime:
        return tick

    def last_due(self, moment: datetime) -> datetime | None:
        return self.floor(moment)


@dataclass(frozen=True)
class DeltaTicks:
    """Moments at equal distances on both sides of an anchor. The distance is elapsed time: no clock that is put forward or back changes it."""

    every: timedelta
    anchor: datetime

    def ceil(self, moment: datetime) -> datetime | None:
        return None if moment > LAST else self._at(-((self.anchor - max(moment, FIRST)) // self.every))

    def floor(self, moment: datetime) -> datetime | None:
        return None if moment < FIRST else self._at((min(moment, LAST) - self.anchor) // self.every)

    def due(self, tick: datetime) -> datetime:
        return tick

    def last_due(self, moment: datetime) -> datetime | None:
        return self.floor(moment)

    def _at(self, count: int) -> datetime | None:
        try:
            tick = self.anchor + count * self.every
        except OverflowError:
            return None
        return tick if FIRST <= tick <= LAST else None


@dataclass(frozen=True)
class AlignedTicks:
    """The beginnings of the days or months (of the zone's clock) in which `fires` ticks; each is due at the first of those ticks."""

    fires: UnitedTicks
    unit: Unit
    zone: ZoneInfo

    def ceil(self, moment: datetime) -> datetime | None:
        if moment > LAST:
            return None
        moment = max(moment, FIRST)
        begin = self._begin(moment)
        return self._begin_of(self.fires.ceil(begin if begin == moment else self._begin(moment, ahead=1)))

    def floor(self, moment: datetime) -> datetime | None:
        if moment < FIRST:
            return None
        return self._begin_of(self.fires.floor(self._begin(min(moment, LAST), ahead=1) - RESOLUTION))

    def due(self, tick: datetime) -> datetime:
        return self.fires.ceil(tick) or tick

    def last_due(self, moment: datetime) -> datetime | None:
        return self._begin_of(self.fires.floor(moment))

    def _begin_of(self, tick: datetime | None) -> datetime | None:
        return None if tick is None else self._begin(tick)

    def _begin(self, moment: datetime, ahead: int = 0) -> datetime:
        """When the unit of a moment began, or when the next one begins."""
        day = moment.astimezone(self.zone).date()
        if self.unit == "day":
            day += timedelta(days=ahead)
        else:
            day = (day.replace(day=1) + timedelta(days=31 * ahead)).replace(day=1)
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC)


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None  # every zone of IANA has one at any time
    return offset
