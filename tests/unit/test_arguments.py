"""Arguments of a run: by name or by position, with and without *args, fitted to their types or refused by name."""

from __future__ import annotations

import inspect
from decimal import Decimal
from typing import Any

import pytest

from onceflow.authoring.signature import bind, unbind
from onceflow.engine.arguments import fit_arguments
from onceflow.errors import InvalidArgument


def some_step(head: int, *rest: int, tail: str = "t", **more: int) -> None: ...


SIGNATURE = inspect.signature(some_step)


@pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), ((1, 2, 3), {}), ((1, 2), {"tail": "x", "extra": 5}), ((1,), {"extra": 5})])
def test_what_a_start_has_bound_is_called_with_the_same_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """bind, keep by name, fit, unbind: positional, keyword and variadic arguments come back as they were given."""
    kept = bind(SIGNATURE, "some_step", args, kwargs)
    assert unbind(SIGNATURE, fit_arguments(kept, SIGNATURE, {}, "some_step")) == (args, kwargs)


@pytest.mark.parametrize("given", [{"rest": [1]}, {"head": 1, "rest": [2], "unknown": 3}, {"unknown": 1}])
def test_missing_and_unknown_names_are_refused(given: dict[str, Any]) -> None:
    """The error names the step; *args does not open a way around the check."""
    signature = inspect.signature(lambda head, *rest: None)
    with pytest.raises(InvalidArgument, match="some_step"):
        fit_arguments(given, signature, {}, "some_step")


def test_plain_json_is_fitted_to_the_hint() -> None:
    """A text from psql becomes the Decimal that the parameter wants; one that is no number is refused."""
    signature = inspect.signature(lambda amount: None)
    assert fit_arguments({"amount": "10.00"}, signature, {"amount": Decimal}, "pay") == {"amount": Decimal("10.00")}
    with pytest.raises(InvalidArgument, match="argument 'amount' does not fit Decimal"):
        fit_arguments(["ten"], signature, {"amount": Decimal}, "pay")
