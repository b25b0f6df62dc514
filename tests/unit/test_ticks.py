"""Ticks in zones whose clock is put forward and back, compared with a walk over every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.authoring.ticks import FIRST, LAST, RESOLUTION, CronTicks, DeltaTicks, Ticks, as_utc, find_zone
from onceflow.errors import AuthoringError

MINUTE = timedelta(minutes=1)
# A zone, and a moment within two days of which its clock is put forward or back.
SHIFTS = [
    ("Europe/Berlin", "2026-03-29"), ("Europe/Berlin", "2026-10-25"), ("America/New_York", "2025-03-09"), ("America/New_York", "2025-11-02"),
    ("Australia/Lord_Howe", "2025-10-04"), ("Australia/Lord_Howe", "2026-04-04"), ("Australia/Sydney", "2025-10-04"), ("Pacific/Auckland", "2026-04-04"),
    ("Pacific/Chatham", "2025-09-27"), ("America/Santiago", "2025-09-07"), ("America/Santiago", "2026-04-05"), ("America/Havana", "2025-03-09"),
    ("America/Havana", "2025-11-02"), ("America/Sao_Paulo", "2018-11-04"), ("America/Sao_Paulo", "2018-02-18"), ("Africa/Casablanca", "2026-02-15"),
    ("Africa/Casablanca", "2026-03-22"), ("Antarctica/Troll", "2026-03-29"), ("Antarctica/Troll", "2026-10-25"), ("Europe/Dublin", "2025-10-26"),
    ("Pacific/Apia", "2011-12-30"), ("Pacific/Kwajalein", "1993-08-21"), ("America/Caracas", "2007-12-09"), ("America/Caracas", "2016-05-01"),
    ("Asia/Pyongyang", "2015-08-15"), ("Asia/Pyongyang", "2018-05-05"), ("Asia/Kathmandu", "1985-12-31"), ("America/St_Johns", "2006-10-29"),
    ("America/Juneau", "1983-10-30"), ("Asia/Kolkata", "2026-03-01"), ("UTC", "2026-03-29"),
]  # fmt: skip


@cache
def walk(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """Every minute of six days in UTC, with what the clock on the wall says."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=3)
    minutes = [start + count * MINUTE for count in range(6 * 24 * 60)]
    return [(minute, minute.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)) for minute in minutes]


def expect_ticks(zone: str, day: str, minutes: frozenset[int], hours: frozenset[int] | None) -> list[datetime]:
    """The policy in the plainest words: walk over the minutes and look at the clock on the wall."""
    seen: dict[datetime, list[datetime]] = {}
    for minute, wall in walk(zone, day):
        seen.setdefault(wall, []).append(minute)
    if hours is None:
        return sorted(tick for wall, ticks in seen.items() if wall.minute in minutes for tick in ticks)
    ticks, wall, last = set[datetime](), min(seen), max(seen)
    shown = wall
    while wall <= last:
        if wall in seen:
            shown = wall
        if wall.minute in minutes and wall.hour in hours:  # a time that is never shown is as long after the last one shown as it would have been
            ticks.add(seen[wall][-1] if wall in seen else seen[shown][-1] + (wall - shown))
        wall += MINUTE
    return sorted(ticks)


def walk_forwards(ticks: Ticks, start: datetime, end: datetime) -> list[datetime]:
    found, at = list[datetime](), ticks.ceil(start)
    while at is not None and at < end:
        found.append(at)
        at = ticks.ceil(at + RESOLUTION)
    return found


def walk_backwards(ticks: Ticks, start: datetime, end: datetime) -> list[datetime]:
    found, at = list[datetime](), ticks.floor(end - RESOLUTION)
    while at is not None and at >= start:
        found.append(at)
        at = ticks.floor(at - RESOLUTION)
    return found[::-1]


def check(zone: str, day: str, minutes: frozenset[int], hours: frozenset[int] | None) -> None:
    text = f"{','.join(map(str, minutes))} {'*' if hours is None else ','.join(map(str, hours))} * * *"
    ticks = CronTicks.parse(text, zone)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1, hours=18)
    end = start + timedelta(days=3, hours=12)  # the days at both ends are for times that fall into the middle
    expected = [tick for tick in expect_ticks(zone, day, minutes, hours) if start <= tick < end]
    assert walk_forwards(ticks, start, end) == expected, text
    assert walk_backwards(ticks, start, end) == expected, text


@pytest.mark.parametrize(("zone", "day"), SHIFTS)
def test_an_hourly_cron_ticks_at_every_minute_whose_clock_matches(zone: str, day: str) -> None:
    """With hour `*` no minute that matches is left out and none is made up, whatever the clock does."""
    check(zone, day, frozenset([0, 17, 30]), None)


@pytest.mark.parametrize(("zone", "day"), SHIFTS)
def test_a_time_of_day_ticks_once_a_day(zone: str, day: str) -> None:
    """A time that is skipped is made up for by as much later; of a time that comes twice the second counts; two that fall together are one."""
    for hours in ([2], [0], [23], [1, 2, 3], [0, 12, 23]):
        check(zone, day, frozenset([10, 40]), frozenset(hours))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SHIFTS),
    st.frozensets(st.integers(0, 59), min_size=1, max_size=3),
    st.none() | st.frozensets(st.integers(0, 23), min_size=1, max_size=6),
)
def test_any_cron_at_any_shift(shift: tuple[str, str], minutes: frozenset[int], hours: frozenset[int] | None) -> None:
    """Forwards and backwards, ticks are those of the walk over every minute."""
    check(*shift, minutes, hours)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["America/New_York", "Europe/Amsterdam", "Africa/Monrovia", "Asia/Manila", "America/Juneau", "Pacific/Kiritimati", "Europe/Dublin"]),
    st.sampled_from(["0 * * * *", "30 2 * * *", "*/20 0-3 * * *", "0 0 * * MON", "0 0 L * *"]),
    st.datetimes(datetime(1840, 1, 1), datetime(2100, 1, 1)),
)
def test_ticks_are_in_order_at_any_time_of_history(zone: str, text: str, start: datetime) -> None:
    """Also where clocks were put on by odd seconds, or a day came twice, ceil and floor agree about each tick and its neighbours."""
    ticks, at = CronTicks.parse(text, zone), as_utc(start)
    after, before = ticks.ceil(at), ticks.floor(at)
    assert after is not None and before is not None and before <= at <= after
    assert ticks.floor(after) == after and ticks.ceil(before) == before
    if before < after:
        assert ticks.floor(after - RESOLUTION) == before and ticks.ceil(before + RESOLUTION) == after


@settings(max_examples=80, deadline=None)
@given(
    st.timedeltas(timedelta(microseconds=1), timedelta(days=800)),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
)
def test_elapsed_time_is_counted_from_the_anchor(every: timedelta, anchor: datetime, moment: datetime) -> None:
    """Ticks lie at whole multiples on both sides of the anchor, next to each other around any moment."""
    ticks = DeltaTicks(every, as_utc(anchor))
    after, before = ticks.ceil(as_utc(moment)), ticks.floor(as_utc(moment))
    assert after is not None and before is not None
    assert before <= as_utc(moment) <= after and after - before in (timedelta(0), every)
    assert (after - as_utc(anchor)) % every == timedelta(0)


@pytest.mark.parametrize("ticks", [CronTicks.parse("0 6 * * *", "Pacific/Kiritimati"), CronTicks.parse("* * * * *", "America/Adak"),
                                   CronTicks.parse("0 0 29 2 *", "UTC"), DeltaTicks(timedelta(days=1), as_utc(datetime(2026, 1, 1)))])  # fmt: skip
def test_the_calendar_ends_without_an_error(ticks: Ticks) -> None:
    """At the first and the last moment there is, every search has an answer."""
    begin, end = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert ticks.ceil(end) is None and ticks.floor(begin) is None
    first, last = ticks.ceil(begin), ticks.floor(end)
    assert first is not None and last is not None and FIRST <= first < last <= LAST


@pytest.mark.parametrize(
    ("name", "says"),
    [("Berlin", "did you mean 'Europe/Berlin'"), ("Europe/Berlim", "did you mean 'Europe/Berlin'"), ("Europe", "no time zone 'Europe'"), ("", "no time zone"),
     ("../../etc/passwd", "no time zone"), ("localtime", "no time zone"), (None, "no time zone None"), ("x" * 300, "no time zone"), ("a\0b", "no time zone")],
)  # fmt: skip
def test_bad_zones_are_refused_by_name(name: str, says: str) -> None:
    """A zone that is none is refused with the likely one, whatever the system's zone files make of it."""
    with pytest.raises(AuthoringError, match=says):
        find_zone(name)


def test_naive_moments_are_utc() -> None:
    """A datetime without a zone is UTC, one with a zone is converted, and what is none is refused."""
    assert as_utc(datetime(2026, 1, 1)) == datetime(2026, 1, 1, tzinfo=UTC)
    assert as_utc(datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))).isoformat() == "2025-12-31T15:00:00+00:00"
    with pytest.raises(AuthoringError, match="no datetime"):
        as_utc("2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(AuthoringError, match="outside of the calendar"):
        as_utc(datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
