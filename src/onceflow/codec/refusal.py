"""Why a value is not kept, and what to do instead."""

from __future__ import annotations

import array
import collections.abc
import functools
import io
import re
import types
from datetime import date, datetime
from decimal import Decimal
from threading import Lock, RLock

from pydantic import SecretBytes, SecretStr

TOO_DEEP = "is nested too deeply"


class Refused(Exception):
    """A value the codec will not write. Each container on the way up adds its piece of the path."""

    def __init__(self, kind: str, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.remedy = kind, reason, remedy
        self.trail: list[tuple[str, object]] = []

    def add_piece(self, piece: str, owner: object) -> None:
        """Note that the refused value was reached from `owner` through `piece`."""
        self.trail.append((piece, owner))

    def describe(self, where: str) -> str:
        """The message: path, type, reason, remedy."""
        path, seen = where, dict[int, str]()
        for piece, owner in reversed(self.trail):
            if self.reason == TOO_DEEP and id(owner) in seen:
                return (
                    f"{path} ({type_name(type(owner))}): contains itself, it is the same object as {seen[id(owner)]}; "
                    "break the cycle, for example keep an id instead of the object"
                )
            seen[id(owner)] = path
            path += piece
        shown = path if len(path) <= 300 else f"{path[:200]}…{path[-80:]}"
        return f"{shown} ({self.kind}): {self.reason}; {self.remedy}"


def type_name(cls: type) -> str:
    """A type as a reader would write it: `int`, `app.models.Order`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# In order: the first match speaks.
_REMEDIES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((type, types.GenericAlias), "pass its name, and look the class up in the step"),
    ((collections.abc.Awaitable,), "await it first"),
    (
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial),
        "pass a name or plain values, and choose the function in the step",
    ),
    ((collections.abc.Iterator, collections.abc.AsyncIterator), "it can be read only once: pass list(value)"),
    ((collections.abc.MappingView,), "pass list(value)"),
    ((types.MappingProxyType,), "pass dict(value)"),
    ((memoryview, array.array), "pass bytes(value) or list(value)"),
    ((io.IOBase,), "pass its path, or what is in it"),
    ((types.ModuleType,), "import it in the step"),
    ((re.Pattern,), "pass its text, and compile it in the step"),
    ((SecretStr, SecretBytes), "the ledger is readable: pass the secret's name, and read the secret in the step"),
    ((type(Lock()), type(RLock())), "make it in the step: it means nothing in another process"),
)
# By the name of the class, since the codec imports no driver and no data library.
_NAMED_REMEDIES = {
    "Record": "return dict(record), or a dataclass",
    "Row": "return tuple(row), or a dataclass",
    "RowMapping": "return dict(row)",
    "Connection": "a connection stays in its step: pass what was read from it",
    "AsyncConnection": "a connection stays in its step: pass what was read from it",
    "Session": "a session stays in its step: pass what was read from it",
    "AsyncSession": "a session stays in its step: pass what was read from it",
    "DataFrame": "pass value.to_dict('records'), or write it to a table or a file and pass the name",
    "Series": "pass value.tolist()",
    "ndarray": "pass value.tolist()",
}
_BUILTINS = (str, int, float, bytes, bytearray, tuple, list, dict, set, frozenset, datetime, date, Decimal)


def refuse(value: object) -> Refused:
    """The refusal of a value of a type that the codec does not keep."""
    cls = type(value)
    name = type_name(cls)
    if isinstance(value, type | types.FunctionType):
        name += f" {value.__module__}.{value.__qualname__}"
    reason, remedy = "cannot be kept in the ledger", "pass plain values, a dataclass or a pydantic model"
    if cls.__name__ in _NAMED_REMEDIES:
        remedy = _NAMED_REMEDIES[cls.__name__]
    elif cls.__module__.partition(".")[0] == "numpy":
        remedy = "pass value.item()"
    else:
        base = next((base for base in _BUILTINS if isinstance(value, base)), None)
        if base is not None:
            reason = f"a subclass of {base.__name__} would come back as something else"
            remedy = f"pass a plain {base.__name__}"
        for types_, text in _REMEDIES:
            if isinstance(value, types_):
                remedy = text
                break
    return Refused(name, reason, remedy)
