"""Errors in the codec: any error can be recorded; class, text, arguments and attributes come back."""

import json
import math
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import (
    TypeAdapter,
    ValidationError,
)

from onceflow.codec import RemoteError, decode_error, encode, encode_error
from onceflow.errors import EncodingError, LeaseLost, WorkerLost
from tests.unit import codec_samples as samples
from tests.unit.codec_samples import (
    DataError,
    Hiding,
    KeywordOnly,
    Nasty,
    Plain,
    Strict,
    TwoArguments,
    again,
    as_jsonb_prints,
    identical,
)


def caught(raising: Any) -> BaseException:
    """The error that a call raises, with its traceback."""
    try:
        raising()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def error_again(error: BaseException) -> BaseException:
    """The error after the ledger."""
    text = encode_error(error)
    return decode_error(as_jsonb_prints(text))


ERRORS = [
    ValueError("bad ä 'x'"),
    ValueError(),
    KeyError("k"),
    TwoArguments(402, "declined"),
    KeywordOnly(code=5),
    DataError(7),
    WorkerLost("lost"),
    LeaseLost(),
    Exception(1, (2, {"a": Decimal("1.0")}), None),
    caught(lambda: Path("/no/such/file").read_text()),
    caught(lambda: b"\xff".decode()),
    caught(lambda: json.loads("{")),
    caught(lambda: [].missing),  # type: ignore[attr-defined]
    caught(lambda: __import__("no_such_module")),
    caught(lambda: compile("a b", "f", "exec")),
    ExceptionGroup("both", [TwoArguments(1, "a"), ExceptionGroup("in", [KeyError("b")])]),
    SystemExit(3),
    KeyboardInterrupt(),
    EncodingError("x"),
    RemoteError("app:Gone", "it broke", "trace"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_comes_back(error: BaseException) -> None:
    """An error keeps its class, text, arguments and attributes, also as a part of a value."""
    for after in (error_again(error), again([error])[0]):
        assert type(after) is type(error)
        assert str(after) == str(error)
        if isinstance(error, BaseExceptionGroup):
            assert repr(after) == repr(error)
        else:
            assert identical(after.args, error.args)
            assert identical(dict(sorted(vars(after).items())), dict(sorted(vars(error).items())))


def test_built_in_attributes_of_errors_come_back() -> None:
    """What the built-in classes keep outside __dict__ is there again."""
    missing = error_again(caught(lambda: Path("/no/such/file").read_text()))
    assert isinstance(missing, FileNotFoundError) and (missing.errno, missing.filename) == (2, "/no/such/file")
    decoding = error_again(caught(lambda: b"a\xff".decode()))
    assert isinstance(decoding, UnicodeDecodeError) and (decoding.start, decoding.object) == (1, b"a\xff")
    module = error_again(caught(lambda: __import__("no_such_module")))
    assert isinstance(module, ModuleNotFoundError) and module.name == "no_such_module"
    assert error_again(SystemExit(3)).code == 3  # type: ignore[attr-defined]


def test_error_text_is_readable_and_has_the_traceback() -> None:
    """In psql one reads class, message, arguments and the traceback."""
    kept = json.loads(encode_error(caught(lambda: int("x"))))
    assert kept["$error"] == "builtins:ValueError"
    assert kept["message"] == kept["args"][0] == "invalid literal for int() with base 10: 'x'"
    assert "Traceback (most recent call last)" in kept["traceback"] and "test_codec_errors.py" in kept["traceback"]


def test_cause_and_notes_come_back() -> None:
    """The cause comes one level deep; notes come as they are."""
    first, second, third = KeyError("a"), TwoArguments(1, "b"), RuntimeError("c")
    second.__cause__, third.__cause__ = first, second
    third.add_note("while paying")
    after = error_again(third)
    assert after.__notes__ == ["while paying"]
    assert type(after.__cause__) is TwoArguments and after.__cause__.__cause__ is None


def test_encode_error_never_raises() -> None:
    """Unkeepable arguments and attributes, broken __str__, NUL, surrogates, cycles, megabytes: there is a record."""
    looped = ValueError("loop")
    looped.me = looped  # type: ignore[attr-defined]
    looped.lock = threading.Lock()  # type: ignore[attr-defined]
    assert isinstance(error_again(looped), ValueError)
    argument = error_again(TypeError(threading.Lock(), math.nan, "a\x00\ud800", "x" * 20_000_000))
    assert isinstance(argument, TypeError) and argument.args[1] == "nan" and "\\x00" in argument.args[2]
    assert type(error_again(Nasty("x"))) is Nasty
    assert type(error_again(samples.Broken("x"))) is samples.Broken
    assert len(encode_error(RuntimeError("y" * 20_000_000))) < 1_000_000
    assert isinstance(error_again(RuntimeError("\x00\ud800")), RuntimeError)
    assert isinstance(error_again(ExceptionGroup("g", [RuntimeError(threading.Lock())])), ExceptionGroup)


def test_unknown_error_comes_back_as_remote_error() -> None:
    """A class that is gone or local, or parts that cannot be read, give a RemoteError with path, message and trace."""

    class Local(Exception):
        pass

    after = error_again(caught(lambda: (_ for _ in ()).throw(Local("hm"))))
    assert isinstance(after, RemoteError)
    assert after.class_path.endswith("Local") and after.message == "hm" and "Traceback" in after.traceback_text
    assert str(after) == f"{after.class_path}: hm"
    gone = decode_error('{"$error":"app:Gone","message":"m","args":[{"$enum":"app:X","$name":"A"}],"cause":null}')
    assert isinstance(gone, RemoteError) and str(gone) == "app:Gone: m"
    no_error = decode_error('{"$error":"builtins:print","message":"m"}')
    assert isinstance(no_error, RemoteError)
    for text in ("", "nope", "5", "null", '{"$decimal":"x"}', "[]"):
        assert isinstance(decode_error(text), RemoteError)


def test_error_written_by_sql_needs_a_message_only() -> None:
    """SQL functions record an error as class and message; Python raises it as that class."""
    error = decode_error('{"$error": "onceflow.errors:WorkerLost", "message": "rescued 5 times"}')
    assert type(error) is WorkerLost and str(error) == "rescued 5 times"


def test_error_in_a_value_must_be_exact() -> None:
    """As a part of a value an error is refused if its arguments or class cannot come back."""
    with pytest.raises(EncodingError, match=r"value\[0\]\.args\[1\] \(_thread.lock\)"):
        encode([ValueError(1, threading.Lock())])
    with pytest.raises(EncodingError, match="move the class to module level"):
        encode(type("Made", (Exception,), {"__qualname__": "f.<locals>.Made"})())


def plain_errors(error: Any) -> str:
    """errors() as text: the exceptions in ctx have no equality of their own."""
    return repr(error.errors())


def test_validation_error_comes_back() -> None:
    """A pydantic ValidationError has the same text and the same errors, the user's own kinds included."""
    error = caught(lambda: Strict(n="x", when="y", text="t", code="c", thing=Plain()))
    for after in (error_again(error), again([error])[0]):
        assert type(after) is ValidationError
        assert str(after) == str(error)
        assert plain_errors(after).replace(" 0x", "") == plain_errors(error).replace(" 0x", "")
    from_json = caught(lambda: Strict.model_validate_json('{"n": "x", "when": 5, "text": 1}'))
    assert str(error_again(from_json)) == str(from_json)
    constrained = caught(lambda: TypeAdapter(list[Decimal]).validate_python([1, "x", None]))
    assert str(error_again(constrained)) == str(constrained)
    assert error_again(constrained).errors() == constrained.errors()  # type: ignore[attr-defined]


def test_hidden_inputs_stay_hidden() -> None:
    """A model that hides its inputs in errors keeps them out of the ledger as well."""
    data = {"pin": "sec" + "ret"}
    error = caught(lambda: Hiding(**data))
    text = encode_error(error)
    assert "secret" not in text
    assert str(decode_error(as_jsonb_prints(text))) == str(error)
