"""`onceflow scheduler`: a process that drives time."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.database import engine_settings
from onceflow.cli.options import Dags, Embedded, JsonLog, LogLevel
from onceflow.cli.worker import prepare
from onceflow.settings import load_settings


def scheduler(
    dags: Dags = None,
    backfill_only: Annotated[bool, typer.Option("--backfill-only", help="Make no runs from schedules; let those begin that wait.")] = False,
    embedded: Embedded = False,
    log_level: LogLevel = None,
    json: JsonLog = False,
) -> None:
    """Parse the dag files of a folder, each in a process without secrets. Make the runs of scheduled dags, let runs begin, move what is due (timers, retries, rescues), seal the ledger, until SIGTERM or Ctrl-C. Runs no tasks.

    Start several: each run is made once. Without any, workers still let runs begin that are there; only schedules stand still.
    """
    settings = load_settings(dags=dags, log_level=log_level, log_format="json" if json else None)
    with engine_settings(settings, "scheduler", embedded) as ready:
        from onceflow.engine.dag_files import folder_of, open_root
        from onceflow.engine.loader import add_to_path
        from onceflow.engine.sandbox import hide_process
        from onceflow.engine.scheduler import run_scheduler

        hide_process()  # dag files are parsed by children of this process, which must not read its environment
        prepare(ready, "scheduler")
        assert ready.dags is not None
        add_to_path(folder_of(open_root(ready.dags)))  # a timetable class of the folder's own is imported by its name

        run_scheduler(ready, backfill_only)
