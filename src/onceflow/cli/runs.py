"""`onceflow runs`: start, see and steer runs."""

from __future__ import annotations

import json as json_module
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.checks import check_seconds
from onceflow.checks import show as show_value
from onceflow.cli.actor import name_actor
from onceflow.cli.database import open_client, open_reads
from onceflow.cli.failures import NEGATIVE, print_failure
from onceflow.cli.options import Dsn, Json, Run
from onceflow.cli.output import Column, print_json, print_pairs, print_rows, print_table, to_plain
from onceflow.errors import RunCancelled, RunFailed, RunStopped, WaitTimeout

if TYPE_CHECKING:
    from onceflow.db.queries import FailureRow, Reader, RunDetail
    from onceflow.engine.client import RunHandle

app = typer.Typer(no_args_is_help=True, help="Start, see and steer runs.")
STATES = ("queued", "running", "success", "failed", "cancelled", "needs_code")
TELL_QUEUED_S = 5.0
SHOWN_FAILURES = 5


@app.command()
def start(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The workflow, dag or step.")],
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Arguments: an object (by name) or an array (by position).")] = None,
    params: Annotated[str | None, typer.Option("--params", metavar="JSON", help="Parameters of a dag: an object.")] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Idempotency key: the same id and arguments give the same run.")] = None,
    deduplicate: Annotated[
        str | None, typer.Option("--deduplicate", metavar="TEXT", help="While a run started with this text lives, the same arguments give that run.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Queue to run on.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 if it is not success.")] = False,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Wait no longer than that; the run goes on.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Start a run. Prints DAG/RUN_ID; with --wait, its result."""
    positional, named = _read_arguments(args, params)
    if timeout is not None:
        check_seconds(timeout, "--timeout", zero=True)
        if not wait:
            raise typer.BadParameter("limits the waiting, so it needs --wait", param_hint="--timeout")
    with open_client(dsn) as (client, reader):
        using: Any = client.using(run_id=run_id, queue=queue, deduplicate=deduplicate)  # its types are for workflow objects; a name works the same
        handle: RunHandle[Any] = using.start(name, *positional) if positional else using.trigger(name, named)
        if wait:
            try:
                detail = _await_end(reader, handle.run, timeout)
            except KeyboardInterrupt:
                typer.echo(f"{handle.dag_id}/{handle.run_id} goes on. See it with: onceflow runs show {handle.dag_id}/{handle.run_id}", err=True)
                raise
            _report_end(handle, detail, json)
        elif json:
            print_json({"run": str(handle.run), "dag_id": handle.dag_id, "run_id": handle.run_id, "created": handle.created})
        else:
            typer.echo(f"{handle.dag_id}/{handle.run_id}{'' if handle.created else '  (was there already)'}")


def _read_arguments(args: str | None, params: str | None) -> tuple[list[Any], dict[str, Any]]:
    if args is not None and params is not None:
        raise typer.BadParameter("give --args or --params, not both", param_hint="--args")
    hint, text = ("--params", params) if params is not None else ("--args", args)
    try:
        value = json_module.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{show_value(text)} is not JSON: {error}", param_hint=hint) from None
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list) and hint == "--args":
        return value, {}
    raise typer.BadParameter(f"must be a JSON object{' or array' if hint == '--args' else ''}, not {text}", param_hint=hint)


def _await_end(reader: Reader, run: int, timeout_s: float | None) -> RunDetail:
    """The run once it has ended, by itself or by a named stop; follows continue_as."""
    from onceflow.db.queries import ENDED, read_run, read_run_state

    started, pause_s, told = time.monotonic(), 0.01, False
    while True:
        state = read_run_state(reader, run)
        if state in (*ENDED, "needs_code"):
            detail = read_run(reader, run)
            if not (isinstance(detail.output, dict) and set(detail.output) == {"$continued"}):
                return detail
            run = int(detail.output["$continued"]["run"])
        elif timeout_s is not None and time.monotonic() - started > timeout_s:
            raise WaitTimeout(f"run {run} is still {state} after {timeout_s:g} s; it goes on. See it with: onceflow runs show {run}")
        else:
            if state == "queued" and not told and time.monotonic() - started > TELL_QUEUED_S:
                typer.echo("still queued: no worker has taken it. Why? Ask: onceflow doctor", err=True)
                told = True
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.25)


def _report_end(handle: RunHandle[Any], detail: RunDetail, json: bool) -> None:
    row = detail.row
    if json:
        print_json({**to_plain(row), "created": handle.created, "output": detail.output, "error": detail.error})
    elif row.state == "success":
        typer.echo(json_module.dumps(detail.output, ensure_ascii=False))
    if row.state != "success":
        cls = {"failed": RunFailed, "cancelled": RunCancelled}.get(row.state, RunStopped)
        if not json:
            name = f"{row.dag_id}/{row.run_id}"
            print_failure(cls(f"run {name} is {row.state}: {_first_line(_reason(detail))}. See it with: onceflow runs show {name}"))
        raise typer.Exit(NEGATIVE)


def _reason(detail: RunDetail) -> str:
    error = detail.error
    if isinstance(error, dict) and "$error" in error:
        return _name_error(error)
    return detail.row.stop_reason or (str(error) if error else "a task of it failed")


def _name_error(error: dict[str, Any]) -> str:
    return f"{str(error['$error']).split(':')[-1]}: {error.get('message', '')}"


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


RUN_COLUMNS: list[Column] = [
    ("dag", "dag_id"),
    ("run id", "run_id"),
    ("state", "state"),
    ("created", "created_at"),
    ("seconds", lambda r: (r.end_date - r.start_date).total_seconds() if r.end_date and r.start_date else None),
    ("queue", "queue"),
]


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option("--state", help=f"One of {', '.join(STATES)}.")] = None,
    dag: Annotated[str | None, typer.Option("--dag", metavar="NAME", help="Only runs of this dag or workflow.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most that many.")] = 50,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """The newest runs."""
    from onceflow.db.queries import list_runs

    if state is not None and state not in STATES:
        raise typer.BadParameter(f"{state!r} is not a state of runs; one of {', '.join(STATES)}", param_hint="--state")
    with open_reads(dsn) as reader:
        print_rows(list_runs(reader, state=state, dag_id=dag, limit=limit), RUN_COLUMNS, json, empty="no runs")


@app.command()
def show(run: Run, dsn: Dsn = None, json: Json = False) -> None:
    """A run with its arguments, its tasks, what they wait for, and how it ended."""
    from onceflow.db.queries import find_run, list_failures, read_run

    with open_reads(dsn) as reader:
        detail = read_run(reader, find_run(reader, run))
        failures = list_failures(reader, detail.row.run, SHOWN_FAILURES)
    if json:
        print_json({**to_plain(detail.row), "conf": detail.conf, "output": detail.output, "error": detail.error, "tasks": detail.tasks, "waits": detail.waits})
        return
    row = detail.row
    failed = row.state in ("failed", "cancelled", "needs_code")
    print_pairs(
        {
            "run": f"{row.dag_id}/{row.run_id}",
            "number": row.run,
            "state": row.state,
            "because": _reason(detail) if failed else None,
            "type": row.run_type,
            "logical date": row.logical_date,
            "queue": row.queue,
            "code version": row.code_version,
            "child of": row.parent_run,
            "started by": row.actor,
            "created": row.created_at,
            "started": row.start_date,
            "ended": row.end_date,
            "arguments": detail.conf,
            "output": detail.output if row.state == "success" else None,
        }
    )
    print_table(TASK_COLUMNS, detail.tasks, "\nTasks")
    if detail.waits:
        names = {task.ti: task.task_id for task in detail.tasks}
        print_table([("task", lambda w: names.get(w.ti, w.ti)), ("waits for", "kind"), ("which", "target"), ("due", "due_at")], detail.waits, "\nWaits")
    _show_failures(failures, sum(task.state == "failed" for task in detail.tasks))


def _show_failures(failures: list[FailureRow], total: int) -> None:
    """Each error with the lines of the user's code that it went through."""
    from onceflow.codec.exceptions import find_user_frames

    for one in failures:
        task = one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]"
        trace = find_user_frames(one.error.get("traceback") or "")
        typer.echo(f"\n{task} failed: {_name_error(one.error)}" + (f"\n{trace}" if trace else ""))
    if total > len(failures):
        typer.echo(f"\n{total - len(failures)} more failed tasks: onceflow ledger show")


TASK_COLUMNS: list[Column] = [
    ("task", "label"),
    ("state", "state"),
    ("try", "try_number"),
    ("started", "start_date"),
    ("seconds", "duration"),
    ("host", "hostname"),
    ("next try", "next_retry_at"),
    ("error", "error"),
    ("number", "ti"),
]


@app.command()
def cancel(
    run: Run,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the ledger.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """End a run and its child runs; what a step has not committed cannot commit any more."""
    with open_client(dsn) as (client, reader):
        handle = _find(client, reader, run)
        handle.cancel(reason, name_actor())
        _report(handle, "cancelled", json)


@app.command()
def retry(run: Run, dsn: Dsn = None, json: Json = False) -> None:
    """Try a failed, cancelled or stopped run again; every success in its ledger is reused."""
    with open_client(dsn) as (client, reader):
        handle = _find(client, reader, run)
        handle.retry(name_actor())
        _report(handle, "queued", json)


@app.command()
def fork(
    run: Run,
    from_step: Annotated[str, typer.Option("--from-step", metavar="KEY", help="Key of the first step to run anew; see: onceflow ledger show RUN.")],
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Id of the new run.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Start a new run with the same arguments that reuses every success recorded before a step."""
    with open_client(dsn) as (client, reader):
        handle = _find(client, reader, run).fork(from_step, run_id, name_actor())
        _report(handle, "queued", json)


def _find(client: Any, reader: Reader, name: str) -> RunHandle[Any]:
    from onceflow.db.queries import find_run, read_run
    from onceflow.engine.client import RunHandle

    row = read_run(reader, find_run(reader, name)).row
    return RunHandle(client, row.run, row.dag_id, row.run_id)


def _report(handle: RunHandle[Any], state: str, json: bool) -> None:
    if json:
        print_json({"run": str(handle.run), "dag_id": handle.dag_id, "run_id": handle.run_id, "state": state})
    else:
        typer.echo(f"{handle.dag_id}/{handle.run_id}  {state}")
