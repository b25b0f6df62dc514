"""The calls that concern dags: one function per sql/ function, as in calls."""

from __future__ import annotations

from typing import Any

from onceflow.db.calls import Call, call_function


def clear_tasks(dag_id: str, given: dict[str, Any]) -> Call:
    """Answers what is cleared (or would be): a list of {run_id, task_id, map_index, state}."""
    names = ("run_id", "start_date", "end_date", "task_regex", "upstream", "downstream", "only_failed", "map_index", "dry_run", "actor")
    types = ("text", "text", *("timestamptz", "timestamptz", "text", "bool", "bool", "bool", "int", "bool", "text"))
    shape = (
        "coalesce(jsonb_agg(jsonb_build_object('run_id', c.cleared_run_id, 'task_id', c.task_id, 'map_index', c.cleared_map_index, 'state', c.state)), '[]')"
    )
    holes = ", ".join(f"${i}::{kind}" for i, kind in enumerate(types, 1))
    sql = f"select ({shape})::text from onceflow.clear_tasks({holes}) c"
    return Call("clear_tasks", sql, (dag_id, *(given.get(name) for name in names)), types)


def mark_task(run: int, task_id: str, state: str, map_index: int, actor: str | None) -> Call:
    return call_function("mark_task", "bigint text text int text", run, task_id, state, map_index, actor)


def set_pool(name: str, slots: int, description: str | None, include_deferred: bool | None) -> Call:
    return call_function("set_pool", "text int text bool", name, slots, description, include_deferred)


def delete_pool(name: str) -> Call:
    return call_function("delete_pool", "text", name)


def set_ageing(every_s: float | None) -> Call:
    return call_function("set_ageing", "float8", every_s)


def list_due_dags(limit: int, backlog: int) -> Call:
    return call_function("list_due_dags", "int int", limit, backlog)


def schedule_runs(plans: str, scheduler: int | None = None) -> Call:
    return call_function("schedule_runs", "text bigint", plans, scheduler)


def pause_dag(dag_id: str, is_paused: bool) -> Call:
    return call_function("pause_dag", "text bool", dag_id, is_paused)


def create_backfill(
    dag_id: str,
    key: str,
    bounds: tuple[str, str],
    dates: str,
    reprocess: str,
    is_reverse: bool,
    max_active_runs: int,
    on_failure: str,
    params: str,
    priority: int,
    actor: str | None,
) -> Call:
    types = "text text text::timestamptz text::timestamptz text::jsonb text bool int text text::jsonb int text"
    return call_function("create_backfill", types, dag_id, key, *bounds, dates, reprocess, is_reverse, max_active_runs, on_failure, params, priority, actor)


def preview_backfill(dag_id: str, dates: str, reprocess: str) -> Call:
    return call_function("preview_backfill", "text text::jsonb text", dag_id, dates, reprocess)


def steer_backfill(backfill: int, act: str, actor: str | None) -> Call:
    return call_function("steer_backfill", "bigint text text", backfill, act, actor)


def read_backfill(backfill: int) -> Call:
    return call_function("read_backfill", "bigint", backfill)


def claim_folder(folder: str, owner: int, host: str, pid: int, lease_s: float) -> Call:
    """Answers whether this scheduler parses the folder now."""
    return call_function("claim_folder", "text bigint text int float8", folder, owner, host, pid, lease_s)


def leave_folder(folder: str, owner: int) -> Call:
    return call_function("leave_folder", "text bigint", folder, owner)


def list_dag_files(folder: str) -> Call:
    """Answers {filename: {sources, is_broken}}."""
    return call_function("list_dag_files", "text", folder)


def save_dag_files(folder: str, owner: int, files: str, gone: list[str]) -> Call:
    """Answers the names of files with which something is wrong; None: another scheduler parses the folder now."""
    return call_function("save_dag_files", "text bigint text text[]", folder, owner, files, gone)


def delete_dag(dag_id: str) -> Call:
    return call_function("delete_dag", "text", dag_id)


def read_run_events(run: int) -> Call:
    """Answers the events that a run was started by, oldest first."""
    return call_function("read_run_events", "bigint", run)


def emit_dataset_event(uri: str, extra: str | None) -> Call:
    """Answers the event's id."""
    return call_function("emit_dataset_event", "text text::jsonb", uri, extra)


def set_connection(name: str, fields: str) -> Call:
    return call_function("set_connection", "text text", name, fields)


def delete_connection(name: str) -> Call:
    return call_function("delete_connection", "text", name)


def set_variable(key: str, value: str, is_encrypted: bool, description: str | None) -> Call:
    return call_function("set_variable", "text text bool text", key, value, is_encrypted, description)


def delete_variable(key: str) -> Call:
    return call_function("delete_variable", "text", key)


def list_variables() -> Call:
    return call_function("list_variables", "")


def read_named_value(kind: str, name: str) -> Call:
    return call_function("read_named_value", "text text", kind, name)


def read_last_success(run: int) -> Call:
    return call_function("read_last_success", "bigint", run)
