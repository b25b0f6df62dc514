"""Which recorded failures an error comes from: a body that fails names them, so that a retry runs these again and no others."""

from __future__ import annotations

import json
from typing import TypeVar

from onceflow.codec import encode_error

_MARK = "$because"  # an attribute that the codec does not keep

E = TypeVar("E", bound=BaseException)


def mark_cause(error: E, *keys: str) -> E:
    """The error, marked as that of these steps.

    >>> find_causes(mark_cause(ValueError("no"), "pay#0"))
    ['pay#0']
    """
    vars(error)[_MARK] = list(keys)
    return error


def find_causes(error: BaseException) -> list[str]:
    """The keys of the steps whose recorded failures were raised and not handled: by the error itself, else by what it was raised from."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if keys := vars(one).get(_MARK):
            found.update(dict.fromkeys(keys))
        elif isinstance(one, BaseExceptionGroup):
            left.extend(one.exceptions)
        else:
            left.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
    return sorted(found)


def encode_failure(error: BaseException, causes: list[str]) -> str:
    """The text of a body's failure that comes from these steps' failures."""
    return json.dumps({**json.loads(encode_error(error)), "because": causes}, ensure_ascii=False)
