"""Arguments of a run that came as plain JSON (psql, command line): fitted to the parameters' types, or refused clearly."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from onceflow.errors import InvalidArgument

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = (str, int, float, bool, list, dict, type(None))


def fit_arguments(given: Any, signature: inspect.Signature, hints: dict[str, Any], name: str) -> dict[str, Any]:
    """Arguments by name. A list counts as positional. A plain JSON value whose parameter wants another type is converted
    ("10.00" to Decimal); one that does not fit raises InvalidArgument naming the parameter."""
    try:
        bound = signature.bind(*given) if isinstance(given, list) else _bind_by_name(signature, given)
    except TypeError as error:
        raise InvalidArgument(f"{name}{signature}: {error}; the run was started with {sorted(given) if isinstance(given, dict) else given}") from None
    values = dict(bound.arguments)
    for parameter, value in values.items():
        hint = hints.get(parameter, Any)
        if signature.parameters[parameter].kind in _VARIADIC:
            continue  # the hint is that of one of several values
        if hint is Any or not isinstance(value, _PLAIN) or (isinstance(hint, type) and type(value) is hint):
            continue
        try:
            values[parameter] = _fit(_adapter_for(hint), value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise InvalidArgument(f"{name}: argument {parameter!r} does not fit {getattr(hint, '__name__', hint)}: {reason}") from None
        except Exception:
            continue  # a type pydantic knows nothing about: leave the value as it is
    return values


def _adapter_for(hint: Any) -> TypeAdapter[Any]:
    try:
        return _known_adapter(hint)
    except TypeError:  # a hint that cannot be hashed
        return TypeAdapter(hint)


@lru_cache(maxsize=1024)
def _known_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _fit(adapter: TypeAdapter[Any], value: Any) -> Any:
    """A value that fits as it is stays as it is (an int for a float): converted is only what came as plain JSON."""
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return adapter.validate_python(value)
    return value


def _bind_by_name(signature: inspect.Signature, given: dict[str, Any]) -> inspect.BoundArguments:
    """Like signature.bind(**given), but `*args` and `**kwargs` may stand there under their own names, and positional-only ones too: as a start has bound them."""
    variadic = {p.name for p in signature.parameters.values() if p.kind in _VARIADIC}
    if not variadic & given.keys() and not any(p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values()):
        return signature.bind(**given)
    named = [p for p in signature.parameters.values() if p.name not in variadic]
    signature.replace(parameters=[p.replace(kind=p.KEYWORD_ONLY) for p in named]).bind(**{k: v for k, v in given.items() if k not in variadic})
    return inspect.BoundArguments(signature, {name: given[name] for name in signature.parameters if name in given})
