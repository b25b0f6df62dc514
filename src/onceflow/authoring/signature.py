"""Reading functions: their parameters, their connection, the name under which a worker finds them."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceflow.authoring.connection_kinds import connection_kind
from onceflow.checks import show
from onceflow.errors import AuthoringError

START_OPTIONS = frozenset({"run_id", "conn", "queue", "priority", "delay", "timeout", "deduplicate"})

_CONNECTION_NAMES = frozenset({"conn", "connection", "session"})
_MUTABLE = (list, dict, set, bytearray)


def check_function(fn: Any, what: str, *, may_be_local: bool = False, may_yield: bool = False) -> str:
    """Refuses what a worker could not call, or not find again under its name; answers how errors name the function."""
    if not inspect.isfunction(fn):
        cure = f'options are given by name, @{what}(name="…")' if isinstance(fn, str) else f"make a def that calls it, and put @{what} above that"
        raise AuthoringError(f"@{what} stands above a def or async def, not above {show(fn)}: {cure}")
    where = f"{what} {fn.__qualname__} in {fn.__module__}"
    if fn.__name__ == "<lambda>":
        raise AuthoringError(f"{where} is a lambda; a worker could not find it again. Write it as a def at module level.")
    if "<locals>" in fn.__qualname__ and not may_be_local:
        raise AuthoringError(f"{where} is defined inside a function; a worker could not find it again. Move it to module level.")
    if inspect.isasyncgenfunction(fn) or (inspect.isgeneratorfunction(fn) and not may_yield):
        raise AuthoringError(f"{where} is a generator, whose values would come one by one; return a list instead")
    parameters = list(inspect.signature(fn).parameters.values())
    if "." in fn.__qualname__ and parameters and parameters[0].name in ("self", "cls"):
        raise AuthoringError(f"{where} is a method; there is no object to call it on in a worker. Move it to module level.")
    if shared := [p.name for p in parameters if isinstance(p.default, _MUTABLE)]:
        raise AuthoringError(
            f"{where}: the default of {shared[0]!r} is a {type(inspect.signature(fn).parameters[shared[0]].default).__name__}, which all runs in a worker "
            f"would share. Write {shared[0]}=None, or a tuple, and make it inside."
        )
    return where


def module_name(fn: Callable[..., Any]) -> str:
    """The module a worker finds the function in: a script run as __main__ counts under its file's name."""
    if fn.__module__ != "__main__":
        return fn.__module__
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if file else "__main__"


def reference(fn: Callable[..., Any]) -> str:
    """module:qualname of a function."""
    return f"{module_name(fn)}:{fn.__qualname__}"


def read_hints(fn: Callable[..., Any], what: str) -> dict[str, Any]:
    """The annotations of `fn`, resolved. One that cannot be resolved is an error here and now, never "no annotation"."""
    try:
        return typing.get_type_hints(_without_brackets_of_stubs(fn))
    except Exception as error:
        raise AuthoringError(
            f"{what} {fn.__qualname__} in {fn.__module__}: an annotation cannot be resolved ({error}). "
            "Import its name at module level (not under TYPE_CHECKING): the kind of a step is read from it."
        ) from error


def _without_brackets_of_stubs(fn: Callable[..., Any]) -> Any:
    """The function's annotations, with `asyncpg.Connection[Any]` read as the plain class: only its stubs know the brackets."""
    plain = inspect.unwrap(fn)
    scope = getattr(plain, "__globals__", {})
    texts = dict(getattr(fn, "__annotations__", {}))
    for name, text in texts.items():
        if isinstance(text, str) and text.strip("'\"").endswith("]"):
            try:
                found = eval(text.strip("'\"").partition("[")[0], scope)
            except Exception:
                continue
            if isinstance(found, type) and found.__module__ != "builtins" and not hasattr(found, "__class_getitem__"):
                texts[name] = found
    return types.SimpleNamespace(__annotations__=texts, __globals__=scope, __type_params__=getattr(plain, "__type_params__", ()))


def read_connection(fn: Callable[..., Any], hints: dict[str, Any]) -> str | None:
    """The kind of connection the first parameter asks for; None for an external step."""
    parameters = list(inspect.signature(fn).parameters.values())
    if parameters and parameters[0].name in _CONNECTION_NAMES and parameters[0].name not in hints:
        raise AuthoringError(
            f"step {fn.__qualname__} in {fn.__module__}: its first parameter {parameters[0].name!r} has no annotation, so no connection would come with it. "
            f"Write the driver's class: {parameters[0].name}: asyncpg.Connection, psycopg.Connection, ...; or name it otherwise"
        )
    kinds = [connection_kind(hints[p.name]) if p.name in hints else None for p in parameters]
    for parameter, kind in zip(parameters[1:], kinds[1:], strict=True):
        if kind is not None:
            raise AuthoringError(
                f"step {fn.__qualname__} in {fn.__module__}: the connection {parameter.name!r} must be the FIRST parameter; "
                "callers leave it out and the engine fills it in"
            )
    return kinds[0] if kinds else None


def visible_signature(fn: Callable[..., Any], skip_first: bool) -> inspect.Signature:
    """The signature callers see: without the connection."""
    signature = inspect.signature(fn)
    if not skip_first:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def bind(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; a call that does not fit raises TypeError naming the step."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}") from None
    return dict(bound.arguments)


def unbind(signature: inspect.Signature, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reverse of `bind`: positional and keyword arguments to call the function with."""
    bound = inspect.BoundArguments(signature, {p: values[p] for p in signature.parameters if p in values})
    return bound.args, bound.kwargs
