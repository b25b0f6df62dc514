"""`onceflow connections`: what tasks know of other systems, by name."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer

from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import Column, print_json, print_rows, read_object
from onceflow.errors import InvalidArgument, NotFound

app = typer.Typer(no_args_is_help=True, help="What tasks know of other systems: host, login, password. Secrets are kept encrypted and never shown.")

COLUMNS: list[Column] = [
    ("connection", "conn_id"),
    ("type", "conn_type"),
    ("host", "host"),
    ("port", "port"),
    ("schema", "schema"),
    ("login", "login"),
    ("description", "description"),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The connection's name.")]


@app.command("list")
def list_(dsn: Dsn = None, json: Json = False) -> None:
    """The connections that the database knows; workers may have others in their environment."""
    from onceflow.db.named_value_queries import list_connections

    with open_reads(dsn) as reader:
        print_rows(list_connections(reader), COLUMNS, json, empty="there are no connections")


@app.command()
def get(name: Name, dsn: Dsn = None, json: Json = False) -> None:
    """One connection; its password and extra are not shown."""
    from onceflow.db.named_value_queries import list_connections

    with open_reads(dsn) as reader:
        found = list_connections(reader, name)
    if not found:
        raise NotFound(f"there is no connection {name!r} in the database; see onceflow connections list")
    print_rows(found, COLUMNS, json, empty="")


@app.command("set")
def set_(
    name: Name,
    uri: Annotated[str, typer.Argument(metavar="URI", help="type://login:password@host:port/schema?key=value; - reads it from stdin, which no history keeps.")],
    extra: Annotated[str | None, typer.Option("--extra", metavar="JSON", help="An object of further fields, in place of the URI's query.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make a connection, or replace it as a whole."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call
    from onceflow.engine.secret_box import SecretBox
    from onceflow.settings import load_settings

    fields = read_fields(name, sys.stdin.readline().strip() if uri == "-" else uri, extra, SecretBox(load_settings().fernet_key))
    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.set_connection(name, jsonlib.dumps({**fields, "description": description})))
    if json:
        print_json({"set": name})
    else:
        typer.echo(f"connection {name} is set")


def read_fields(name: str, uri: str, extra: str | None, box: Any) -> dict[str, Any]:
    """The fields of a URI, what is secret of them encrypted."""
    from onceflow.engine.named_values import Connection

    if "://" not in uri:
        raise InvalidArgument("the URI of a connection begins with its type: postgresql://login:password@host:5432/schema")
    try:
        made = Connection(name, uri)
    except ValueError as error:
        raise InvalidArgument(f"this is no URI: {error}") from None
    more = made.extra if extra is None else read_object(extra, "--extra")
    return {
        "conn_type": made.conn_type,
        "host": made.host,
        "port": made.port,
        "schema": made.schema or None,
        "login": made.login,
        "password": box.encrypt(made.password, f"the password of connection {name!r}") if made.password else None,
        "extra": {"$fernet": box.encrypt(jsonlib.dumps(more), f"extra of connection {name!r}")} if more else None,
    }


@app.command()
def delete(name: Name, dsn: Dsn = None, json: Json = False) -> None:
    """Forget a connection."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.delete_connection(name))
    if json:
        print_json({"deleted": name})
    else:
        typer.echo(f"connection {name} is gone")
