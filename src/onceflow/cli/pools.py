"""`onceflow pools`: how much may run at once."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_rows

app = typer.Typer(no_args_is_help=True, help="How much may run at once.")

COLUMNS: list[Column] = [
    ("pool", "pool_name"),
    ("slots", lambda p: "no limit" if p.slots < 0 else p.slots),
    ("used", "used"),
    ("ready", "ready"),
    ("counts deferred", "include_deferred"),
    ("description", "description"),
]
Name = Annotated[str, typer.Argument(metavar="POOL", help="The pool's name.")]


@app.command("list")
def list_(dsn: Dsn = None, json: Json = False) -> None:
    """The pools, with what runs in them and what waits for them."""
    from onceflow.db.pool_queries import list_pools

    with open_reads(dsn) as reader:
        print_rows(list_pools(reader), COLUMNS, json, empty="there are no pools")


@app.command("set")
def set_(
    pool: Name,
    slots: Annotated[int, typer.Argument(min=-1, help="How many slots; -1 for no limit.")],
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    include_deferred: Annotated[bool | None, typer.Option("--include-deferred/--no-include-deferred", help="Do deferred tasks keep their slots?")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make a pool, or resize it; what runs goes on."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        found = run_call(reader, dag_calls.set_pool(pool, slots, description, include_deferred))
    if json:
        print_json(found)
    else:
        typer.echo(f"{pool}: {'no limit' if slots < 0 else f'{slots} slots'}")


@app.command()
def delete(pool: Name, dsn: Dsn = None, json: Json = False) -> None:
    """Remove a pool that no task names."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.delete_pool(pool))
    if json:
        print_json({"deleted": pool})
    else:
        typer.echo(f"{pool} is gone")


@app.command()
def ageing(
    every: Annotated[float, typer.Argument(metavar="SECONDS", min=0, help="A point of priority for each so many seconds; 0 switches it off.")],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Let what waits gain priority, so that nothing of low priority waits for ever. Off, unless you say otherwise."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        found = run_call(reader, dag_calls.set_ageing(every or None))
    if json:
        print_json(found)
    else:
        typer.echo(f"a waiting task gains a point of priority every {every:g} s" if every else "waiting tasks gain no priority")
