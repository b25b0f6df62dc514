"""What the codec does not keep or cannot read, and how it says so."""

import functools
import io
import json
import math
import re
import sys
import threading
import types
import uuid
from collections import defaultdict
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.codec import decode, decode_error, encode, inputs_hash, reading
from onceflow.errors import DecodingError, EncodingError
from tests.unit import codec_samples as samples
from tests.unit.codec_samples import (
    Box,
    DictLike,
    Line,
    Login,
    Nowhere,
    Order,
    Pairs,
    Plain,
    Text,
    Whole,
    WithLock,
    a_function,
    local_class,
)


def a_generator() -> Any:
    yield 1


async def a_coroutine() -> None:
    pass


CYCLE: dict[str, Any] = {"a": [1]}
CYCLE["a"].append(CYCLE)
LOCAL = local_class()
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]

REFUSALS = [
    ({"a": [1, math.nan]}, "value['a'][1] (float): nan is not a number in JSON; use None"),
    (math.inf, "value (float): inf is not"),
    (Decimal("NaN"), "value (Decimal): NaN is not a finite number"),
    ([Decimal("-Infinity")], "value[0] (Decimal): -Infinity"),
    ("a\x00b", "value (str): holds a NUL character, which jsonb cannot keep; remove it"),
    ({"x": {"k\x00": 1}}, "value['x']['k\\x00'] (str): holds a NUL"),
    ({"x": ("\ud800",)}, "value['x'][0] (str): holds a lone surrogate"),
    ({"\udfff": 1}, "(str): holds a lone surrogate"),
    ([Path("a\x00")], "value[0] (str): holds a NUL"),
    ({1: {2: {3j: object()}}}, "value[1][2][<complex>] (object): cannot be kept in the ledger; pass plain"),
    ({(1, a_function): 1}, "value key <tuple>[1] (function samples.a_function)"),
    (lambda: 1, "value (function HERE.<lambda>): cannot be kept in the ledger; pass a name"),
    (print, "value (builtin_function_or_method): cannot be kept"),
    (functools.partial(print), "value (functools.partial): cannot be kept in the ledger; pass a name"),
    (Plain, "value (type samples.Plain): cannot be kept in the ledger; pass its name"),
    (Plain(), "(samples.Plain): cannot be kept in the ledger; pass plain values, a dataclass or"),
    (a_generator(), "value (generator): cannot be kept in the ledger; it can be read only once: pass list(value)"),
    (map(str, []), "pass list(value)"),
    ({}.keys(), "value (dict_keys): cannot be kept in the ledger; pass list(value)"),
    (types.MappingProxyType({}), "pass dict(value)"),
    (memoryview(b"a"), "pass bytes(value)"),
    ([threading.Lock()], "value[0] (_thread.lock): cannot be kept in the ledger; make it in the step"),
    (io.StringIO(), "value (_io.StringIO): "),
    (json, "value (module): cannot be kept in the ledger; import it in the step"),
    (re.compile("x"), "pass its text"),
    (Login(password="x"), "value.password (pydantic.types.SecretStr): cannot be kept in the ledger; the ledger is rea"),
    (WithLock("x"), "value._lock (_thread.lock)"),
    (Text("x"), "(samples.Text): a subclass of str would come back as something else; pass a plain str"),
    ({"n": Whole(1)}, "value['n'] (samples.Whole): a subclass of int"),
    ({Text("k"): 1}, "value key <samples.Text> (samples.Text): a subclass of str"),
    (Pairs(), "a subclass of dict"),
    (DictLike(), "a subclass of dict"),
    (sys.version_info, "a subclass of tuple"),
    (defaultdict(lambda: 1), "its factory '<lambda>' is code; use one of int, float"),
    (LOCAL, "Inner): its class is defined inside a function and cannot be found again; move the class to module"),
    ([Nowhere(1)], "value[0] (samples.Elsewhere): its class cannot be found again: samples:Elsewhere cannot be found"),
    (datetime(2026, 1, 1, tzinfo=type("Tz", (timezone.__base__,), {})()), "use zoneinfo.ZoneInfo or"),
    (CYCLE, "value['a'][1] (dict): contains itself, it is the same object as value; break the cycle"),
    ([{"x": CYCLE}], "value[0]['x']['a'][1] (dict): contains itself, it is the same object as value[0]['x']; break"),
    (DEEP, "(list): is nested too deeply; keep it within 200 levels"),
    ({"k": {"x" * 10: "y" * 90}}, "value['k']['xxxxxxxxxx'] (str): is larger than the limit of 100 bytes of JSON"),
    ([b"x" * 90], "value[0] (bytes): is larger than the limit of 100 bytes"),
    (["\x01" * 30], "value (list): is larger than the limit of 100 bytes"),
    (["ä" * 60], "value (list): is larger than the limit of 100 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), REFUSALS, ids=[message[:50] for _, message in REFUSALS])
def test_refusal_names_path_type_and_remedy(value: Any, message: str) -> None:
    """What cannot come back exactly is refused, and the message says where, what and what to do."""
    limit = 100 if "limit of" in message else 8 * 1024 * 1024
    with pytest.raises(EncodingError) as caught:
        encode(value, limit=limit)
    assert message.replace("samples", samples.__name__).replace("HERE", __name__) in str(caught.value)


def test_refusal_of_a_coroutine_says_await() -> None:
    """The commonest slip, a missing await, is named."""
    coroutine = a_coroutine()
    with pytest.raises(EncodingError, match="await it first"):
        encode([coroutine])
    coroutine.close()


def test_where_names_the_value() -> None:
    """The caller's name for the value starts the path."""
    with pytest.raises(EncodingError, match=r"^argument 'order' of step 'pay'\.lines\[0\]\.amount \(float\): nan"):
        encode(Order(uuid.UUID(int=1), [Line("a", math.nan)]), where="argument 'order' of step 'pay'")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"k": x}, lambda x: (x,), lambda x: {1: x}, Box])
def test_depth_within_the_limit_comes_back(wrap: Any) -> None:
    """150 levels of any container are fine, 300 give a clear error: never a RecursionError."""
    value = 0
    for _ in range(150):
        value = wrap(value)
    assert encode(decode(encode(value))) == encode(value)
    for _ in range(150):
        value = wrap(value)
    with pytest.raises(EncodingError, match="is nested too deeply"):
        encode(value)


@pytest.mark.parametrize("value", ["x" * 50_000_000, b"x" * 50_000_000, [0] * 10_000_000, {"a": [["y" * 10_000_000]]}])
def test_huge_values_are_refused_before_they_are_written(value: Any) -> None:
    """A value far above the limit is refused by its size, not after megabytes of work."""
    with pytest.raises(EncodingError, match="is larger than the limit of 8,388,608 bytes"):
        encode(value)


# --- reading what is not as it was -----------------------------------------------------------------------------------

UNREADABLE = [
    ('{"a":[{"$enum":"%s:Colour","$name":"BLUE"}]}', "value['a'][0]: %s:Colour has no member 'BLUE' any more; keep"),
    ('{"$enum":"%s:Gone","$name":"X"}', "value: %s:Gone cannot be found: module '%s' has no 'Gone' any more; bring it"),
    ('{"$dataclass":"no_such_module:X"}', "module 'no_such_module' cannot be imported here (ModuleNotFoundError"),
    ('{"$dataclass":"builtins:dict","x":1}', "'builtins:dict' is not a dataclass"),
    ('{"$dataclass":"subprocess:Popen","args":"id"}', "is not a dataclass"),
    ('{"$model":"os:system"}', "is not a pydantic model"),
    ('{"$namedtuple":"%s:Money"}', "is not a named tuple"),
    ('{"$enum":"os.path:join","$name":"X"}', "is not an enum"),
    ('{"$url":"x","$class":"pathlib:Path"}', "is not one of pydantic's URL classes"),
    ('{"$new_thing":1}', "an object with $new_thing is no form that this release knows; upgrade Onceflow"),
    ('[{"$ref":1,"x":2}]', "value[0]: an object with $ref is no form"),
    ('{"$decimal":"abc"}', "value: $decimal cannot be read (InvalidOperation"),
    ('{"$decimal":5}', "$decimal must hold a text, not int"),
    ('{"$tuple":5}', "$tuple cannot be read"),
    ('{"$order":["a","b"],"a":1}', "$order does not name exactly the keys beside it"),
    ('{"$datetime":"2026-01-01","$zone":"Mars/Base"}', "$datetime cannot be read (ZoneInfoNotFoundError"),
    ("{nope", "cannot be read as JSON"),
    ("", "cannot be read as JSON"),
    ("[NaN]", "NaN is no JSON"),
    ("1" * 5000, "cannot be read as JSON"),
]


@pytest.mark.parametrize(("text", "message"), UNREADABLE, ids=[text[:30] for text, _ in UNREADABLE])
def test_unreadable_text_says_why(text: str, message: str) -> None:
    """What cannot be read back is a DecodingError with the path and the remedy; no other class is ever touched."""
    with pytest.raises(DecodingError) as caught:
        decode(text.replace("%s", samples.__name__))
    assert message.replace("%s", samples.__name__) in str(caught.value)


def test_errors_of_the_users_code_become_encoding_errors() -> None:
    """Code of the user's that raises while a value is written is named as the cause."""
    with pytest.raises(EncodingError, match=r"^value \(.*Broken\): could not be written: RuntimeError\('no args'\)"):
        encode(samples.Broken(1))


TAGS = st.sampled_from([*reading._READERS, "$zone", "$fold", "$name", "$value", "$class", "$factory", "$nope", "a", "args"])
TEXTS = st.sampled_from(["", "1", "2026-01-01", "Europe/Berlin", "builtins:ValueError", f"{samples.__name__}:Money"])
ANY_JSON = st.recursive(
    st.none() | st.integers(-3, 3) | st.floats(-1, 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TAGS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(ANY_JSON)
def test_any_json_decodes_or_is_a_decoding_error(tree: Any) -> None:
    """Whatever somebody writes into the ledger with psql: a value or a DecodingError; as an error always an error."""
    text = json.dumps(tree)
    try:
        decode(text)
    except DecodingError as error:
        assert str(error).startswith("value")
    assert isinstance(decode_error(text), BaseException)
    assert len(inputs_hash(text)) == 64
