"""`onceflow worker`: a process that runs tasks."""

from __future__ import annotations

import logging

from onceflow.cli.database import engine_settings
from onceflow.cli.options import Concurrency, Dags, Embedded, JsonLog, LogLevel, Queues
from onceflow.errors import ImportFailed, SettingsError
from onceflow.settings import Settings, load_settings


def worker(
    dags: Dags = None,
    concurrency: Concurrency = None,
    queues: Queues = None,
    embedded: Embedded = False,
    log_level: LogLevel = None,
    json: JsonLog = False,
) -> None:
    """Run tasks of the dags and workflows in a folder, until SIGTERM or Ctrl-C; then drain. Start more to scale. Edits of the files are served at once.

    Checks the schema first, and refuses a database of another release.
    """
    settings = load_settings(dags=dags, concurrency=concurrency, queues=queues, log_level=log_level, log_format="json" if json else None)
    with engine_settings(settings, "worker", embedded) as ready:
        prepare(ready, "worker")
        assert ready.dags is not None
        from onceflow.engine.succession import CodeWatch, read_succession
        from onceflow.engine.worker import run_worker

        succession, watch = read_succession(), CodeWatch.begin(ready.dags)
        watch.note_errors(import_dags(ready.dags, None if succession is None else succession[1]))
        run_worker(ready, watch, None if succession is None else succession[0])


def prepare(settings: Settings, command: str) -> None:
    """What every process of the engine does first: log, check the schema, look at the folder of dags."""
    from onceflow.db.migrate import check_schema
    from onceflow.engine.dag_files import open_root
    from onceflow.logs import setup_logging

    if settings.dags is None:
        raise SettingsError(f"onceflow {command} needs the folder of your workflows: --dags FOLDER, or ONCEFLOW_DAGS")
    assert settings.dsn is not None
    setup_logging(settings.log_format, settings.log_level)
    check_schema(settings.dsn)
    open_root(settings.dags)


def import_dags(path: str, broken: list[str] | None) -> list[ImportFailed]:
    """Imports what a worker serves; answers the errors of files that cannot be imported, which keep nobody from the others. For a successor
    `broken` are the files that its predecessor could not import either: an error of another one is raised."""
    from onceflow.engine.loader import describe_dags, import_files

    errors = import_files(path)
    new = [] if broken is None else [error for error in errors if error.file not in broken]
    if new or not describe_dags():
        nothing = SettingsError(f"--dags {path}: there is no @workflow and no @step in its files. Name the folder of your workflows.")
        raise new[0] if new else errors[0] if errors else nothing
    for error in errors:
        logging.getLogger("onceflow.worker").error("a file is not served, the others are: %s", error)
    return list(errors)
