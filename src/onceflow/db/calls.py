"""One function per sql/ function: the statement and its arguments, no I/O.

Any driver runs a `Call`: arguments are integers, floats, booleans, texts and lists of them, each with an explicit cast;
the one column that comes back is text (of a jsonb, or empty for void). `render` writes a call as plain SQL, for the one
message that carries the end of a step and its COMMIT.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Argument = int | float | bool | str | None | Sequence[int] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Call:
    """A statement with numbered parameters ($1…) that answers one text, and the function's name for logs."""

    name: str
    sql: str
    args: tuple[Argument, ...]
    types: tuple[str, ...]


_statements: dict[str, str] = {}


def call_function(name: str, types: str, *args: Argument) -> Call:
    kinds = tuple(types.split()) if types else ()
    key = f"{name}/{types}"
    sql = _statements.get(key)
    if sql is None:
        holes = ", ".join(f"${i}::{kind}" for i, kind in enumerate(kinds, 1))
        sql = _statements[key] = f"select onceflow.{name}({holes})::text"
    return Call(name, sql, args, kinds)


def parse_answer(text: str | None) -> Any:
    """The value of a call's one column: parsed JSON, or None for void and null."""
    return json.loads(text) if text else None


def quote_text(value: str) -> str:
    """A text as a literal that means the same under every setting of standard_conforming_strings."""
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _literal(value: Argument, kind: str) -> str:
    if value is None:
        return f"null::{kind}"
    if isinstance(value, str):
        return f"{quote_text(value)}::{kind}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"({value!r})::{kind}"
    return "array[" + ", ".join(_literal(v, kind.removesuffix("[]")) for v in value) + f"]::{kind}"


def render(call: Call) -> str:
    """The call as one SQL statement without parameters.

    >>> render(set_run_event(7, 8, "0-0", "k", "{}", "h", "it's", "1")).count("''")
    1
    """
    values = ", ".join(_literal(v, k) for v, k in zip(call.args, call.types, strict=True))
    return f"select onceflow.{call.name}({values})"


_OWNER = "bigint bigint uuid"  # run, ti, token


def register_worker(worker: int, host: str, pid: int, queues: list[str], lease_s: float, dags: str, is_test: bool = False, user: str | None = None) -> Call:
    return call_function("register_worker", "bigint text int text[] float8 text bool text", worker, host, pid, queues, lease_s, dags, is_test, user)


def register_dags(dags: str, update: bool) -> Call:
    return call_function("register_dags", "text bool", dags, update)


def claim_tasks(worker: int, claim: int, lanes: list[int], limit: int, again: bool = False) -> Call:
    return call_function("claim_tasks", "bigint bigint int[] int bool", worker, claim, lanes, limit, again)


def heartbeat(worker: int, tis: list[int], tokens: list[str], claim: int) -> Call:
    return call_function("heartbeat", "bigint bigint[] uuid[] bigint", worker, tis, tokens, claim)


def unclaim_tasks(worker: int, tokens: list[str]) -> Call:
    return call_function("unclaim_tasks", "bigint uuid[]", worker, tokens)


def end_worker(worker: int) -> Call:
    return call_function("end_worker", "bigint", worker)


def run_tick(limit: int, max_rescues: int) -> Call:
    return call_function("run_tick", "int int", limit, max_rescues)


def seal_ledger() -> Call:
    return call_function("seal_ledger", "")


def check_waits(waits: str) -> Call:
    return call_function("check_waits", "text", waits)


def load_history(run: int, ti: int) -> Call:
    return call_function("load_history", "bigint bigint", run, ti)


def start_step(run: int, ti: int, token: str, key: str, name: str, kind: str, try_number: int, inputs: str, inputs_hash: str) -> Call:
    return call_function("start_step", f"{_OWNER} text text text int text text", run, ti, token, key, name, kind, try_number, inputs, inputs_hash)


def complete_step(
    run: int, ti: int, token: str, key: str, name: str, kind: str, try_number: int, inputs: str, inputs_hash: str, output: str, elapsed_us: int
) -> Call:
    return call_function(
        "complete_step",
        f"{_OWNER} text text text int text text text bigint",
        run,
        ti,
        token,
        key,
        name,
        kind,
        try_number,
        inputs,
        inputs_hash,
        output,
        elapsed_us,
    )


def fail_step(
    run: int,
    ti: int,
    token: str,
    key: str,
    name: str,
    kind: str,
    try_number: int,
    inputs: str | None,
    inputs_hash: str | None,
    error: str,
    final: bool,
    delay_s: float,
    elapsed_us: int,
) -> Call:
    types = f"{_OWNER} text text text int text text text bool float8 bigint"
    return call_function("fail_step", types, run, ti, token, key, name, kind, try_number, inputs, inputs_hash, error, final, delay_s, elapsed_us)


def complete_task(
    run: int, ti: int, token: str, name: str, kind: str, inputs: str, inputs_hash: str, output: str, elapsed_us: int, pushed: str | None = None
) -> Call:
    return call_function(
        "complete_task", f"{_OWNER} text text text text text bigint text", run, ti, token, name, kind, inputs, inputs_hash, output, elapsed_us, pushed
    )


def skip_task(run: int, ti: int, token: str, name: str, kind: str, inputs: str, inputs_hash: str, error: str, elapsed_us: int) -> Call:
    return call_function("skip_task", f"{_OWNER} text text text text text bigint", run, ti, token, name, kind, inputs, inputs_hash, error, elapsed_us)


def take_callbacks(dags: list[str], limit: int, patience_s: float) -> Call:
    return call_function("take_callbacks", "text[] int float8", dags, limit, patience_s)


def name_instance(run: int, ti: int, token: str, name: str) -> Call:
    return call_function("name_instance", f"{_OWNER} text", run, ti, token, name)


def drop_callback(callback: int) -> Call:
    return call_function("drop_callback", "bigint", callback)


def fail_task(
    run: int, ti: int, token: str, name: str, kind: str, inputs: str | None, inputs_hash: str | None, error: str, retry: bool, delay_s: float, elapsed_us: int
) -> Call:
    types = f"{_OWNER} text text text text text bool float8 bigint"
    return call_function("fail_task", types, run, ti, token, name, kind, inputs, inputs_hash, error, retry, delay_s, elapsed_us)


def defer_task(run: int, ti: int, token: str, waits: str) -> Call:
    return call_function("defer_task", f"{_OWNER} text", run, ti, token, waits)


def stop_run(run: int, ti: int, token: str, version: str, error: str) -> Call:
    return call_function("stop_run", f"{_OWNER} text text", run, ti, token, version, error)


def resolve_commit(run: int, ti: int, token: str, epoch: int, key: str, fence: int, try_number: int, is_start: bool, new_token: str) -> Call:
    return call_function("resolve_commit", f"{_OWNER} int text bigint int bool uuid", run, ti, token, epoch, key, fence, try_number, is_start, new_token)


def start_task(run: int, ti: int, token: str, key: str | None, name: str, fn: str, inputs: str, inputs_hash: str, retries: int, delay_s: float | None) -> Call:
    return call_function("start_task", f"{_OWNER} text text text text text int float8", run, ti, token, key, name, fn, inputs, inputs_hash, retries, delay_s)


def start_child(
    run: int,
    ti: int,
    token: str,
    key: str,
    name: str,
    dag_id: str,
    args: str,
    inputs_hash: str,
    run_id: str | None,
    queue: str | None,
    retries: int,
    task_kind: str,
    deduplicate: str | None = None,
) -> Call:
    types = f"{_OWNER} text text text text text text text int text text"
    return call_function("start_child", types, run, ti, token, key, name, dag_id, args, inputs_hash, run_id, queue, retries, task_kind, deduplicate)


def start_child_in_step(
    run: int, ti: int, token: str, key: str, dag_id: str, args: str, queue: str | None, retries: int, task_kind: str, deduplicate: str | None = None
) -> Call:
    types = f"{_OWNER} text text text text int text text"
    return call_function("start_child_in_step", types, run, ti, token, key, dag_id, args, queue, retries, task_kind, deduplicate)


def record_time(run: int, ti: int, token: str, key: str, name: str, inputs: str, inputs_hash: str, after_s: float) -> Call:
    return call_function("record_time", f"{_OWNER} text text text text float8", run, ti, token, key, name, inputs, inputs_hash, after_s)


def send_from_step(run: int, ti: int, token: str, key: str, inputs: str, inputs_hash: str, to_run: int, topic: str, body: str) -> Call:
    return call_function("send_from_step", f"{_OWNER} text text text bigint text text", run, ti, token, key, inputs, inputs_hash, to_run, topic, body)


def receive_message(run: int, ti: int, token: str, key: str, inputs: str, inputs_hash: str, topic: str) -> Call:
    return call_function("receive_message", f"{_OWNER} text text text text", run, ti, token, key, inputs, inputs_hash, topic)


def take_message(run: int, ti: int, token: str, topic: str) -> Call:
    return call_function("take_message", f"{_OWNER} text", run, ti, token, topic)


def set_run_event(run: int, ti: int, token: str, key: str, inputs: str, inputs_hash: str, event: str, value: str) -> Call:
    return call_function("set_run_event", f"{_OWNER} text text text text text", run, ti, token, key, inputs, inputs_hash, event, value)


def set_event_in_step(run: int, ti: int, token: str, event: str, value: str) -> Call:
    return call_function("set_event_in_step", f"{_OWNER} text text", run, ti, token, event, value)


def read_run_event(run: int, event: str) -> Call:
    return call_function("read_run_event", "bigint text", run, event)


def read_task(run: int, ti: int) -> Call:
    return call_function("read_task", "bigint bigint", run, ti)


def read_run(run: int) -> Call:
    return call_function("read_run", "bigint", run)


def list_entries(run: int) -> Call:
    return call_function("list_entries", "bigint", run)


def find_run(dag_id: str | None, run_id: str) -> Call:
    return call_function("find_run", "text text", dag_id, run_id)


def continue_run(run: int, ti: int, token: str, name: str, inputs: str, inputs_hash: str, args: str, elapsed_us: int) -> Call:
    return call_function("continue_run", f"{_OWNER} text text text text bigint", run, ti, token, name, inputs, inputs_hash, args, elapsed_us)


def send_message(run: int, topic: str, body: str, key: str | None, notify: bool = True) -> Call:
    return call_function("send_message", "bigint text text text bool", run, topic, body, key, notify)


def cancel_run(run: int, reason: str | None, actor: str | None) -> Call:
    return call_function("cancel_run", "bigint text text", run, reason, actor)


def retry_run(run: int, actor: str | None) -> Call:
    return call_function("retry_run", "bigint text", run, actor)


def fork_run(run: int, from_key: str, run_id: str, actor: str | None) -> Call:
    return call_function("fork_run", "bigint text text text", run, from_key, run_id, actor)


def list_old_months(days: int) -> Call:
    return call_function("list_old_months", "int", days)


def archive_month(month: str, days: int) -> Call:
    return call_function("archive_month", "text int", month, days)


def clean_leftovers(table: str, days: int) -> Call:
    return call_function("clean_leftovers", "text int", table, days)


def run_sql_steps(steps: str, session: str, limit: int) -> Call:
    return call_function("run_sql_steps", "jsonb text int", steps, session, limit)


def run_batch(calls: str) -> Call:
    return call_function("run_batch", "text", calls)


def complete_group(mark: str, calls: str) -> Call:
    return call_function("complete_group", "text text", mark, calls)


def wake_workers() -> Call:
    """Tells other processes that work lies ready: write-free, never in a transaction that wrote."""
    return Call("wake_workers", "select pg_notify('onceflow_ready', '')::text", (), ())


def start_run(
    dag_id: str,
    args: str,
    run_id: str | None,
    *,
    logical_date: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    delay_s: float | None = None,
    timeout_s: float | None = None,
    run_type: str = "manual",
    code_version: str | None = None,
    retries: int | None = None,
    task_kind: str | None = None,
    actor: str | None = None,
    deduplicate: str | None = None,
    interval: tuple[str, str] | None = None,
    fn: str | None = None,
) -> Call:
    sql = (
        "select onceflow.start_run($1::text, $2::text::jsonb, $3::text, logical_date => $4::text::timestamptz, queue => $5::text, priority => $6::int, "
        "delay_s => $7::float8, timeout_s => $8::float8, run_type => $9::text, code_version => $10::text, max_tries => $11::int, task_kind => $12::text, "
        "actor => $13::text, deduplicate => $14::text, interval_start => $15::text::timestamptz, interval_end => $16::text::timestamptz, fn => $17::text)::text"
    )
    values = (dag_id, args, run_id, logical_date, queue, priority, delay_s, timeout_s, run_type, code_version, retries, task_kind, actor, deduplicate)
    return Call("start_run", sql, (*values, *(interval or (None, None)), fn), ())


def list_values(run: int, task_id: str, key: str) -> Call:
    return call_function("list_values", "bigint text text", run, task_id, key)


def read_values(run: int, wanted: str) -> Call:
    return call_function("read_values", "bigint text", run, wanted)


def read_params(dag_id: str) -> Call:
    return call_function("read_params", "text", dag_id)
