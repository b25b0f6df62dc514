"""`onceflow backfill`: how far backfills are; pause, resume and cancel them."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.actor import name_actor
from onceflow.cli.database import open_client, open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_pairs, print_rows, to_plain

app = typer.Typer(no_args_is_help=True, help="See, pause, resume and cancel backfills; make one with: onceflow dags backfill.")

COLUMNS: list[Column] = [
    ("backfill", "backfill"),
    ("dag", "dag_id"),
    ("state", "state"),
    ("from", "from_date"),
    ("to", "to_date"),
    ("runs", "total"),
    ("success", "success"),
    ("failed", "failed"),
    ("running", "running"),
    ("queued", "queued"),
    ("reason", "reason"),
    ("made by", "actor"),
]
WIDTH = 40
Backfill = Annotated[int, typer.Argument(metavar="BACKFILL", help="Its number.")]


@app.command("list")
def list_(
    dag: Annotated[str | None, typer.Argument(metavar="[DAG]", help="Only those of this dag.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 50,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Backfills, the latest first."""
    from onceflow.db.schedule_queries import list_backfills

    with open_reads(dsn) as reader:
        print_rows(list_backfills(reader, dag, limit=limit), COLUMNS, json, empty="there are no backfills. Make one with: onceflow dags backfill DAG")


@app.command()
def show(backfill: Backfill, dsn: Dsn = None, json: Json = False) -> None:
    """One backfill: how far it is, and when it will have ended at its present pace."""
    with open_client(dsn) as (client, _):
        progress = client.find_backfill(backfill).progress()
    if json:
        print_json({**to_plain(progress), "ended": progress.ended})
        return
    filled = WIDTH * progress.ended // progress.total if progress.total else WIDTH
    eta = "" if progress.eta_s is None else f", {show_duration(progress.eta_s)} to go"
    typer.echo(f"[{'#' * filled}{'.' * (WIDTH - filled)}] {progress.ended} of {progress.total} runs{eta}")
    if progress.is_dag_paused:
        typer.echo(f"dag {progress.dag_id} is paused, so it waits; go on with: onceflow dags unpause {progress.dag_id}")
    if progress.state == "paused":
        typer.echo(f"{progress.reason}; go on with: onceflow backfill resume {backfill}")
    print_pairs({name.replace("_", " "): value for name, value in to_plain(progress).items() if name not in ("is_dag_paused", "eta_s")})


@app.command()
def pause(backfill: Backfill, dsn: Dsn = None, json: Json = False) -> None:
    """Let no more runs of it begin; those that run go on."""
    _steer(backfill, "pause", dsn, json)


@app.command()
def resume(backfill: Backfill, dsn: Dsn = None, json: Json = False) -> None:
    """Let it go on, also after a failure."""
    _steer(backfill, "resume", dsn, json)


@app.command()
def cancel(backfill: Backfill, dsn: Dsn = None, json: Json = False) -> None:
    """End it, and cancel its runs that have not ended."""
    _steer(backfill, "cancel", dsn, json)


def _steer(backfill: int, act: str, dsn: str | None, json: bool) -> None:
    with open_client(dsn) as (client, _):
        handle = client.find_backfill(backfill)
        getattr(handle, act)(name_actor())
        progress = handle.progress()
    if json:
        print_json(to_plain(progress))
    else:
        typer.echo(f"backfill {backfill} of {progress.dag_id} is {progress.state}")


def show_duration(seconds: float) -> str:
    """Hours, minutes and seconds, of which the first that counts and the one after it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
