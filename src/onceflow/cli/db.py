"""`onceflow db`: the schema, its upkeep, and the bundled server."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Annotated, Any

import typer

from onceflow.cli.database import ADMIN, has_server, open_dsn, use_server
from onceflow.cli.failures import MISTAKE, NEGATIVE
from onceflow.cli.options import Days, Dsn, Embedded, Json
from onceflow.cli.output import print_json, print_rows
from onceflow.errors import NoDatabase, OnceflowError
from onceflow.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="The schema, its upkeep, the bundled server.")


@app.command()
def migrate(dsn: Dsn = None, embedded: Embedded = False, json: Json = False) -> None:
    """Bring the database to this release's schema: one transaction, a no-op where nothing changed. Needs an administrator's login.

    With --embedded, make the bundled Postgres of this folder first, if there is none.
    """
    from onceflow.db.embedded import grant_login_roles
    from onceflow.db.migrate import migrate as migrate_database

    with open_dsn(dsn, ADMIN, embedded=embedded, make=embedded) as found:
        report = migrate_database(found)
        if load_settings(dsn=dsn).dsn is None:
            grant_login_roles(found)
    print_json(report) if json else typer.echo(str(report))


@app.command()
def check(dsn: Dsn = None, embedded: Embedded = False, json: Json = False) -> None:
    """Can this code work on that database, and is the database fit? Exit code 1 if not."""
    from onceflow.db.migrate import check_schema
    from onceflow.db.queries import open_reader, read_server

    with open_dsn(dsn, ADMIN, embedded=embedded) as found:
        problems = []
        with open_reader(found) as reader:
            server = read_server(reader)
        try:
            check_schema(found)
        except OnceflowError as error:
            if isinstance(error, NoDatabase):
                raise
            problems.append(str(error))
    problems += [f"Setting {name} is off: {why}" for name, why in _ADVICE.items() if server.settings.get(name) == "off"]
    if json:
        print_json({"ok": not problems, "server": server.version, "settings": server.settings, "problems": problems})
    else:
        typer.echo("\n".join(problems) if problems else f"PostgreSQL {server.version}: schema and server are fit")
    raise typer.Exit(NEGATIVE if problems else 0)


_ADVICE = {
    "fsync": "a crash of the machine may destroy the database. Turn it on.",
    "synchronous_commit": "the last moments before a crash may be lost, and steps run twice. Turn it on.",
    "track_commit_timestamp": "who_wrote cannot tell rows that a step wrote under a savepoint of its own. Turn it on (needs a restart).",
}


@app.command()
def archive(days: Days = 90, dsn: Dsn = None, embedded: Embedded = False, json: Json = False) -> None:
    """Move whole months of ended runs, with their tasks and ledger entries, into schema onceflow_archive.

    A month is moved when all of it is older than --days and nothing that lives needs it. Nothing is lost: verify_ledger, export and SQL still read it.
    """
    from onceflow.db.upkeep import archive_months

    with open_dsn(dsn, ADMIN, embedded=embedded) as found:
        months = archive_months(found, days)
    columns = [("month", "month"), ("moved", "moved"), ("runs", "runs"), ("kept because", "kept_because")]
    print_rows(months, columns, json, empty=f"no month is older than {days} days")


@app.command()
def clean(
    table: Annotated[
        str | None,
        typer.Option("--table", help="Only this one: message, message_key, run_event, pushed, callback, dataset_event, approval, triggerer or worker."),
    ] = None,
    days: Days = 90,
    dsn: Dsn = None,
    embedded: Embedded = False,
    json: Json = False,
) -> None:
    """Delete what ended runs and workers left behind: messages never received, events, workers that ended. Never runs or ledger entries.

    With xcom_backend set, also what lost tries have written there, and nothing refers to.
    """
    from onceflow.db.upkeep import CLEANED, clean_leftovers
    from onceflow.engine.stored_values import open_store
    from onceflow.storage.orphans import delete_orphans

    if table is not None and table not in CLEANED:
        refusal = f"{table!r} cannot be cleaned; one of {', '.join(CLEANED)} can. Runs and their ledger are archived, never cleaned."
        raise typer.BadParameter(refusal, param_hint="--table")
    with open_dsn(dsn, ADMIN, embedded=embedded) as found:
        deleted = clean_leftovers(found, days, table)
        if table is None and (store := open_store(load_settings())) is not None:
            deleted["stored values"] = delete_orphans(found, store.backend, days * 86_400)
    print_json(deleted) if json else typer.echo(", ".join(f"{name}: {count} deleted" for name, count in deleted.items()))


@app.command()
def stop(json: Json = False) -> None:
    """Stop the bundled server of this folder, whoever uses it. Open transactions are rolled back."""
    from onceflow.db.embedded import stop_server

    folder = load_settings().embedded_dir
    stopped = stop_server(folder)
    said = "stopped" if stopped else "it did not run" if has_server(folder) else f"there is none in {folder}"
    print_json({"stopped": stopped}) if json else typer.echo(f"bundled server: {said}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def shell(context: typer.Context, dsn: Dsn = None) -> None:
    """Open psql on the database; further arguments go to psql (`onceflow db shell -- -c "select 1"`)."""
    settings = load_settings(dsn=dsn)
    if settings.dsn is None and has_server(settings.embedded_dir):
        with use_server(settings.embedded_dir) as server:
            raise typer.Exit(_run_psql(str(server.bin("psql")), server.dsn(), context.args))
    with open_dsn(dsn, ADMIN) as found:
        program = shutil.which("psql")
        if program is None:
            typer.secho("psql is not on PATH. Install PostgreSQL's client programs.", fg="red", err=True)
            raise typer.Exit(MISTAKE)
        raise typer.Exit(_run_psql(program, found, context.args))


def _run_psql(program: str, dsn: str, args: list[str]) -> int:
    from signal import SIG_IGN, SIGINT, signal
    from urllib.parse import unquote, urlsplit

    environment: dict[str, Any] = dict(os.environ)
    parts = urlsplit(dsn)
    if parts.password:
        # In the environment other users cannot read it; among the arguments they can.
        environment["PGPASSWORD"] = unquote(parts.password)
        user, _, host = parts.netloc.rpartition("@")
        dsn = parts._replace(netloc=f"{user.split(':')[0]}@{host}").geturl()
    before = signal(SIGINT, SIG_IGN)  # Ctrl-C in psql cancels a query; it must not end us
    try:
        return subprocess.run([program, dsn, *args], env=environment, check=False, preexec_fn=lambda: signal(SIGINT, before)).returncode
    finally:
        signal(SIGINT, before)
