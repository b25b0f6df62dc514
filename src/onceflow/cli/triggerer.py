"""`onceflow triggerer`: a process that waits for many tasks at once."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.database import engine_settings
from onceflow.cli.options import Dags, Embedded, JsonLog, LogLevel
from onceflow.cli.worker import prepare
from onceflow.settings import load_settings


def triggerer(
    dags: Dags = None,
    capacity: Annotated[int, typer.Option(min=1, max=1_000_000, help="Triggers run at once, at most.")] = 1000,
    embedded: Embedded = False,
    log_level: LogLevel = None,
    json: JsonLog = False,
) -> None:
    """Look for what deferred tasks wait for, thousands of them in one process, until SIGTERM or Ctrl-C. Runs no tasks.

    Start several: each trigger is run by one of them, and by another when that one is gone.
    """
    settings = load_settings(dags=dags, log_level=log_level, log_format="json" if json else None)
    with engine_settings(settings, "triggerer", embedded) as ready:
        from onceflow.engine.dag_files import folder_of, open_root
        from onceflow.engine.loader import add_to_path
        from onceflow.engine.triggerer import run_triggerer

        prepare(ready, "triggerer")
        assert ready.dags is not None
        add_to_path(folder_of(open_root(ready.dags)))  # trigger classes of the folder's own are imported by their names

        run_triggerer(ready, capacity)
