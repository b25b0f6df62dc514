"""The way back: tagged objects to values. Bottom up, inside the JSON parser; a second, slow walk only names the path
of something that cannot be read."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from datetime import datetime, time
from enum import Enum, Flag
from functools import partial
from typing import Any, NoReturn

from onceflow.codec import classes
from onceflow.codec.exceptions import read_error, read_unkept
from onceflow.codec.texts import FACTORIES, TEXT_READERS, read_moment
from onceflow.errors import DecodingError

Parts = dict[str, Any]


def revive(parts: Parts) -> Any:
    """The value of a JSON object whose inner objects are revived already."""
    for key in parts:
        if key[:1] == "$":
            return _revive_tagged(parts)
    return parts


def _revive_tagged(parts: Parts) -> Any:
    tags = [key for key in parts if key in _READERS]
    if len(tags) != 1:
        keys = ", ".join(sorted(key for key in parts if key[:1] == "$"))
        raise DecodingError(
            f"an object with {keys} is no form that this release knows; upgrade Onceflow, or write a key of your own "
            'that starts with $ as {"$dict": [["$key", value]]}'
        )
    try:
        return _READERS[tags[0]](parts)
    except DecodingError:
        raise
    except Exception as error:
        raise DecodingError(f"{tags[0]} cannot be read ({type(error).__name__}: {error})") from error


def _refuse_constant(name: str) -> NoReturn:
    raise DecodingError(f"{name} is no JSON; pass null, or a text")


def parser_with(hook: Callable[[Parts], Any] | None) -> Callable[[str], Any]:
    """A JSON parser with this hook for objects, made once: json.loads would make one per call."""
    decoder = json.JSONDecoder(object_hook=hook, parse_constant=_refuse_constant)
    scan: Callable[[str, int], tuple[Any, int]] = vars(decoder)["scan_once"]

    def parse(text: str) -> Any:
        try:
            value, end = scan(text, 0)
            return value if end == len(text) else decoder.decode(text)
        except StopIteration:
            return decoder.decode(text)  # white space in front, or an error that it words better

    return parse


parse_plain = parser_with(None)
parse_tagged = parser_with(revive)


def read_located(node: Any, path: str) -> Any:
    """As parse_tagged, from plain JSON; the DecodingError names the path."""
    if isinstance(node, list):
        return [read_located(item, f"{path}[{index}]") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    parts = {key: read_located(item, f"{path}[{key!r}]") for key, item in node.items()}
    try:
        return revive(parts)
    except DecodingError as error:
        raise _Located(f"{path}: {error}") from error


class _Located(Exception):
    """Carries the finished message past the outer levels."""


def locate(text: str, error: DecodingError) -> DecodingError:
    """The same error with the path of the place."""
    try:
        read_located(parse_plain(text), "value")
    except _Located as located:
        return DecodingError(str(located))
    except Exception:
        pass
    return error


# --- one reader per tag ---------------------------------------------------------------------------------------------


def _read_order(parts: Parts) -> Any:
    order = parts.pop("$order")
    if len(order) != len(parts):
        raise DecodingError("$order does not name exactly the keys beside it")
    return {key: parts[key] for key in order}


def _read_enum(parts: Parts) -> Any:
    cls = classes.find_class(parts["$enum"], lambda cls: issubclass(cls, Enum), "an enum")
    if "$value" in parts and issubclass(cls, Flag):
        return cls(parts["$value"])
    try:
        return cls.__members__[parts["$name"]]
    except KeyError:
        raise DecodingError(f"{parts['$enum']} has no member {parts['$name']!r} any more; keep the old name as an alias") from None


def _own(parts: Parts) -> Parts:
    return {name: item for name, item in parts.items() if name[:1] != "$"}


def _read_namedtuple(parts: Parts) -> Any:
    cls = classes.find_class(parts["$namedtuple"], classes.is_namedtuple, "a named tuple")
    return classes.rebuild_namedtuple(cls, _own(parts))


def _read_dataclass(parts: Parts) -> Any:
    cls = classes.find_class(parts["$dataclass"], classes.is_plain_dataclass, "a dataclass")
    return classes.rebuild_dataclass(cls, _own(parts))


def _read_model(parts: Parts) -> Any:
    fields = _own(parts)
    fields_set = set(parts.get("$fields_set", fields))
    state = classes.ModelState(fields, fields_set, parts.get("$extra"), parts.get("$private"))
    return classes.rebuild_model(classes.find_model(parts["$model"]), state)


def _read_url(parts: Parts) -> Any:
    return classes.find_class(parts["$class"], classes.is_url, "one of pydantic's URL classes")(parts["$url"])


def _read_defaultdict(parts: Parts) -> Any:
    name = parts["$factory"]
    return collections.defaultdict(None if name is None else FACTORIES[name], map(tuple, parts["$defaultdict"]))


def _read_counter(parts: Parts) -> Any:
    counter: collections.Counter[Any] = collections.Counter()
    counter.update(dict(parts["$counter"]))
    return counter


def _read_text(tag: str, read: Callable[[str], Any], parts: Parts) -> Any:
    text = parts[tag]
    if not isinstance(text, str):
        raise DecodingError(f"{tag} must hold a text, not {type(text).__name__}")
    return read(text)


def _read_items(tag: str, build: Callable[[Any], Any], parts: Parts) -> Any:
    return build(parts[tag])


_READERS: dict[str, Callable[[Parts], Any]] = {
    "$order": _read_order,
    "$dict": partial(_read_items, "$dict", dict),
    "$tuple": partial(_read_items, "$tuple", tuple),
    "$set": partial(_read_items, "$set", set),
    "$frozenset": partial(_read_items, "$frozenset", frozenset),
    "$ordered_dict": partial(_read_items, "$ordered_dict", collections.OrderedDict),
    "$counter": _read_counter,
    "$defaultdict": _read_defaultdict,
    "$deque": lambda parts: collections.deque(parts["$deque"], parts["$maxlen"]),
    "$complex": lambda parts: complex(*parts["$complex"]),
    "$range": lambda parts: range(*parts["$range"]),
    "$datetime": lambda parts: read_moment(datetime.fromisoformat, parts, "$datetime"),
    "$time": lambda parts: read_moment(time.fromisoformat, parts, "$time"),
    "$enum": _read_enum,
    "$namedtuple": _read_namedtuple,
    "$dataclass": _read_dataclass,
    "$model": _read_model,
    "$url": _read_url,
    "$error": read_error,
    "$unkept": read_unkept,
    **{tag: partial(_read_text, tag, read) for tag, read in TEXT_READERS.items()},
}
