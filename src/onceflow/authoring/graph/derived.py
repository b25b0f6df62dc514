"""Lists made out of outputs: the steps behind `.map()`, `.filter()`, `.zip()` and `.concat()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from onceflow.authoring.step import Step
from onceflow.checks import show
from onceflow.errors import AuthoringError, SkipTask


def map_items(fn: Callable[[Any], Any], where: str) -> Step[..., Any]:
    """A step that makes the list of fn(item)."""
    _check_plain(fn, where)
    return _make_step("map", lambda lists: [fn(item) for item in _list_items(lists[0])])


def filter_items(fn: Callable[[Any], Any] | None, where: str) -> Step[..., Any]:
    """A step that makes the list of the items for which fn(item) is true."""
    if fn is not None:
        _check_plain(fn, where)
    return _make_step("filter", lambda lists: list(filter(fn, _list_items(lists[0]))))


def zip_lists(fill: dict[str, Any]) -> Step[..., Any]:
    """A step that makes tuples of items with one number; with a fillvalue up to the longest list."""
    return _make_step("zip", lambda lists: list((zip_longest if fill else zip)(*map(_list_items, lists), **fill)))


def concat_lists() -> Step[..., Any]:
    """A step that makes one list of several."""
    return _make_step("concat", lambda lists: [item for one in lists for item in _list_items(one)])


def _make_step(name: str, make: Callable[[list[Any]], list[Any]]) -> Step[..., Any]:
    def derive(lists: Any) -> Any:
        return make(lists)

    derive.__name__ = name
    return Step(derive, name=name)


def _check_plain(fn: Any, where: str) -> None:
    if isinstance(fn, Step) or not callable(fn) or inspect.iscoroutinefunction(fn):
        raise AuthoringError(f"{where} takes a plain function of one item, not {show(fn)}; for a @task use expand()")


def _list_items(value: Any) -> list[Any]:
    if value is None:
        raise SkipTask("a list that this was to be made of is not there")  # its task was skipped
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"map, filter, zip and concat are for lists and dicts, not {show(value)}")
    return list(value)
