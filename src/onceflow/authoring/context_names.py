"""The names under which a task of a dag gets its context, when its function asks for them."""

from __future__ import annotations

import inspect
from typing import Any

from onceflow.authoring.signature import bind

# Parameters of these names are filled in by the engine where a call leaves them out. `conn`, `var` and `macros` are in the context too, for templates.
CONTEXT_NAMES = frozenset(
    {
        "ti",
        "task_instance",
        "task",
        "dag",
        "dag_run",
        "run_id",
        "params",
        "logical_date",
        "data_interval_start",
        "data_interval_end",
        "ds",
        "ds_nodash",
        "ts",
        "ts_nodash",
        "try_number",
        "map_index",
        "outlet_events",
        "triggering_dataset_events",
        "context",
        "prev_data_interval_start_success",
        "prev_data_interval_end_success",
        "prev_start_date_success",
        "prev_end_date_success",
    }
)
# Of the last run before this one that succeeded; None when there is none.
LAST_SUCCESS = {
    "prev_data_interval_start_success": "data_interval_start",
    "prev_data_interval_end_success": "data_interval_end",
    "prev_start_date_success": "start_date",
    "prev_end_date_success": "end_date",
}


def list_context_parameters(signature: inspect.Signature, given: Any) -> list[str]:
    """The parameters that the engine fills in: named as something of the context, not given, and without a default other than None."""
    return [
        p.name
        for p in signature.parameters.values()
        if p.name in CONTEXT_NAMES and p.name not in given and p.default in (p.empty, None) and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def bind_task(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call in a dag by name; what the context fills in may be left out, wherever it stands. Raises TypeError as a call would."""
    left_out = set(list_context_parameters(signature, kwargs))
    rest = signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in left_out])
    try:
        return bind(rest, name, args, kwargs)
    except TypeError:
        try:
            return bind(signature, name, args, kwargs)
        except TypeError:
            pass
        raise


def fill_context(signature: inspect.Signature, given: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """The arguments with those of the context that the function asks for; `**context` gets all of it."""
    filled = {**given, **{name: context if name == "context" else context[name] for name in list_context_parameters(signature, given)}}
    for p in signature.parameters.values():
        if p.kind is p.VAR_KEYWORD:
            filled[p.name] = {key: value for key, value in context.items() if key not in filled and key not in signature.parameters} | given.get(p.name, {})
    return filled
