"""The walk that turns a value into plain JSON values."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime, time
from enum import Enum, Flag
from functools import lru_cache, partial
from typing import Any, NoReturn
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import ValidationError, to_json

from onceflow.codec import classes
from onceflow.codec.exceptions import error_parts
from onceflow.codec.paged import PagedList
from onceflow.codec.refusal import TOO_DEEP, Refused, refuse, type_name
from onceflow.codec.texts import FACTORIES, TEXT_WRITERS, write_base64, write_moment

MAX_DEPTH = 200
INT64 = 2**63
_DECIMAL_BITS = 14_000  # about 4,200 digits: int() of longer texts is refused by Python itself
_ERROR_BUDGET = 1024 * 1024  # what an error may carry beside its text
_ERROR_PENALTY = 1000

Handler = Callable[["Writer", Any, int], Any]

_json_dump = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode


def dump(plain: Any) -> str:
    """Plain JSON values as text."""
    try:
        return to_json(plain).decode()
    except (ValueError, TypeError):  # deeper than pydantic goes; or lone surrogates, which the caller looks for
        return _json_dump(plain)


def utf8_size(text: str) -> int:
    """Bytes in UTF-8; -1 if there is a lone surrogate."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return -1


def refuse_size(value: Any, limit: int) -> NoReturn:
    """Raise the refusal of something too large."""
    reason = f"is larger than the limit of {limit:,} bytes of JSON"
    raise Refused(type_name(type(value)), reason, "keep it in a table or in object storage and pass its key")


def plain_error(error: BaseException) -> dict[str, Any]:
    """An error in plain JSON, with whatever of it can be kept."""
    parts: dict[str, Any] = Writer(_ERROR_BUDGET, careful=True, loose=True).put(error, 0)
    return parts


class Writer:
    """One walk over a value: `put` gives plain JSON values. The budget ends a walk over something huge early."""

    __slots__ = ("careful", "errors", "left", "limit", "loose")

    def __init__(self, limit: int, *, careful: bool = False, loose: bool = False) -> None:
        self.left = self.limit = limit
        self.careful = careful  # check each text, to name the one at fault
        self.loose = loose  # inside an error: errors in it may lose parts, too
        self.errors: tuple[BaseException, ...] = ()  # those being written

    def put(self, value: Any, depth: int) -> Any:
        """The value itself if it is plain JSON, else its tagged form. Raises Refused."""
        cls = type(value)
        if cls is str:
            self.left -= len(value)
            if self.left < 0 or self.careful:
                self.check_text(value)
            return value
        if value is None or cls is bool or (cls is int and -INT64 <= value < INT64):
            return value
        if depth > MAX_DEPTH:
            raise Refused(type_name(cls), TOO_DEEP, f"keep it within {MAX_DEPTH} levels")
        return (_HANDLERS.get(cls) or _handler_for(cls))(self, value, depth + 1)

    def put_or_undo(self, value: Any, depth: int) -> Any:
        """As put; a refusal gives the budget back, but not all of it: a knot of errors must come to an end."""
        left = self.left
        try:
            return self.put(value, depth)
        except Exception:
            self.left = left - _ERROR_PENALTY
            raise

    def charge(self, size: int, value: Any) -> None:
        """Take the least number of characters that a value will need from the budget."""
        self.left -= size
        if self.left < 0:
            refuse_size(value, self.limit)

    def check_text(self, text: str) -> None:
        self.charge(0, text)
        if "\x00" in text:
            raise Refused("str", "holds a NUL character, which jsonb cannot keep", "remove it, or pass bytes")
        if utf8_size(text) < 0:
            raise Refused("str", "holds a lone surrogate, which is no Unicode text", "decode it anew, or pass bytes")

    def items(self, values: Iterable[Any], depth: int, owner: Any, piece: str = "[{}]") -> list[Any]:
        """Plain forms of all items."""
        out: list[Any] = []
        append, put = out.append, self.put
        try:
            for value in values:
                append(put(value, depth))
        except Refused as refused:
            refused.add_piece(piece.format(len(out)), owner)
            raise
        return out

    def pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        """A dict as [[key, value], ...] in its own order."""
        self.charge(2 + 6 * len(value), value)
        out: list[Any] = []
        for key, item in value.items():
            piece = f" key {_show(key)}"
            try:
                plain_key = self.put(key, depth)
                piece = f"[{_show(key)}]"
                out.append([plain_key, self.put(item, depth)])
            except Refused as refused:
                refused.add_piece(piece, value)
                raise
        return out

    def named(self, tag: str, ref: Any, attributes: dict[str, Any], depth: int, owner: Any) -> dict[str, Any]:
        """An instance as an object with its class under `tag` and its attributes beside it."""
        out: dict[str, Any] = {tag: ref}
        name = ""
        self.charge(4 * len(attributes), owner)
        try:
            for name, item in attributes.items():
                if name[:1] == "$":
                    raise Refused(type_name(type(item)), "its name starts with $, which marks tags", "rename it")
                out[name] = self.put(item, depth)
        except Refused as refused:
            refused.add_piece(f".{name}", owner)
            raise
        return out


def _show(key: Any) -> str:
    return repr(key)[:60] if type(key) in (str, int, float, bool, type(None)) else f"<{type_name(type(key))}>"


def _put_int(writer: Writer, value: int, depth: int) -> Any:
    bits = value.bit_length()
    writer.charge(bits >> 2, value)
    return value if bits <= _DECIMAL_BITS else {"$int": hex(value)}


def _put_float(writer: Writer, value: float, depth: int) -> Any:
    writer.left -= 2
    if -1e16 < value < 1e16 and (value or math.copysign(1.0, value) > 0):
        return value
    if math.isfinite(value):  # jsonb would give back -0.0 as 0.0 and 1e300 as an int of 301 digits
        return {"$float": repr(value)}
    raise Refused("float", f"{value} is not a number in JSON", "use None, or a text")


def _put_list(writer: Writer, value: list[Any] | PagedList, depth: int) -> Any:
    writer.charge(2 + 2 * len(value), value)
    return writer.items(value, depth, value)


def _put_dict(writer: Writer, value: dict[Any, Any], depth: int) -> Any:
    last, last_size, in_order = "", -1, True
    writer.left -= 2
    for key in value:
        if type(key) is not str or key[:1] == "$":
            return {"$dict": writer.pairs(value, depth)}
        size = len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))
        if size < last_size or (size == last_size and key < last):
            in_order = False
        last, last_size = key, size
        writer.left -= size + 4
    out: dict[str, Any] = {}
    key = ""
    try:
        for key, item in value.items():
            if writer.careful:
                writer.check_text(key)
            out[key] = writer.put(item, depth)
    except Refused as refused:
        refused.add_piece(f"[{_show(key)}]", value)
        raise
    if not in_order:
        out["$order"] = list(value)
    return out


def _put_tagged_items(tag: str, writer: Writer, value: Any, depth: int) -> Any:
    writer.charge(2 + 2 * len(value), value)
    return {tag: writer.items(value, depth, value)}


def _put_set(tag: str, writer: Writer, value: Any, depth: int) -> Any:
    writer.charge(2 + 2 * len(value), value)
    items = writer.items(value, depth, value, "{{…}}")
    if len({type(item) for item in items}) == 1 and type(items[0]) in (int, str):
        return {tag: sorted(items)}
    return {tag: sorted(items, key=dump)}  # a set has no order: the text must not depend on the hash seed


def _put_text(tag: str, text_of: Callable[[Any], str], writer: Writer, value: Any, depth: int) -> Any:
    return {tag: writer.put(text_of(value), depth)}


def _put_bytes(tag: str, writer: Writer, value: Any, depth: int) -> Any:
    writer.charge(len(value) * 4 // 3, value)
    return {tag: write_base64(value)}


def _put_moment(tag: str, writer: Writer, value: Any, depth: int) -> Any:
    writer.left -= 20
    return write_moment(tag, value)


def _put_complex(writer: Writer, value: complex, depth: int) -> Any:
    return {"$complex": [writer.put(value.real, depth), writer.put(value.imag, depth)]}


def _put_range(writer: Writer, value: range, depth: int) -> Any:
    return {"$range": writer.items((value.start, value.stop, value.step), depth, value)}


def _put_pairs(tag: str, writer: Writer, value: dict[Any, Any], depth: int) -> Any:
    return {tag: writer.pairs(value, depth)}


def _put_deque(writer: Writer, value: collections.deque[Any], depth: int) -> Any:
    writer.charge(2 + 2 * len(value), value)
    return {"$deque": writer.items(value, depth, value), "$maxlen": value.maxlen}


def _put_defaultdict(writer: Writer, value: collections.defaultdict[Any, Any], depth: int) -> Any:
    factory = value.default_factory
    if factory is not None and factory not in FACTORIES.values():
        reason = f"its factory {getattr(factory, '__qualname__', factory)!r} is code"
        raise Refused("defaultdict", reason, f"use one of {', '.join(FACTORIES)}, or dict(value)")
    name = None if factory is None else getattr(factory, "__name__", None)
    return {"$defaultdict": writer.pairs(value, depth), "$factory": name}


def _put_enum(writer: Writer, value: Enum, depth: int) -> Any:
    cls = type(value)
    ref = classes.reference(cls)
    if cls.__members__.get(value.name) is value:
        return {"$enum": ref, "$name": value.name}
    if isinstance(value, Flag):  # A | B has no name of its own
        return {"$enum": ref, "$value": writer.put(value.value, depth)}
    raise Refused(type_name(cls), f"{value!r} is not among the members of its class", "use a member of the enum")


def _put_namedtuple(writer: Writer, value: Any, depth: int) -> Any:
    cls = type(value)
    if getattr(value, "__dict__", None):
        raise Refused(type_name(cls), "has attributes beside its fields", "make it a dataclass")
    fields = dict(zip(cls._fields, value, strict=True))
    return writer.named("$namedtuple", classes.reference(cls), fields, depth, value)


def _put_dataclass(writer: Writer, value: Any, depth: int) -> Any:
    return writer.named("$dataclass", classes.reference(type(value)), classes.read_state(value), depth, value)


def _put_model(writer: Writer, value: Any, depth: int) -> Any:
    state = classes.read_model(value)
    out = writer.named("$model", classes.model_reference(type(value)), state.fields, depth, value)
    if state.fields_set != state.fields.keys():
        out["$fields_set"] = sorted(state.fields_set)
    if state.extra:
        out["$extra"] = writer.items((state.extra,), depth, value, ".model_extra")[0]
    if state.private:
        out["$private"] = writer.items((state.private,), depth, value, ".__pydantic_private__")[0]
    return out


def _put_url(writer: Writer, value: Any, depth: int) -> Any:
    return {"$url": writer.put(str(value), depth), "$class": classes.reference(type(value))}


def _put_error(writer: Writer, value: BaseException, depth: int) -> Any:
    # A traceback differs from try to try, so as a part of a value (and of its hash) it is left out.
    if any(error is value for error in writer.errors):
        raise Refused(type_name(type(value)), "contains itself", "break the cycle")
    loose = writer if writer.loose else Writer(_ERROR_BUDGET, careful=True, loose=True)
    args = None
    if not writer.loose and type(value) is not ValidationError:
        classes.reference(type(value))
        args = writer.items(classes.error_args(value), depth, value, ".args[{}]")
    outer = writer.errors
    loose.errors = (*outer, value)
    try:
        parts = error_parts(value, partial(loose.put_or_undo, depth=depth), args)
    finally:
        writer.errors = outer
    writer.charge(100 + len(parts["message"]), value)
    return parts


def _put_refused(writer: Writer, value: Any, depth: int) -> NoReturn:
    raise refuse(value)


_HANDLERS: dict[type, Handler] = {
    int: _put_int,
    float: _put_float,
    list: _put_list,
    PagedList: _put_list,
    dict: _put_dict,
    tuple: partial(_put_tagged_items, "$tuple"),
    set: partial(_put_set, "$set"),
    frozenset: partial(_put_set, "$frozenset"),
    bytes: partial(_put_bytes, "$bytes"),
    bytearray: partial(_put_bytes, "$bytearray"),
    datetime: partial(_put_moment, "$datetime"),
    time: partial(_put_moment, "$time"),
    complex: _put_complex,
    range: _put_range,
    collections.OrderedDict: partial(_put_pairs, "$ordered_dict"),
    collections.Counter: partial(_put_pairs, "$counter"),
    collections.defaultdict: _put_defaultdict,
    collections.deque: _put_deque,
    **{cls: partial(_put_text, tag, text_of) for cls, (tag, text_of) in TEXT_WRITERS.items()},
}


def _choose_handler(cls: Any) -> Handler:
    if issubclass(cls, Enum):
        return _put_enum
    if issubclass(cls, BaseException):
        return _put_error
    if issubclass(cls, BaseModel):
        return _put_model
    if classes.is_namedtuple(cls):
        return _put_namedtuple
    if classes.is_plain_dataclass(cls):
        return _put_dataclass
    if classes.is_url(cls):
        return _put_url
    if issubclass(cls, UUID) and cls.__module__.startswith("asyncpg."):
        # The driver's faster UUID: equal to uuid.UUID and of the same hash. It comes back as uuid.UUID, since nobody
        # asked for the driver's class, and an argument must hash alike whichever side made it.
        return _HANDLERS[UUID]
    return _put_refused


# How to write a class that is none of the built-in ones
_handler_for: Callable[[Any], Handler] = lru_cache(maxsize=4096)(_choose_handler)
