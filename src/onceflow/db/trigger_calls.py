"""The calls that concern waiting tasks and their triggers: one function per sql/ function, as in calls."""

from __future__ import annotations

from onceflow.db.calls import Call, call_function

_DONE = "bigint bigint uuid text text text text"


def defer_to_trigger(
    run: int,
    ti: int,
    token: str,
    name: str,
    kind: str,
    inputs: str,
    inputs_hash: str,
    onward: str,
    trigger: str,
    timeout_s: float | None,
    limit_s: float | None,
    elapsed_us: int,
) -> Call:
    types = f"{_DONE} text text float8 float8 bigint"
    return call_function("defer_to_trigger", types, run, ti, token, name, kind, inputs, inputs_hash, onward, trigger, timeout_s, limit_s, elapsed_us)


def reschedule_task(run: int, ti: int, token: str, name: str, kind: str, inputs: str, inputs_hash: str, onward: str, delay_s: float, elapsed_us: int) -> Call:
    return call_function("reschedule_task", f"{_DONE} text float8 bigint", run, ti, token, name, kind, inputs, inputs_hash, onward, delay_s, elapsed_us)


def register_triggerer(host: str, pid: int, lease_s: float) -> Call:
    """Answers the triggerer's id."""
    return call_function("register_triggerer", "text int float8", host, pid, lease_s)


def beat_triggerer(triggerer: int, held: list[int], room: int) -> Call:
    """Answers {is_known, taken: [{id, classpath, kwargs}, …], kept: [id, …]}."""
    return call_function("beat_triggerer", "int int[] int", triggerer, held, room)


def fire_triggers(triggerer: int, events: str) -> Call:
    """Answers the ids of those that fired."""
    return call_function("fire_triggers", "int text", triggerer, events)


def end_triggerer(triggerer: int) -> Call:
    return call_function("end_triggerer", "int", triggerer)


def answer_approval(run: int, task_id: str, answer: str, actor: str | None, comment: str | None, map_index: int) -> Call:
    return call_function("answer_approval", "bigint text text text text int", run, task_id, answer, actor, comment, map_index)


def read_external(dag_id: str, logical_date: str, task_ids: list[str]) -> Call:
    """Answers [[name, state], …]."""
    return call_function("read_external", "text text::timestamptz text[]", dag_id, logical_date, task_ids)
