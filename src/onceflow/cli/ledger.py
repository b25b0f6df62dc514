"""`onceflow ledger`: what happened, whether it still says so, and which step wrote a row."""

from __future__ import annotations

import sys
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from onceflow.cli.database import AUDITOR, open_reads
from onceflow.cli.failures import NEGATIVE
from onceflow.cli.options import Dsn, Json, Run
from onceflow.cli.output import Column, print_json, print_rows, to_plain
from onceflow.errors import InvalidArgument

app = typer.Typer(no_args_is_help=True, help="What happened, whether it still says so, which step wrote a row.")

ENTRY_COLUMNS: list[Column] = [
    ("entry", "id"),
    ("task", lambda e: e.task_id if e.map_index < 0 else f"{e.task_id}[{e.map_index}]"),
    ("step", "step_key"),
    ("kind", "kind"),
    ("try", "try_number"),
    ("from", "from_state"),
    ("to", "to_state"),
    ("at", "at"),
    ("by", lambda e: e.actor or e.host),
    ("xid", "xid"),
    ("error", lambda e: e.error.get("message") if isinstance(e.error, dict) else e.error),
]


@app.command()
def show(run: Run, dsn: Dsn = None, json: Json = False) -> None:
    """The entries of a run, in the order in which they were written. --json has inputs, outputs and hashes too."""
    from onceflow.db.queries import find_run, list_entries

    with open_reads(dsn, AUDITOR) as reader:
        print_rows(list_entries(reader, find_run(reader, run)), ENTRY_COLUMNS, json, empty="no entries yet")


@app.command()
def verify(dsn: Dsn = None, json: Json = False) -> None:
    """Look for changed, removed and inserted entries. Exit code 1 if there are any."""
    from onceflow.db.queries import verify_ledger

    with open_reads(dsn, AUDITOR) as reader:
        rows = verify_ledger(reader)
    if json:
        print_json([{name: to_plain(value) for name, value in row.items()} for row in rows])
    elif rows:
        print_rows(rows, _columns(rows), False)
    else:
        typer.echo("the ledger is clean: nothing changed, removed or inserted")
    raise typer.Exit(NEGATIVE if rows else 0)


@app.command("who-wrote")
def who_wrote(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table, with its schema if need be.")],
    where: Annotated[str, typer.Option("--where", metavar="SQL", help="Which rows: a condition; the table's alias is p.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most that many rows.")] = 100,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Which ledger entry wrote these rows. 'unknown' where nothing proves it; it never guesses."""
    from onceflow.db.driver_errors import sqlstate_of
    from onceflow.db.queries import find_writers

    with open_reads(dsn, AUDITOR) as reader:
        try:
            rows = find_writers(reader, table, where, limit)
        except Exception as error:
            # Classes 42, 22, 25: the table or the condition is not what this database can read.
            said = str(error).strip().split("\n")[0]
            if (sqlstate_of(error) or "")[:2] not in ("42", "22", "25") or "function onceflow." in said:
                raise
            raise InvalidArgument(f"who-wrote {table} --where {where!r}: {said}. Mend the name or the condition.") from None
    print_rows([{name: to_plain(value) for name, value in row.items()} for row in rows], _columns(rows), json, empty="no such row")


@app.command()
def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - is stdout. A file that exists is never overwritten.")],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Write every entry and seal as JSON lines, all of one moment. Keep the file elsewhere: seals out of reach catch an owner who recomputes everything."""
    from onceflow.db.export import export_ledger

    with open_reads(dsn, AUDITOR) as reader:
        if file == "-":
            for line in export_ledger(reader):
                sys.stdout.write(line + "\n")
            return
        target, unfinished, count = Path(file), Path(f"{file}.unfinished"), 0
        if target.exists():
            raise InvalidArgument(f"{file} exists already. Name another file.")
        try:
            with unfinished.open("w", encoding="utf-8") as out:
                for count, line in enumerate(export_ledger(reader), 1):  # noqa: B007
                    out.write(line + "\n")
            unfinished.rename(target)
        except OSError as error:
            raise InvalidArgument(f"{file} cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)
    print_json({"file": file, "lines": count}) if json else typer.echo(f"{file}: {count} lines")


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [(name, itemgetter(name)) for name in (rows[0] if rows else ())]
