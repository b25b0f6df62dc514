"""`onceflow dev`: everything for one developer, in one process tree with one log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from onceflow.cli.database import OPERATOR, STEP, WORKER, use_server
from onceflow.cli.failures import DEFECT
from onceflow.cli.options import Concurrency, JsonLog, LogLevel, Queues
from onceflow.errors import MigrationError
from onceflow.settings import Settings, load_settings, mask_dsn

_PR_SET_PDEATHSIG = 1


def dev(
    folder: Annotated[str | None, typer.Argument(metavar="[FOLDER]", help="Folder (or one file) with workflows; default: ONCEFLOW_DAGS, dags/, or .")] = None,
    concurrency: Concurrency = None,
    queues: Queues = None,
    log_level: LogLevel = None,
    json: JsonLog = False,
) -> None:
    """See it work: the bundled Postgres (unless ONCEFLOW_DSN is set), the schema, a scheduler and a worker. Ctrl-C stops all of it."""
    from onceflow.engine.loader import describe_dags, load_dags
    from onceflow.engine.sandbox import hide_process
    from onceflow.logs import setup_logging

    settings = load_settings(concurrency=concurrency, queues=queues, log_level=log_level, log_format="json" if json else None)
    hide_process()  # from the processes that parse dag files
    dags = folder or settings.dags or ("dags" if Path("dags").is_dir() else ".")
    load_dags(dags)  # a mistake in a file is told once, here, before anything starts
    setup_logging(settings.log_format, settings.log_level)
    with _database(settings) as (environment, shown):
        if not json:
            names = [dag["dag_id"] for dag in describe_dags(settings.code_version) if dag["kind"] != "step"]
            _greet(dags, names, shown)
        common = ["--dags", dags, *(["--json"] if json else [])]
        with _stopped_by_signals() as told:
            tree = Tree(
                {
                    "ONCEFLOW_PAUSE_NEW_DAGS": "false",  # what one has just written should run
                    **os.environ,
                    **environment,
                    "ONCEFLOW_LOG_LEVEL": settings.log_level,
                    "ONCEFLOW_CONCURRENCY": str(settings.concurrency),
                    "ONCEFLOW_QUEUES": ",".join(settings.queues),
                }
            )
            with tree:
                tree.start("scheduler", *common)
                tree.start("triggerer", *common)
                tree.start("worker", *common)
                code = tree.watch(told)
    raise typer.Exit(code)


def _greet(dags: str, names: list[str], shown: str) -> None:
    typer.echo(f"database   {shown}", err=True)
    typer.echo(f"workflows  {', '.join(names) or f'none in {dags}'}", err=True)
    typer.echo(f"try        onceflow runs start {names[0] if names else 'NAME'} --wait      Ctrl-C stops everything", err=True)


@contextmanager
def _database(settings: Settings) -> Iterator[tuple[Mapping[str, str], str]]:
    """A migrated database: what its processes find in their environment, and how to show it to people."""
    from onceflow.db.migrate import check_schema, migrate

    if settings.dsn is not None:
        try:
            migrate(settings.dsn)
        except MigrationError:
            check_schema(settings.dsn)  # a login that may not migrate is enough if there is nothing to migrate
        yield {}, mask_dsn(settings.dsn)
        return
    with use_server(settings.embedded_dir, migrate=True) as server:
        shown = f"bundled PostgreSQL in {server.folder} (onceflow db shell, or psql {server.dsn(OPERATOR)!r})"
        yield {"ONCEFLOW_DSN": server.dsn(WORKER), "ONCEFLOW_STEP_DSN": server.dsn(STEP), "ONCEFLOW_DIRECT_DSN": ""}, shown


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """The signals that told us to stop, as they come; the handlers are put back afterwards."""
    told: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Tree:
    """Our child processes. They write into our log, and none of them outlives the `with` block (on Linux, not even our SIGKILL)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        # A session of its own: Ctrl-C reaches us alone, and we tell the children in order.
        command = [sys.executable, "-m", "onceflow", name, *arguments]
        self._children[name] = subprocess.Popen(
            command, env=dict(self._environment), stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent()
        )

    def watch(self, told: list[int]) -> int:
        """Wait until we are told to stop (0), or a child ends (its code, or DEFECT's if it ended well: it should not end)."""
        while not told:
            for name, child in self._children.items():
                if (code := child.poll()) is not None:
                    typer.secho(f"{name} (pid {child.pid}) ended with code {code}; stopping the rest", fg="red", err=True)
                    return code if code > 0 else DEFECT
            time.sleep(0.1)
        self._stop(told)
        return 0

    def _stop(self, told: list[int]) -> None:
        """Let the children drain; a second Ctrl-C does not wait."""
        first, said = len(told), time.monotonic() + 1
        for child in self._children.values():
            child.terminate()
        while any(child.poll() is None for child in self._children.values()):
            if len(told) > first:
                for child in self._children.values():
                    child.kill()
            elif said and time.monotonic() > said:
                said = 0.0
                typer.echo("waiting for running tasks; Ctrl-C again ends them (their transactions roll back)", err=True)
            time.sleep(0.05)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _die_with_parent() -> Callable[[], object] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
