"""All commands, under one root."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli import backfill, connections, dag_files, dags, datasets, db, ledger, pools, runs, tasks, variables, waiting, workers
from onceflow.cli.dev import dev
from onceflow.cli.doctor import doctor
from onceflow.cli.failures import GuardedGroup
from onceflow.cli.scheduler import scheduler
from onceflow.cli.triggerer import triggerer
from onceflow.cli.worker import worker

app = typer.Typer(
    name="onceflow",
    cls=GuardedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the answer is no, 2 a mistake of yours, 3 the database cannot be reached.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from onceflow import __version__

        typer.echo(f"onceflow {__version__}")
        raise typer.Exit


@app.callback()
def root(version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False) -> None:
    """A workflow engine in which PostgreSQL is the executor."""


app.command()(dev)
app.command()(worker)
app.command()(scheduler)
app.command()(triggerer)
app.command()(doctor)
app.add_typer(runs.app, name="runs")
app.add_typer(ledger.app, name="ledger")
dag_files.add_commands(dags.app)
app.add_typer(dags.app, name="dags")
app.add_typer(backfill.app, name="backfill")
app.add_typer(tasks.app, name="tasks")
app.add_typer(pools.app, name="pools")
app.add_typer(connections.app, name="connections")
app.add_typer(variables.app, name="variables")
app.add_typer(datasets.app, name="datasets")
app.add_typer(workers.app, name="workers")
app.add_typer(waiting.approvals, name="approvals")
app.add_typer(waiting.triggers, name="triggers")
app.add_typer(db.app, name="db")
