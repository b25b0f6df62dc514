"""Cron texts: what they match, and how they are refused."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.authoring.cron import PRESETS, parse_cron
from onceflow.errors import AuthoringError

START = datetime(2026, 1, 1, 12, 30, 15)


def matches_after(text: str, start: datetime, count: int) -> list[datetime]:
    """So many matches after a moment."""
    cron, found = parse_cron(text), list[datetime]()
    while len(found) < count and (start := cron.ceil(start + timedelta(microseconds=1))):
        found.append(start)
    return found


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 6 * * *", "2026-01-02 06:00:00"),
        ("* * * * *", "2026-01-01 12:31:00"),
        ("* * * * * */20", "2026-01-01 12:30:20"),
        ("0 0 * * MON-FRI", "2026-01-02 00:00:00"),
        ("0 0 * * 7", "2026-01-04 00:00:00"),
        ("0 0 * * 5-7", "2026-01-02 00:00:00"),
        ("0 22-2 * * *", "2026-01-01 22:00:00"),
        ("0 0 L * *", "2026-01-31 00:00:00"),
        ("0 0 * * mon#1", "2026-01-05 00:00:00"),
        ("0 0 * * L5", "2026-01-30 00:00:00"),
        ("0 0 * * 5L", "2026-01-30 00:00:00"),
        ("0 0 ? feb ?", "2026-02-01 00:00:00"),
        ("0 0 15 * 5", "2026-01-02 00:00:00"),
        ("5/20 * * * *", "2026-01-01 12:45:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 0 * 2 MON#5", "2044-02-29 00:00:00"),
        ("@Quarterly", "2026-04-01 00:00:00"),
        ("  0   6 * * * ", "2026-01-02 06:00:00"),
    ],
)
def test_forms_of_cron_texts(text: str, first: str) -> None:
    """Every documented form has its next match where a calendar has it."""
    assert str(parse_cron(text).ceil(START)) == first


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 25 * * *", r"hour field cannot be '25': it takes 0 to 23"),
        ("a * * * *", r"minute field cannot be 'A'"),
        ("0 0 0 * *", r"day-of-month field cannot be '0': it takes 1 to 31, or L"),
        ("0 0 * 13 *", r"month field cannot be '13'.*JAN to DEC"),
        ("0 0 * * 8", r"day-of-week field cannot be '8'.*MON#1"),
        ("0 0 * * MON#6", r"day-of-week field cannot be 'MON#6'"),
        ("0 0 * * 1,", r"day-of-week field cannot be ''"),
        ("* * * * * 60", r"second field cannot be '60'"),
        ("*/0 * * * *", r"minute field cannot be '\*/0': a step lies between 1 and 60"),
        ("*/90 * * * *", r"minute field cannot be '\*/90'.*use a timedelta"),
        ("-5 * * * *", r"minute field cannot be '-5'"),
        ("*-5 * * * *", r"minute field cannot be '\*-5'"),
        ("1e1 * * * *", r"minute field cannot be '1E1'"),
        ("\uff11 * * * *", r"minute field cannot be '\uff11'"),
        ("R * * * *", r"minute field cannot be 'R'"),
        ("0 0 15W * *", r"day-of-month field cannot be '15W'"),
        ("* * * *", r"4 fields, but it takes 5"),
        ("", r"0 fields, but it takes 5"),
        ("0 6 a.py b.py c.py * * *", r"8 fields.*quotes"),
        ("@fortnightly", r"no such preset; there are @hourly"),
        ("@once", r"@once and @continuous as a schedule by themselves"),
        ("0 0 30 2 *", r"never matches: no month 2 has a day 30"),
        ("0 0 31 4,6,9,11 *", r"never matches"),
        ("0 0 30 2 ?", r"never matches"),
    ],
)
def test_bad_cron_texts_name_the_field_and_the_remedy(text: str, says: str) -> None:
    """A cron text that is wrong, or can never match, is refused when it is written, not found out by a search without end."""
    with pytest.raises(AuthoringError, match=says):
        parse_cron(text)


def test_a_long_text_is_not_repeated_in_full() -> None:
    """The error for a very long text stays readable."""
    with pytest.raises(AuthoringError) as caught:
        parse_cron("x" * 10_000)
    assert len(str(caught.value)) < 400


def test_the_calendar_has_two_ends() -> None:
    """Before the first and after the last match of the calendar there is None, and no error."""
    for text in ("0 0 29 2 *", "0 6 * * *", "0 0 * 2 MON#5"):
        assert parse_cron(text).ceil(datetime(9999, 12, 31, 23, 59)) is None
        assert parse_cron(text).floor(datetime(1, 1, 1, 0, 0, 0)) in (None, datetime(1, 1, 1))


numbers = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6), "second": (0, 59)}


@st.composite
def fields(draw: st.DrawFn, name: str) -> str:
    """A field in any form that croniter reads as we do."""
    low, high = numbers[name]
    values = st.integers(low, high)
    steps = st.integers(1, (high - low) // 2)
    ranges = st.tuples(values, values).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    forms = [st.just("*"), values.map(str), st.lists(values, min_size=2, max_size=4, unique=True).map(lambda some: ",".join(map(str, some))), ranges]
    forms += [st.tuples(ranges, steps).map(lambda pair: f"{pair[0]}/{pair[1]}"), steps.map(lambda step: f"*/{step}")]
    return draw(st.one_of(forms))


@st.composite
def cron_texts(draw: st.DrawFn) -> str:
    parts = [draw(fields(name)) for name in ("minute", "hour", "day", "month", "weekday")]
    special = draw(st.sampled_from(["", "", "", "last day", "nth weekday", "last weekday", "second"]))
    if special == "last day":
        parts[2], parts[4] = "L", "*"
    elif special == "nth weekday":
        parts[2], parts[4] = "*", f"{draw(st.integers(0, 6))}#{draw(st.integers(1, 5))}"
    elif special == "last weekday":
        parts[2], parts[4] = "*", f"L{draw(st.integers(0, 6))}"
    elif special == "second":
        parts.append(draw(fields("second")))
    return " ".join(parts)


@settings(max_examples=60, deadline=None)
@given(cron_texts(), st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)))
def test_what_croniter_matches_we_match(text: str, start: datetime) -> None:
    """croniter, which other schedulers use, agrees with us on every text both take; what never matches for it is refused by us."""
    start = start.replace(microsecond=0)
    theirs = croniter(text, start)
    try:
        ours = matches_after(text, start, 5)
    except AuthoringError as error:
        assert "never matches" in str(error)
        with pytest.raises(Exception, match="failed to find"):
            theirs.get_next(datetime)
        return
    assert ours == [theirs.get_next(datetime) for _ in range(5)]


@settings(max_examples=60, deadline=None)
@given(cron_texts(), st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)))
def test_searching_backwards_is_searching_forwards(text: str, start: datetime) -> None:
    """ceil and floor enclose any moment without a match between them, and each match is found from both sides."""
    try:
        cron = parse_cron(text)
    except AuthoringError:
        return
    after, before = cron.ceil(start), cron.floor(start)
    assert after is not None and before is not None
    assert before <= start <= after
    assert cron.floor(after) == after and cron.ceil(before) == before
    if before != after:
        assert cron.floor(after - timedelta(seconds=1)) == before and cron.ceil(before + timedelta(seconds=1)) == after


def test_presets_mean_what_other_schedulers_mean() -> None:
    """A preset is the cron text of that name everywhere."""
    for preset, text in PRESETS.items():
        assert re.fullmatch(r"@[a-z]+", preset)
        assert matches_after(preset, START, 3) == matches_after(text, START, 3)
