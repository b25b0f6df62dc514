"""`onceflow dags`: what can run."""

from __future__ import annotations

import json as json_module
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.authoring.schedule import unpack_schedule
from onceflow.authoring.timetable import DataInterval, PlannedRun, iterate_runs
from onceflow.authoring.timetables import CronInterval, CronTrigger
from onceflow.cli.actor import name_actor
from onceflow.cli.dag_drawing import print_plan
from onceflow.cli.database import open_client, open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_pairs, print_rows, read_object, to_plain
from onceflow.errors import InvalidArgument

if TYPE_CHECKING:
    from onceflow.db.schedule_queries import DagDetail

app = typer.Typer(no_args_is_help=True, help="What can run.")

COLUMNS: list[Column] = [
    ("dag", "dag_id"),
    ("kind", "kind"),
    ("paused", "is_paused"),
    ("active", "is_active"),
    ("import errors", "has_import_errors"),
    ("schedule", "schedule_interval"),
    ("next run", "next_dagrun_create_after"),
    ("workers", "workers"),
    ("ready", "ready"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("code version", "code_version"),
    ("description", "description"),
]

DATE_COLUMNS: list[Column] = [(name.replace("_", " "), itemgetter(name)) for name in ("logical_date", "interval_end", "run_id", "state", "action")]
RUN_COLUMNS: list[Column] = [(name.replace("_", " "), name) for name in PlannedRun.__slots__]
KINDS = {"interval": CronInterval, "trigger": CronTrigger}
Dag = Annotated[str, typer.Argument(metavar="DAG", help="The dag.")]
Cron = Annotated[str, typer.Option("--cron", metavar="TEXT", help="A cron text, for example '0 6 * * *', or a preset such as @daily.")]
Zone = Annotated[str, typer.Option("--timezone", metavar="TZ", help="The zone whose clock it means, for example Europe/Berlin.")]
Start = Annotated[str, typer.Option("--start", metavar="ISO", help="The first logical date is not before this moment; UTC unless it says otherwise.")]
Count = Annotated[int, typer.Option("--count", min=1, max=100_000, metavar="N", help="How many runs.")]
Kind = Annotated[str, typer.Option("--timetable", metavar="interval|trigger", help="A run for each interval (as a plain cron text means), or at each tick.")]


@app.callback()
def group() -> None:
    """What can run."""


@app.command("list")
def list_(dsn: Dsn = None, json: Json = False) -> None:
    """Every registered dag and workflow (and step that can be started by itself). Reads the database; executes no code of theirs."""
    from onceflow.db.dag_file_queries import count_import_errors
    from onceflow.db.queries import list_dags

    with open_reads(dsn) as reader:
        print_rows(list_dags(reader), COLUMNS, json, empty="nothing is registered. Start a worker: onceflow worker --dags FOLDER")
        if errors := count_import_errors(reader):
            typer.secho(f"{errors} import error{'s' if errors > 1 else ''}; see them with: onceflow dags errors", fg="red", err=True)


@app.command()
def show(
    dag: Dag, count: Annotated[int, typer.Option("--runs", min=0, max=1000, help="How many coming runs.")] = 3, dsn: Dsn = None, json: Json = False
) -> None:
    """One dag or workflow: the next runs of its schedule, its tasks in their order, its versions, what is wrong with its file."""
    from onceflow.db.dag_file_queries import list_import_errors, list_versions
    from onceflow.db.schedule_queries import read_dag

    with open_reads(dsn) as reader:
        found, versions, errors = read_dag(reader, dag), list_versions(reader, dag), list_import_errors(reader, dag)
    runs = _list_next(found, count)
    if json:
        shown: dict[str, list[Any]] = {"next_runs": runs, "versions": versions, "import_errors": errors}
        print_json({**to_plain(found), **{name: [to_plain(row) for row in rows] for name, rows in shown.items()}})
        return
    hidden = ("schedule", "now")
    print_pairs({name.replace("_", " "): value for name, value in to_plain(found).items() if name not in hidden})
    if runs:
        typer.echo(f"\nnext runs{' once it is unpaused' if found.is_paused else ''}")
        print_rows(runs, RUN_COLUMNS, False)
    print_plan(versions)
    for error in errors:
        typer.secho(f"\n{error.what}", fg="yellow" if error.is_warning else "red")


@app.command()
def pause(dag: Dag, dsn: Dsn = None, json: Json = False) -> None:
    """Let nothing new of a dag or workflow be scheduled, begun or claimed. What runs goes on; what is started by hand waits."""
    _set_paused(dag, True, dsn, json)


@app.command()
def unpause(dag: Dag, dsn: Dsn = None, json: Json = False) -> None:
    """Let it go on: with catchup from where it stood, without with the latest run that is due."""
    _set_paused(dag, False, dsn, json)


@app.command()
def backfill(
    dag: Dag,
    start_date: Annotated[str, typer.Option("--start-date", metavar="ISO", help="The first logical date: a day in the dag's zone, or a moment.")],
    end_date: Annotated[str, typer.Option("--end-date", metavar="ISO", help="The last one, which belongs to it; a day counts as a whole.")],
    reprocess: Annotated[str, typer.Option("--reprocess", metavar="none|failed|completed", help="Dates that have a run: which run again.")] = "none",
    reverse: Annotated[bool, typer.Option("--reverse", help="The latest date first.")] = False,
    max_active_runs: Annotated[int, typer.Option("--max-active-runs", min=1, metavar="N", help="Runs at once; apart from the dag's own limit.")] = 1,
    on_failure: Annotated[str, typer.Option("--on-failure", metavar="pause|continue", help="After a run that failed.")] = "pause",
    params: Annotated[str | None, typer.Option("--params", metavar="JSON", help="Parameters of all its runs: an object.")] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Of its tasks; by default they come behind all other work.")] = -1_000_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do with each date; change nothing.")] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make the runs of a dag for dates from the past, both ends included. Then see: onceflow backfill list|show|pause|resume|cancel."""
    options: Any = {"reprocess": reprocess, "reverse": reverse, "max_active_runs": max_active_runs, "on_failure": on_failure, "priority": priority}
    options |= {"params": read_object(params, "--params"), "actor": name_actor()}
    with open_client(dsn) as (client, _):
        if dry_run:
            print_rows(client.preview_backfill(dag, start_date, end_date, **options), DATE_COLUMNS, json)
            return
        made = client.backfill(dag, start_date, end_date, **options)
        progress = made.progress()
    if json:
        print_json(to_plain(progress))
        return
    kept = f", {made.skipped} dates keep the run they have" if made.skipped else ""
    waits = f"; dag {dag} is paused, they wait for: onceflow dags unpause {dag}" if progress.is_dag_paused else ""
    typer.echo(f"backfill {made.id} of {dag}: {made.total} runs{kept}{waits}. See it with: onceflow backfill show {made.id}")


@app.command("next-runs")
def next_runs(cron: Cron, start: Start, timezone: Zone = "UTC", count: Count = 10, timetable: Kind = "interval", json: Json = False) -> None:
    """The runs that a cron text makes from a moment on, all times in UTC. Needs no database."""
    if timetable not in KINDS:
        raise InvalidArgument(f"--timetable cannot be {timetable!r}; write one of {', '.join(KINDS)}")
    runs = iterate_runs(KINDS[timetable](cron, timezone=timezone), read_moment(start, "--start"))
    print_rows(list(islice(runs, count)), RUN_COLUMNS, json, empty="there are no runs from then on")


def _list_next(dag: DagDetail, count: int) -> list[PlannedRun]:
    """The coming runs, if it is unpaused now and keeps its schedule; as far as this process can make the timetable."""
    if dag.schedule is None:
        return []
    schedule, runs = unpack_schedule(json_module.dumps(dag.schedule)), list[PlannedRun]()
    last = DataInterval(dag.last_interval_start, dag.last_interval_end) if dag.last_interval_start and dag.last_interval_end else None
    while len(runs) < count and (run := schedule.timetable.plan_run(last, schedule.bounds, catchup=schedule.catchup, now=dag.now)):
        runs.append(run)
        last = run.interval
    return runs


def _set_paused(dag: str, is_paused: bool, dsn: str | None, json: bool) -> None:
    with open_client(dsn) as (client, _):
        changed = client.pause(dag) if is_paused else client.unpause(dag)
    if json:
        print_json({"dag_id": dag, "is_paused": is_paused, "changed": changed})
    else:
        typer.echo(f"{dag} is {'' if changed else 'already '}{'paused' if is_paused else 'unpaused'}")


def read_moment(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{option} {text!r} is no moment; write for example 2026-01-31 or 2026-01-31T06:00:00+01:00") from None
