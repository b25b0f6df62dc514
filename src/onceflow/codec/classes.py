"""Classes by name, and instances without code: how a class is found again and an instance of it rebuilt.

Every rebuild is passive: no __init__, __post_init__, validator or __setattr__ of the user's runs a second time.
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any, Generic, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from onceflow.codec.refusal import Refused, type_name
from onceflow.errors import DecodingError

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for every class written in Python


def _main_stem() -> str | None:
    """The name under which another process loads the file that runs here as a script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return pathlib.PurePath(file).stem if file else None


def module_of(cls: Any) -> str:
    """The module name to store for a class (or function): a script's own name, never `__main__`, if it has a file."""
    name: str = cls.__module__
    return (_main_stem() or name) if name == "__main__" else name


def name_of(cls: type) -> str:
    """`module:Qualname`, unchecked."""
    return f"{module_of(cls)}:{cls.__qualname__}"


def _look_up(module: types.ModuleType | None, qualname: str) -> Any:
    found: Any = module
    if module is None:
        return None
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def find(ref: str) -> Any:
    """The object that `module:Qualname` names now; DecodingError if there is none.

    Loaded modules come first, then this very script, then an import: importing the script's file under its own
    name would run it a second time and give every class a twin that isinstance() does not know.
    """
    name, _, qualname = ref.partition(":")
    found = _look_up(sys.modules.get(name), qualname)
    if found is None and name == _main_stem():
        found = _look_up(sys.modules["__main__"], qualname)
    if found is None and name not in sys.modules:
        try:
            found = _look_up(importlib.import_module(name), qualname)
        except Exception as error:
            raise DecodingError(
                f"{ref} cannot be found: module {name!r} cannot be imported here ({type(error).__name__}: {error}); install it, or put its folder on PYTHONPATH"
            ) from error
    if found is None:
        raise DecodingError(
            f"{ref} cannot be found: module {name!r} has no {qualname!r} any more; bring it back, or keep the old name as an alias of the new class"
        )
    return found


def _reference(cls: Any) -> str:
    if "<locals>" in cls.__qualname__:
        reason = "its class is defined inside a function and cannot be found again"
        raise Refused(type_name(cls), reason, "move the class to module level")
    ref = name_of(cls)
    try:
        found = find(ref)
    except DecodingError as error:
        raise Refused(type_name(cls), f"its class cannot be found again: {error}", "see to it that it can") from None
    # A reloaded module holds another object of the same name: that is the same class to a reader.
    if not isinstance(found, type) or name_of(found) != ref:
        raise Refused(type_name(cls), f"its class {ref} is hidden by another object of that name", "rename one of them")
    return ref


# `module:Qualname` of a class, checked: it can be found again from here. Raises Refused (and does not cache that).
reference: Callable[[Any], str] = lru_cache(maxsize=4096)(_reference)


def find_class(ref: Any, fits: Callable[[type], bool], kind: str) -> Any:
    """The class a reference names, provided it is of the expected kind: nothing else is ever instantiated."""
    found = find(ref) if isinstance(ref, str) else None
    if not isinstance(found, type) or not fits(found):
        raise DecodingError(f"{ref!r} is not {kind}; bring the class back as it was when the value was kept")
    return found


# --- state of instances ---------------------------------------------------------------------------------------------


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple) and hasattr(cls, "_make")


def is_plain_dataclass(cls: type) -> bool:
    """A dataclass whose whole state is in its attributes (one that extends dict or int has more)."""
    return dataclasses.is_dataclass(cls) and all(base.__flags__ & _HEAP_TYPE or base is Generic for base in cls.__mro__[:-1])


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    state = object.__getstate__(value)
    for part in state if isinstance(state, tuple) else (state,):
        yield from (part or {}).items()


def read_state(value: object) -> dict[str, Any]:
    """All attributes of an instance, slots and private ones too, without what it computes again by itself."""
    cls = type(value)
    return {
        name: item
        for name, item in _attributes(value)
        # __orig_class__ is left behind by Box[int](...): a note of the typing module, no part of the value.
        if name != "__orig_class__" and not isinstance(getattr(cls, name, None), cached_property)
    }


def write_state(value: Any, state: dict[str, Any]) -> None:
    """Give a bare instance its attributes, passing by frozen, properties and __setattr__."""
    cls = type(value)
    for name, item in state.items():
        if isinstance(getattr(cls, name, None), types.MemberDescriptorType | types.GetSetDescriptorType):
            object.__setattr__(value, name, item)
        else:
            value.__dict__[name] = item


def in_order(state: dict[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Attributes in the order of the class, the others by name: the order of vars() must not depend on jsonb's."""
    first = {name: state[name] for name in names if name in state}
    return first | {name: state[name] for name in sorted(state.keys() - first.keys())}


def rebuild_dataclass(cls: Any, state: dict[str, Any]) -> Any:
    """An instance with this state; fields added to the class since then take their defaults."""
    value = object.__new__(cls)
    fields = dataclasses.fields(cls)
    write_state(value, in_order(state, [field.name for field in fields]))
    for field in fields:
        if hasattr(value, field.name):
            continue
        if field.default is not dataclasses.MISSING:
            write_state(value, {field.name: field.default})
        elif field.default_factory is not dataclasses.MISSING:
            write_state(value, {field.name: field.default_factory()})
        else:
            raise DecodingError(f"{name_of(cls)} has got a field {field.name!r} since; give it a default")
    return value


def rebuild_namedtuple(cls: Any, state: dict[str, Any]) -> Any:
    """A named tuple with these fields, without its __new__; new fields take their defaults."""
    fields = {**cls._field_defaults, **state}
    if set(fields) != set(cls._fields):
        raise DecodingError(f"{name_of(cls)} has other fields now: {', '.join(cls._fields)}; give new ones a default")
    return tuple.__new__(cls, [fields[name] for name in cls._fields])


def model_reference(cls: type[BaseModel]) -> Any:
    """The reference of a model; `Page[int]` is [Page, int], since it exists only after someone has written it."""
    generic = cls.__pydantic_generic_metadata__
    if generic["origin"] is None:
        return reference(cls)
    parts = [generic["origin"], *generic["args"]]
    for part in parts:
        if not isinstance(part, type):
            raise Refused(type_name(cls), f"its parameter {part} is no class", "derive a named class from it")
    return [model_reference(part) if issubclass(part, BaseModel) else reference(part) for part in parts]


def is_url(cls: type) -> bool:
    """One of pydantic's own URL classes (HttpUrl, PostgresDsn, ...); a subclass of the user's may run his code."""
    return cls.__module__ in ("pydantic.networks", "pydantic_core._pydantic_core") and cls.__name__.endswith(("Url", "Dsn"))


class ModelState(NamedTuple):
    """The four parts that make up an instance of a pydantic model."""

    fields: dict[str, Any]
    fields_set: set[str]
    extra: dict[str, Any] | None
    private: dict[str, Any] | None


def read_model(value: BaseModel) -> ModelState:
    """The whole state of a model, without what it computes again by itself."""
    cls = type(value)
    fields = {
        name: item
        for name, item in value.__dict__.items()
        # A RootModel keeps its private attributes in here, which others have in a slot.
        if not name.startswith("__pydantic_") and not isinstance(getattr(cls, name, None), cached_property)
    }
    private = value.__pydantic_private__
    if private is not None:
        private = {name: item for name, item in private.items() if item is not PydanticUndefined}
    return ModelState(fields, value.__pydantic_fields_set__, value.__pydantic_extra__, private)


def find_model(ref: Any) -> Any:
    """The model class of a reference made by model_reference."""
    if not isinstance(ref, list):
        return find_class(ref, lambda cls: issubclass(cls, BaseModel), "a pydantic model")
    args = [find_model(part) if isinstance(part, list) else find(part) for part in ref[1:]]
    return find_model(ref[0])[tuple(args)]


def rebuild_model(cls: Any, state: ModelState) -> Any:
    """A model with exactly this state; no validator or hook runs. Fields added since then take their defaults."""
    fields = dict(state.fields)
    for name, field in cls.model_fields.items():
        if name not in fields:
            if field.is_required():
                raise DecodingError(f"{name_of(cls)} has got a field {name!r} since; give it a default")
            fields[name] = field.get_default(call_default_factory=True)
    private = None
    if cls.__private_attributes__:
        defaults = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
        private = {n: v for n, v in {**defaults, **(state.private or {})}.items() if v is not PydanticUndefined}
    extra = state.extra if state.extra or cls.model_config.get("extra") != "allow" else {}
    value = object.__new__(cls)
    object.__setattr__(value, "__dict__", in_order(fields, cls.model_fields))
    object.__setattr__(value, "__pydantic_fields_set__", state.fields_set)
    for name, part in (("__pydantic_extra__", extra), ("__pydantic_private__", private)):
        if getattr(value, name, PydanticUndefined) is not part:  # RootModel has None for both in the class
            object.__setattr__(value, name, part)
    return value


def error_args(error: BaseException) -> tuple[Any, ...]:
    """The arguments that a new error of this class takes; OSError keeps its file name only in its pickle form."""
    if isinstance(error, OSError) and type(error).__reduce__ is OSError.__reduce__:
        reduced: Any = error.__reduce__()
        return tuple(reduced[1])
    return error.args


def error_state(error: BaseException) -> dict[str, Any]:
    """The attributes of an error; a class that says how it is pickled (psycopg's) is taken at its word."""
    state = dict(_attributes(error))
    reduced: Any = error.__reduce__()
    if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict):
        state.update(reduced[2])
    state.pop("__notes__", None)
    return state


def rebuild_error(cls: Any, args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An error with these arguments and attributes: only the built-in part of its class is initialised."""
    base: Any = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    write_state(error, in_order(state))
    return error
