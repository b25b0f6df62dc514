"""The codec: every value comes back equal in type and value, in a form that people can read."""

import collections
import re
import uuid
from collections import OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    HttpUrl,
    TypeAdapter,
)

from onceflow.codec import decode, encode, inputs_hash, roundtrip
from onceflow.errors import EncodingError
from tests.unit import codec_samples as samples
from tests.unit.codec_samples import (
    Address,
    Bits,
    Box,
    Checked,
    Colour,
    Customer,
    Level,
    Line,
    Money,
    Order,
    Point,
    Right,
    Spot,
    Word,
    again,
    as_jsonb_prints,
    identical,
)

BERLIN = ZoneInfo("Europe/Berlin")
PYDANTIC_TIME = TypeAdapter(datetime).validate_python("2026-01-01T00:00:00.5+02:00")

VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**64), 10**30, 10**4000, -(10**5000), 2**14001],
    "floats": [0.0, -0.0, 1.0, -1.5, 0.1, 1e15, 1e16, -1e16, 1e22, 1.5e300, 5e-324, 1e-7, 1.7976931348623157e308],
    "texts": ["", "ä€😀", 'quote " back \\ slash / \\u0000', "\x01\x1f\x7f\u2028", "$decimal", '"$x', "x" * 1_000_000],
    "list": [1, [2.0, ["x", None]]],
    "dict": {"a": 1, "b": [{"c": None}], "": 0},
    "dict in another order": {"zz": 1, "b": 2, "a": {"y": 1, "x": 2}, "ä": 3, "é": 4, "aaa": 5},
    "dict with dollar": {"$decimal": "1", "a": 2},
    "dict that looks like ours": [{"$order": ["a"]}, {"$dict": []}, {"$": 1}, {"$tuple": [1], "x": 2}],
    "dict with int keys": {2: "b", 1: "a", -5: {3: 4}},
    "dict with all keys": {None: 0, True: 1, 2: 2, 3.5: 3, "x": 4, (1, "a"): 5, Decimal("1.50"): 6, Colour.RED: 7,
                           Word.HELLO: 8, date(2026, 1, 1): 9, frozenset({1, 2}): 10, b"k": 11, Money(Decimal(1)): 12},
    "tuple": (1, (2, [3, (4,)]), ()),
    "sets": [{1, 2, 300}, {"b", "a"}, set(), frozenset({"x", 1, None, (1, 2), frozenset({3}), Decimal("1.0")})],
    "bytes": [b"", b"\x00\xff", bytearray(b"ab\x00"), bytearray()],
    "decimals": [Decimal(x) for x in ("10.00", "1E+2", "-0", "-0.00", "1E-30", "0E+5", "1E+999999", "9" * 5000)],
    "naive": [datetime(2026, 1, 1), datetime.min, datetime.max, datetime(2026, 1, 1, 2, 3, 4, 5, fold=1)],
    "aware": [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
              datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
              datetime(2026, 1, 1, tzinfo=timezone(timedelta(0), "GMT"))],
    "zones": [datetime(2026, 7, 1, 12, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
              datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), datetime.max.replace(tzinfo=BERLIN),
              datetime.min.replace(tzinfo=ZoneInfo("America/New_York")), PYDANTIC_TIME, BERLIN],
    "dates": [date(2026, 2, 28), date.min, date.max],
    "times": [time(1, 2, 3), time(1, 2, tzinfo=UTC), time(1, 2, fold=1), time(1, tzinfo=BERLIN), time.max],
    "durations": [timedelta(), timedelta(days=-1, microseconds=1), timedelta(hours=30), timedelta.max, timedelta.min],
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "enums": [Colour.RED, Colour.GREEN, Colour.ALIAS, Level.LOW, Word.HELLO, Right.READ, Right.READ | Right.WRITE,
              Right(0), Bits.A | Bits.B, Bits(0)],
    "named tuples": [Point(1), Point(2, Decimal("3.0")), Spot(3), (Point(1), (1, Decimal("0.5")))],
    "dataclasses": [Line("a", Decimal("1.50"), ("x", "y")), Money(Decimal(5)), Checked(3),
                    Order(uuid.UUID(int=5), [Line("b", Decimal(1))], Money(Decimal("2.00"), "USD")), Box({1: (2,)})],
    "complex": [1 + 2j, complex(-0.0, 1e300), complex(0.0, -0.0)],
    "ranges": [range(3), range(10, 0, -3), range(0)],
    "paths": [Path("/tmp/x y"), PurePosixPath("a/b"), PureWindowsPath("C:\\x"), Path()],
    "addresses": [ip_address("10.0.0.1"), ip_address("fe80::1%eth0"), ip_network("10.0.0.0/8"), ip_network("::/0"),
                  ip_interface("10.0.0.1/24"), ip_interface("::1/64")],
    "ordered": [OrderedDict([("b", 1), ("a", (2,))]), OrderedDict()],
    "defaults": [defaultdict(list, {"b": [1], "a": []}), defaultdict(None, {1: 2}), defaultdict(int)],
    "counter": collections.Counter("banana"),
    "deques": [deque([1, (2,)], maxlen=3), deque()],
    "url": HttpUrl("https://example.com/a?b=c"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_value_comes_back(name: str) -> None:
    """Each supported value comes back from jsonb equal in type and value, and hashes as before."""
    value = VALUES[name]
    assert identical(again(value), value)
    for item in value if isinstance(value, list) else []:
        assert identical(again(item), item), item


ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.binary(max_size=8)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False) | st.dates() | st.timedeltas() | st.uuids()
    | st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=True) | st.times()
    | st.sampled_from([Colour.RED, Level.LOW, Word.HELLO, Right(3), Money(Decimal(1)), "$set", "$order"])
)  # fmt: skip
KEYS = st.recursive(st.deferred(lambda: ATOMS), lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
KEY = st.deferred(lambda: KEYS)
TREES = st.recursive(
    st.deferred(lambda: ATOMS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab$é", max_size=3), inner, max_size=4)
        | st.dictionaries(KEY, inner, max_size=3)
        | st.sets(KEY, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Line, inner, inner)
        | st.builds(lambda name, extra: Customer.model_construct(name=name, other=extra), inner, inner)
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_any_tree_comes_back(value: Any) -> None:
    """Whatever is nested in whatever, it comes back."""
    assert identical(again(value), value)


JSONISH = st.recursive(
    st.none() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(JSONISH)
def test_plain_json_comes_back_or_is_refused(value: Any) -> None:
    """Over all of JSON-like Python, with NaN, NUL and surrogates: exact, or an EncodingError that says which."""
    try:
        text = encode(value)
    except EncodingError as error:
        assert re.search(r"not a number in JSON|NUL|surrogate", str(error))
    else:
        assert identical(decode(as_jsonb_prints(text)), value)


# --- the form in psql ------------------------------------------------------------------------------------------------

FORMS = [
    (None, "null"),
    ({"a": 1, "b": [True, "x", 0.5]}, '{"a":1,"b":[true,"x",0.5]}'),
    ({"b": 1, "a": 2}, '{"b":1,"a":2,"$order":["b","a"]}'),
    ({1: "x"}, '{"$dict":[[1,"x"]]}'),
    ({"$x": 1}, '{"$dict":[["$x",1]]}'),
    (Decimal("10.00"), '{"$decimal":"10.00"}'),
    (datetime(2026, 1, 1, tzinfo=BERLIN), '{"$datetime":"2026-01-01T00:00:00+01:00","$zone":"Europe/Berlin"}'),
    (timedelta(days=1, seconds=90), '{"$timedelta":"P1DT90S"}'),
    ({30, 4}, '{"$set":[4,30]}'),
    (b"ab", '{"$bytes":"YWI="}'),
    (1e300, '{"$float":"1e+300"}'),
    (Colour.RED, '{"$enum":"%s:Colour","$name":"RED"}'),
    (Money(Decimal("5")), '{"$dataclass":"%s:Money","amount":{"$decimal":"5"},"currency":"EUR"}'),
    (Address.model_construct(street="A"), '{"$model":"%s:Address","street":"A"}'),
]


@pytest.mark.parametrize(("value", "text"), FORMS, ids=lambda item: str(item)[:20])
def test_form_is_readable(value: Any, text: str) -> None:
    """What a person sees in psql: plain JSON where possible, else one tag and the attributes beside it."""
    assert encode(value) == text.replace("%s", samples.__name__)


def test_order_of_a_dict_is_kept() -> None:
    """A body that iterates sees the order it was given, on the first run and on replay alike."""
    value = {"zeta": 1, "b": 2, "alpha": 3}
    text, first = roundtrip(value)
    assert list(first) == list(decode(as_jsonb_prints(text))) == ["zeta", "b", "alpha"]


def test_text_of_a_set_does_not_depend_on_insertion() -> None:
    """Equal sets have equal texts, whatever order their hash table holds."""
    assert encode({1, 9, "a", (1, 2), None}) == encode({None, (1, 2), "a", 9, 1})


def test_roundtrip_gives_a_copy() -> None:
    """The body goes on with decode(text), so that changing its value cannot change what was recorded."""
    value = {"a": [1]}
    text, after = roundtrip(value)
    after["a"].append(2)
    assert value == {"a": [1]} and text == '{"a":[1]}'
    assert roundtrip(7) == ("7", 7)


def test_sql_null_is_none() -> None:
    """A column that is NULL decodes to None."""
    assert decode(None) is None


# --- the hash of inputs ----------------------------------------------------------------------------------------------


def test_hash_is_that_of_the_value_not_of_the_text() -> None:
    """Spaces, key order and jsonb's way with numbers do not matter; types and list order do."""
    assert inputs_hash('{"b":1,"aa":1e-05}') == inputs_hash('{"aa": 0.00001, "b": 1}')
    assert len({inputs_hash(text) for text in ("1", "1.0", '"1"', "[1]", "[1,2]", "[2,1]", "null")}) == 7


def test_equal_dicts_and_sets_hash_alike() -> None:
    """Dicts that differ in order only are the same arguments; ordered dicts are not."""
    assert inputs_hash(encode({"b": 1, "a": 2})) == inputs_hash(encode({"a": 2, "b": 1}))
    assert inputs_hash(encode({2: 1, 1: {3: 4, 2: 5}})) == inputs_hash(encode({1: {2: 5, 3: 4}, 2: 1}))
    ordered = [OrderedDict(pairs) for pairs in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])]
    assert inputs_hash(encode(ordered[0])) != inputs_hash(encode(ordered[1]))
