"""`onceflow datasets`: what tasks write and dags run by."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_pairs, print_rows, print_table, read_object, to_plain

app = typer.Typer(no_args_is_help=True, help="What tasks write, and dags run by.")

COLUMNS: list[Column] = [
    ("dataset", "uri"),
    ("events", "events"),
    ("in 24 h", "events_24h"),
    ("last event", "last_event_at"),
    ("written by", "producers"),
    ("runs", "consumers"),
    ("waiting", "waiting"),
]
EVENTS: list[Column] = [
    ("event", "event"),
    ("dataset", "uri"),
    ("at", "timestamp"),
    ("told by", lambda e: f"{e.source_dag_id}.{e.source_task_id}/{e.source_run_id}" if e.source_dag_id else "SQL"),
    ("extra", "extra"),
    ("taken by", "runs"),
    ("waits for", "waiting_for"),
]
WAITS: list[Column] = [("dag", "dag_id"), ("events", "events"), ("why", "reason"), ("missing", "missing"), ("for s", "queue_age_s")]
Uri = Annotated[str, typer.Argument(metavar="URI", help="The dataset's URI, as in the dag's file.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the latest.")]


@app.command("list")
def list_(
    orphaned: Annotated[bool, typer.Option("--orphaned", help="Those too that no dag names any more.")] = False, dsn: Dsn = None, json: Json = False
) -> None:
    """The datasets: who writes them, which dags run by them, what was told last."""
    from onceflow.db.dataset_queries import list_datasets

    with open_reads(dsn) as reader:
        print_rows(list_datasets(reader, orphaned=orphaned), COLUMNS, json, empty="no dag names a dataset")


@app.command()
def show(uri: Uri, limit: Limit = 10, dsn: Dsn = None, json: Json = False) -> None:
    """One dataset, its latest events, and why what waits for its dags waits."""
    from onceflow.db.dataset_queries import list_dataset_events, list_dataset_waits, read_dataset

    with open_reads(dsn) as reader:
        found = read_dataset(reader, uri)
        events = list_dataset_events(reader, uri, limit)
        waits = [wait for wait in list_dataset_waits(reader) if uri in wait.datasets]
    if json:
        print_json({**to_plain(found), "latest": events, "waits": waits})
        return
    print_pairs({name: value for name, value in to_plain(found).items() if value not in ([], None)})
    if events:
        print_table(EVENTS, events, "Latest events")
    if waits:
        print_table(WAITS, waits, "What waits")


@app.command()
def emit(
    uri: Uri, extra: Annotated[str | None, typer.Option("--extra", help="What to say of it, a JSON object.")] = None, dsn: Dsn = None, json: Json = False
) -> None:
    """Say that a dataset was written; the dags that run by it run, with the next tick."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    said = None if extra is None else _dump(read_object(extra, "--extra"))
    with open_reads(dsn) as reader:
        event = run_call(reader, dag_calls.emit_dataset_event(uri, said))
    if json:
        print_json({"event": event, "uri": uri})
    else:
        typer.echo(f"event {event} of {uri}")


@app.command()
def events(
    uri: Annotated[str | None, typer.Argument(metavar="[URI]", help="Of this dataset only.")] = None, limit: Limit = 50, dsn: Dsn = None, json: Json = False
) -> None:
    """What was told, the latest first, and which runs have taken it."""
    from onceflow.db.dataset_queries import list_dataset_events, read_dataset

    with open_reads(dsn) as reader:
        if uri is not None:
            read_dataset(reader, uri)
        print_rows(list_dataset_events(reader, uri, limit), EVENTS, json, empty="nothing was told yet")


def _dump(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
