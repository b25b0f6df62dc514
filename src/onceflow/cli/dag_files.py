"""`onceflow dags`: what files say of dags, and trying a dag out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.dag_drawing import draw_mermaid
from onceflow.cli.dags import Dag, read_moment
from onceflow.cli.database import open_reads
from onceflow.cli.failures import NEGATIVE
from onceflow.cli.options import Dags, Dsn, Json
from onceflow.cli.output import Column, print_json, print_rows, read_object, to_plain
from onceflow.errors import NotFound, SettingsError
from onceflow.settings import load_settings

if TYPE_CHECKING:
    from onceflow.authoring.graph.dag import DAG
    from onceflow.authoring.testing import TrialRun
    from onceflow.db.dag_file_queries import VersionRow
    from onceflow.db.queries import Reader

Version = Annotated[int | None, typer.Option("--version", metavar="N", help="An earlier version; default: that of new runs.")]


def errors(dag: Annotated[str | None, typer.Argument(metavar="DAG", help="Of one dag and its file.")] = None, dsn: Dsn = None, json: Json = False) -> None:
    """What is wrong with dag files: file, line and traceback. Exit code 1 if there is an error (a warning is none)."""
    from onceflow.db.dag_file_queries import list_import_errors

    with open_reads(dsn) as reader:
        found = list_import_errors(reader, dag)
    if json:
        print_json([to_plain(row) for row in found])
    for row in [] if json else found:
        typer.secho(f"{'Warning: ' if row.is_warning else ''}{row.what}", fg="yellow" if row.is_warning else "red")
        typer.echo("".join(f"    {line}\n" for line in row.stacktrace.split("\n")[1:] if line))
    if not found and not json:
        typer.echo("nothing is wrong with any file", err=True)
    raise typer.Exit(NEGATIVE if any(not row.is_warning for row in found) else 0)


def graph(dag: Dag, version: Version = None, dsn: Dsn = None, json: Json = False) -> None:
    """A dag's graph as a Mermaid flowchart, to be pasted into Markdown; with --json the plan itself."""
    with open_reads(dsn) as reader:
        plan = find_version(reader, dag, version).plan
    if json:
        print_json(plan)
    else:
        typer.echo("\n".join(draw_mermaid(plan)))


def delete(dag: Dag, dsn: Dsn = None, json: Json = False) -> None:
    """Forget a dag or workflow whose file is gone. Its runs and their ledger stay."""
    from onceflow.db import dag_calls
    from onceflow.db.sync_runner import run_call

    with open_reads(dsn) as reader:
        run_call(reader, dag_calls.delete_dag(dag))
    if json:
        print_json({"deleted": dag})
    else:
        typer.echo(f"{dag} is gone; its runs stay")


def test(
    name: Dag,
    dags: Dags = None,
    logical_date: Annotated[str | None, typer.Option("--logical-date", metavar="ISO", help="Default: now.")] = None,
    params: Annotated[str | None, typer.Option("--params", metavar="JSON", help="Parameters: an object.")] = None,
    setup: Annotated[str | None, typer.Option("--setup", metavar="FILE", help="SQL that prepares the throw-away database.")] = None,
    dsn: Annotated[str | None, typer.Option("--dsn", metavar="URL", help="Run it for real on that database, instead of a throw-away one.")] = None,
    json: Json = False,
) -> None:
    """Run a dag in this process, on a throw-away database. Exit code 1 if it fails."""
    from pathlib import Path

    dag = load_dag(name, dags, "onceflow dags test")
    moment, given = read_moment(logical_date, "--logical-date") if logical_date else None, read_object(params, "--params")
    run = dag.test(logical_date=moment, params=given, setup=Path(setup) if setup else (), dsn=dsn)
    report_test(run, json)


def load_dag(name: str, dags: str | None, command: str) -> DAG:
    """The dag, from the files of a folder; an error of these is told where the dag is not found."""
    from onceflow.authoring import registry
    from onceflow.engine.loader import import_files

    folder = load_settings(dags=dags).dags
    if folder is None:
        raise SettingsError(f"{command} needs the folder of your dags: --dags FOLDER, or ONCEFLOW_DAGS")
    problems = import_files(folder)
    try:
        found: DAG = registry.find_dag(name)
    except NotFound as error:
        raise (problems[0] if problems else error) from None
    return found


def report_test(run: TrialRun, json: bool) -> None:
    """What came of it; exit code 1 if it failed."""
    _print_test(run, json)
    if run.state != "success":
        raise typer.Exit(NEGATIVE)


def _print_test(run: TrialRun, json: bool) -> None:
    if json:
        print_json({"dag_id": run.dag_id, "run_id": run.run_id, "state": run.state, "tasks": run.tasks, "outputs": run.outputs})
        return
    columns: list[Column] = [("task", lambda t: t[0]), ("state", lambda t: t[1]), ("output", lambda t: run.outputs.get(t[0]))]
    print_rows(list(run.tasks.items()), columns, False)
    typer.echo(f"{run.dag_id}: {run.state}")


def find_version(reader: Reader, dag: str, number: int | None = None) -> VersionRow:
    """A version of a dag; NotFound says which there are."""
    from onceflow.db.dag_file_queries import list_versions

    found = list_versions(reader, dag)
    for row in found:
        if row.number == number or (number is None and row.is_current):
            return row
    there = f"it has {', '.join(str(row.number) for row in found)}" if found else "it is no dag, or no scheduler or worker has told of its graph yet"
    raise NotFound(f"{dag} has no version {number or 'that new runs go by'}; {there}")


def add_commands(app: typer.Typer) -> None:
    """To those of `onceflow dags`."""
    for command in (errors, graph, delete, test):
        app.command()(command)
