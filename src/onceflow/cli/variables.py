"""`onceflow variables`: values that tasks read by name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_rows
from onceflow.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Values that tasks read by name. Secret ones are kept encrypted and never shown.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The variable's name.")]
COLUMNS: list[Column] = [("variable", "key"), ("value", lambda v: "***" if v.is_encrypted else v.val), ("description", "description")]


@app.command("list")
def list_(dsn: Dsn = None, json: Json = False) -> None:
    """The variables that the database knows; workers may have others in their environment."""
    from onceflow.db.named_value_queries import list_variables

    with open_reads(dsn) as reader:
        print_rows(list_variables(reader), COLUMNS, json, empty="there are no variables")


@app.command()
def get(key: Key, dsn: Dsn = None, json: Json = False) -> None:
    """One variable's value; *** if it is secret."""
    from onceflow.db.named_value_queries import list_variables

    with open_reads(dsn) as reader:
        found = [row for row in list_variables(reader) if row.key == key]
    if not found:
        raise NotFound(f"there is no variable {key!r} in the database; see onceflow variables list")
    if json:
        print_json(found[0])
    else:
        typer.echo("***" if found[0].is_encrypted else found[0].val)


@app.command("set")
def set_(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value, a text; - reads it from stdin, which no history keeps.")],
    secret: Annotated[bool, typer.Option("--secret", help="Keep it encrypted. So is, anyway, what is named like a password, token or key.")] = False,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make a variable, or replace its value."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call
    from onceflow.engine.named_values import is_secret_name
    from onceflow.engine.secret_box import SecretBox
    from onceflow.settings import load_settings

    text = sys.stdin.read().removesuffix("\n") if value == "-" else value
    is_secret = secret or is_secret_name(key)
    if is_secret:
        text = SecretBox(load_settings().fernet_key).encrypt(text, f"variable {key!r}")
    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.set_variable(key, text, is_secret, description))
    if json:
        print_json({"set": key, "is_encrypted": is_secret})
    else:
        typer.echo(f"variable {key} is set")


@app.command()
def delete(key: Key, dsn: Dsn = None, json: Json = False) -> None:
    """Forget a variable."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.delete_variable(key))
    if json:
        print_json({"deleted": key})
    else:
        typer.echo(f"variable {key} is gone")
