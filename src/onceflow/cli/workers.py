"""`onceflow workers`: who works."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_rows

app = typer.Typer(no_args_is_help=True, help="Who works.")

COLUMNS: list[Column] = [
    ("worker", "worker"),
    ("state", "state"),
    ("host", "host"),
    ("pid", "pid"),
    ("queues", "queues"),
    ("tasks", "held"),
    ("heartbeat s ago", lambda w: round(w.heartbeat_age_s, 1)),
    ("started", "started_at"),
    ("dags", lambda w: len(w.code_versions)),
    ("login", "login"),
]


@app.command("list")
def list_(
    ended: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """The workers: alive, or silent (no heartbeat for their lease: others take their tasks over)."""
    from onceflow.db.queries import list_workers

    with open_reads(dsn) as reader:
        print_rows(list_workers(reader, ended=ended), COLUMNS, json, empty="no worker is there. Start one: onceflow worker --dags FOLDER")
