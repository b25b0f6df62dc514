"""`onceflow tasks`: see, clear and mark the tasks of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any

import typer

from onceflow.cli.dag_files import load_dag, report_test
from onceflow.cli.dags import read_moment
from onceflow.cli.database import open_reads
from onceflow.cli.options import Dags, Dsn, Json, Run
from onceflow.cli.output import Column, print_json, print_rows, read_object
from onceflow.errors import InvalidArgument

app = typer.Typer(no_args_is_help=True, help="See, clear and mark the tasks of runs.")

COLUMNS: list[Column] = [
    ("task", "label"),
    ("state", "state"),
    ("try", "try_number"),
    ("start", "start_date"),
    ("end", "end_date"),
    ("s", "duration"),
    ("worker", "hostname"),
    ("error", "error"),
]
CLEARED: list[Column] = [("run", itemgetter("run_id")), ("task", itemgetter("task_id")), ("map index", itemgetter("map_index")), ("state", itemgetter("state"))]
Actor = Annotated[str | None, typer.Option("--actor", metavar="WHO", help="Who decided; for the ledger.")]


@app.command("list")
def list_(run: Run, dsn: Dsn = None, json: Json = False) -> None:
    """The task instances of a run."""
    from onceflow.db.queries import find_run, read_run

    with open_reads(dsn) as reader:
        print_rows(read_run(reader, find_run(reader, run)).tasks, COLUMNS, json, empty="the run has no tasks yet")


@app.command()
def clear(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The dag.")],
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Only this run.")] = None,
    start_date: Annotated[str | None, typer.Option("--start-date", metavar="ISO", help="Runs from this logical date on.")] = None,
    end_date: Annotated[str | None, typer.Option("--end-date", metavar="ISO", help="Runs up to this logical date, which counts; a day counts whole.")] = None,
    task_regex: Annotated[str | None, typer.Option("--task-regex", metavar="REGEX", help="Only tasks whose id matches.")] = None,
    upstream: Annotated[bool, typer.Option("--upstream", help="And all they depend on.")] = False,
    downstream: Annotated[bool, typer.Option("--downstream", help="And all that depends on them.")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only those failed or upstream_failed.")] = False,
    map_index: Annotated[int | None, typer.Option("--map-index", min=0, metavar="N", help="Only this instance of a mapped task.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run again; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    actor: Actor = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Let tasks run again. Shows first what will; what they did stays in the ledger."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    asked: dict[str, Any] = {
        "run_id": run_id,
        "start_date": _read_moment(start_date, "--start-date"),
        "end_date": _read_moment(end_date, "--end-date", is_end=True),
        "task_regex": task_regex,
        "upstream": upstream,
        "downstream": downstream,
        "only_failed": only_failed,
        "map_index": map_index,
        "actor": actor,
    }
    with open_reads(dsn) as reader:
        found = run_call(reader, dag_calls.clear_tasks(dag, asked | {"dry_run": True}))
        if not json:
            print_rows(found, CLEARED, False, empty="nothing to clear")
        if found and not dry_run:
            if not (yes or json):
                typer.confirm(f"Run these {len(found)} tasks again?", abort=True)
            found = run_call(reader, dag_calls.clear_tasks(dag, asked | {"dry_run": False}))
    if json:
        print_json(found)


@app.command()
def mark(
    run: Run,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    state: Annotated[str, typer.Argument(metavar="success|failed|skipped", help="What it counts as from now on.")],
    map_index: Annotated[int, typer.Option("--map-index", min=-1, metavar="N", help="The instance of a mapped task.")] = -1,
    actor: Actor = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Set a task's state by hand; what failed because of it decides anew. The ledger says who did it."""
    from onceflow.db import dag_calls
    from onceflow.db.queries import find_run
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        found = find_run(reader, run)
        run_call(reader, dag_calls.mark_task(found, task, state, map_index, actor))
    if json:
        print_json({"run": str(found), "task": task, "map_index": map_index, "state": state})
    else:
        typer.echo(f"{task} is {state}")


@app.command()
def test(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The dag.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    dags: Dags = None,
    logical_date: Annotated[str | None, typer.Option("--logical-date", metavar="ISO", help="Default: now.")] = None,
    params: Annotated[str | None, typer.Option("--params", metavar="JSON", help="Parameters: an object.")] = None,
    given: Annotated[str | None, typer.Option("--given", metavar="JSON", help="Outputs of tasks before it, by task id: an object.")] = None,
    setup: Annotated[str | None, typer.Option("--setup", metavar="FILE", help="SQL that prepares the throw-away database.")] = None,
    json: Json = False,
) -> None:
    """Run one task of a dag in this process, without those before and after it, on a throw-away database. Exit code 1 if it fails."""
    from pathlib import Path

    from onceflow.authoring.graph.alone import one_task

    found = load_dag(dag, dags, "onceflow tasks test")
    moment = read_moment(logical_date, "--logical-date") if logical_date else None
    with one_task(found, task, read_object(given, "--given")):
        run = found.test(logical_date=moment, params=read_object(params, "--params"), setup=Path(setup) if setup else ())
    report_test(run, json)


def _read_moment(text: str | None, option: str, *, is_end: bool = False) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{option} {text!r} is no moment; write for example 2026-01-31 or 2026-01-31T06:00:00+01:00") from None
    if is_end and len(text) <= 10:
        moment += timedelta(days=1, microseconds=-1)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
