"""Values to JSON and back: what a step takes and returns, kept in the ledger, readable in psql and exact on replay.

The guarantee: `decode(encode(value))` is equal to `value` in type and value, also after PostgreSQL has kept the text as
jsonb, or `encode` raises an EncodingError that names the path, the type and the remedy. Never pickle, never a guess.

The form: plain JSON stays plain. Anything else is an object with one tag that starts with "$":
`{"$decimal": "10.00"}`, `{"$tuple": [1, 2]}`, `{"$model": "app:Order", "id": 7}`.

Order of dicts: jsonb sorts keys (shorter first, then bytewise), but a body that iterates must see the same order on
replay as on the first run, and users expect the order they wrote. So a dict in another order carries it beside its
keys: `{"id": 7, "amount": 5, "$order": ["amount", "id"]}`; `output->>'amount'` works in psql either way. Keys that
are no strings, or start with "$", take the form `{"$dict": [[key, value], ...]}`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from onceflow.codec.classes import module_of
from onceflow.codec.exceptions import RemoteError, minimal_parts, remote_error, traceback_of
from onceflow.codec.reading import locate, parse_plain, parse_tagged, parser_with
from onceflow.codec.refusal import TOO_DEEP, Refused, type_name
from onceflow.codec.writing import INT64, Writer, dump, plain_error, refuse_size, utf8_size
from onceflow.errors import DecodingError, EncodingError

__all__ = [
    "LIMIT", "RemoteError", "decode", "decode_error", "encode", "encode_error", "inputs_hash", "module_of", "roundtrip"
]  # fmt: skip

LIMIT = 8 * 1024 * 1024
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_dump_sorted = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any, *, where: str = "value", limit: int = LIMIT) -> str:
    """JSON text for a value, fit for jsonb.

    Guarantees that decode() gives an equal value of the same type. `where` names the value in errors; `limit` is in
    bytes of UTF-8. Raises EncodingError, which is a TypeError.

    >>> encode({"id": 7, "price": Decimal("1.50")})
    '{"id":7,"price":{"$decimal":"1.50"}}'
    """
    cls = type(value)
    if cls is int and -INT64 <= value < INT64:
        return str(value)
    if value is None:
        return "null"
    try:
        return _write(value, limit)
    except Refused as refused:
        raise EncodingError(refused.describe(where)) from None
    except RecursionError:
        raise EncodingError(f"{where} ({type_name(cls)}): {TOO_DEEP}; flatten it, or keep ids") from None
    except Exception as error:  # code of the user's that ran on the way: a dict changed by a thread, a tzinfo
        raise EncodingError(f"{where} ({type_name(cls)}): could not be written: {error!r}; see the cause") from error


def _write(value: Any, limit: int) -> str:
    text = dump(Writer(limit).put(value, 0))
    size = utf8_size(text)
    if size < 0 or "\\u0000" in text:
        # Rare: walk again to name the place. A text that holds a backslash and u0000 passes this walk.
        Writer(limit, careful=True).put(value, 0)
        if size < 0 or _NUL.search(text):
            raise Refused(type_name(type(value)), "a name in it holds a NUL or a lone surrogate", "rename it")
    if size > limit:
        refuse_size(value, limit)
    return text


def decode(text: str | None) -> Any:
    """The value of a text that encode() made, also as jsonb prints it; None for SQL's NULL. Raises DecodingError."""
    if text is None:
        return None
    try:
        return parse_tagged(text) if '"$' in text else parse_plain(text)
    except DecodingError as error:
        raise locate(text, error) from error
    except (ValueError, RecursionError) as error:
        raise DecodingError(f"the text {text[:60]!r} cannot be read as JSON: {error}") from error


def roundtrip(value: Any, *, where: str = "value", limit: int = LIMIT) -> tuple[str, Any]:
    """The text to keep, and the value to go on with: decode(text), so a first run sees what a replay will see."""
    text = encode(value, where=where, limit=limit)
    return text, value if type(value) in (int, str, bool, float, type(None)) else decode(text)


def encode_error(error: BaseException) -> str:
    """JSON text for any error, with its traceback. Never raises: what cannot be kept is dropped, or kept as text."""
    trace = traceback_of(error)
    try:
        text = dump({**plain_error(error), "traceback": trace})
        if 0 <= utf8_size(text) <= LIMIT and not _NUL.search(text):
            return text
    except Exception:
        pass
    return dump({**minimal_parts(error), "traceback": trace})


def decode_error(text: str) -> BaseException:
    """The error of such a text; a RemoteError, which tells what it was, if it cannot be rebuilt here. Never raises."""
    try:
        error = parse_tagged(text)
        return error if isinstance(error, BaseException) else remote_error(error)
    except Exception:
        pass
    try:
        return remote_error(parse_plain(text))
    except Exception:
        return remote_error(text)


def inputs_hash(text: str) -> str:
    """SHA-256 (hex) of a value's text: the same for the text sent and for what jsonb prints, and for equal values.

    Hence the order of dicts and sets does not count (that of an OrderedDict does), nor do tracebacks.
    """
    try:
        canonical = _canonical_parse(text) if '"$' in text else parse_plain(text)
    except (ValueError, RecursionError) as error:
        raise DecodingError(f"the text {text[:60]!r} cannot be read as JSON: {error}") from error
    return hashlib.sha256(_dump_sorted(canonical).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(parts: dict[str, Any]) -> dict[str, Any]:
    for tag in ("$dict", "$set", "$frozenset", "$counter", "$defaultdict"):
        if isinstance(parts.get(tag), list):
            parts[tag].sort(key=_dump_sorted)
    parts.pop("$order", None)
    if "$error" in parts:
        parts.pop("traceback", None)
    return parts


_canonical_parse = parser_with(_canonical)
