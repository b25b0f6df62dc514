"""The texts of SQL steps: which $1 is a parameter, which values are exact, what rows are made of."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.db.sql_text import PARAMETERS, SqlForm, check_columns, make_form, place_parameters
from onceflow.errors import AuthoringError

UNCHANGED = [
    "select '$1'", "select 'it''s $1'", "select E'\\'$1'", "select e'\\\\\\'$1'", 'select "$1"', 'select "a""$1"', "select 1 -- $1", "select /* $1 */ 1",
    "select /* /* */ $1 */ 1", "select $$ $1 $$", "select $a$ $1 $$ $1 $a$", "select a$1 from t", "select é$1", "select /* $1", "select $a$ $1",
]  # fmt: skip
PLACED = {
    "select $1": "select (A)",
    "select $1::int+$2": "select (A)::int+(B)",
    "select $1,'$1',$2--$1": "select (A),'$1',(B)--$1",
    "select $1--\n+$2": "select (A)--\n+(B)",
    "select ''||$1||''": "select ''||(A)||''",
    "select E'\\\\'||$1": "select E'\\\\'||(A)",
    "select '\\'||$1": "select '\\'||(A)",
    "select /* */ $2 /* /**/ */ $1": "select /* */ (B) /* /**/ */ (A)",
    "select $$$1$$,$1": "select $$$1$$,(A)",
    "select $1[$2]": "select (A)[(B)]",
}


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_is_no_parameter_stays(text: str) -> None:
    """Literals, names and comments of every spelling keep their $1."""
    assert place_parameters(text, ["A"]) == text


@pytest.mark.parametrize("text", PLACED)
def test_what_is_a_parameter_is_replaced(text: str) -> None:
    """Each parameter, wherever an expression may stand, and right behind what is none."""
    assert place_parameters(text, ["A", "B"]) == PLACED[text]


@given(st.text(alphabet="'\"$12/*-\\\nEe a", max_size=30).filter(lambda text: not re.search(r"\$\d{4}", text)))
def test_no_text_is_lost(text: str) -> None:
    """Whatever the text, only parameters are replaced: all other characters are there, in their order."""
    placed = place_parameters(text, [f"\0{n}" for n in range(1, 1000)])
    assert re.sub(r"\(\0(\d+)\)", r"$\1", placed) == text


def form(oid: int) -> SqlForm:
    found = make_form("select $1", [oid], [])
    assert found is not None
    return found


EXACT: list[tuple[int, Any, str, int]] = [
    (16, True, "true", 0), (17, b"\x00\xff", "\\x00ff", 0), (20, -(2**63), "-9223372036854775808", 0), (21, 32767, "32767", 0), (23, 0, "0", 0),
    (25, "it's", "it's", 0), (114, '{"a": 1}', '{"a": 1}', 0), (701, 1e300, "1e+300", 0), (701, float("inf"), "inf", 0), (1700, Decimal("1.50"), "1.50", 0),
    (1700, 7, "7", 0), (2950, UUID(int=1), str(UUID(int=1)), 0), (1082, date(2024, 2, 29), "2024-02-29", 1), (1083, time(1, 2, 3), "2000-01-01 01:02:03", 1),
    (1114, datetime(2024, 1, 1, 1), "2024-01-01 01:00:00", 1), (1184, datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2023-12-31 23:00:00", 1),
]  # fmt: skip
INEXACT: list[tuple[int, Any]] = [
    (16, 1), (17, "text"), (20, 2**63), (20, True), (20, "1"), (21, 32768), (23, -(2**31) - 1), (23, 1.0), (25, 1), (25, b"x"), (701, 1), (1700, 1.5),
    (1700, Decimal("NaN")), (1700, Decimal("1e5000")), (1700, 10**2000), (2950, str(UUID(int=1))), (1082, datetime(2024, 1, 1)), (1082, date.max), (1082, "2024-01-01"),
    (1083, time(1, tzinfo=UTC)), (1114, datetime(2024, 1, 1, tzinfo=UTC)), (1114, datetime.max), (1114, date(2024, 1, 1)), (1184, datetime(2024, 1, 1)),
    (1184, datetime.max.replace(tzinfo=UTC)),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "value", "written", "slot"), EXACT)
def test_a_value_of_its_parameters_type(oid: int, value: Any, written: str, slot: int) -> None:
    """Travels as a text that PostgreSQL reads under any setting; a moment in the array of moments."""
    slots = form(oid).bind([value])
    assert slots is not None
    assert slots[slot] == [written] and slots[1 - slot] == [None]
    assert form(oid).bind([None]) == ([None], [None])


@pytest.mark.parametrize(("oid", "value"), INEXACT)
def test_any_other_value_is_left_to_the_driver(oid: int, value: Any) -> None:
    """What the driver would refuse, convert, or take for an infinity."""
    assert form(oid).bind([value]) is None


def test_the_number_of_arguments_is_left_to_the_driver() -> None:
    """More or fewer than parameters: the driver says so."""
    assert form(25).bind([]) is None and form(25).bind(["a", "b"]) is None


def test_types_that_are_not_exact_have_no_form() -> None:
    """An array, an interval, an enum, a column that starts with the mark of tags."""
    assert make_form("select $1", [1007], []) is None
    assert make_form("select 1", [], [("a", 1186)]) is None
    assert make_form("select 1", [], [("$a", 23)]) is None
    assert 700 not in PARAMETERS


def test_two_columns_of_one_name() -> None:
    """An error that names the column; different ones pass."""
    check_columns("report", ["a", "A", "b"])
    with pytest.raises(AuthoringError, match=r"SQL step report answers several columns named 'b'"):
        check_columns("report", ["a", "b", "c", "b"])
