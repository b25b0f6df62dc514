"""Which database a command works on: the one it is told, or the bundled server of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onceflow.errors import SettingsError
from onceflow.settings import Settings, load_settings

if TYPE_CHECKING:
    from onceflow.db.embedded import EmbeddedServer
    from onceflow.db.queries import Reader
    from onceflow.engine.client import Client

ADMIN, OPERATOR, AUDITOR, WORKER, STEP = "postgres", "app", "auditor", "worker", "onceflow_step"


@contextmanager
def open_dsn(dsn: str | None, user: str = OPERATOR, *, embedded: bool = False, make: bool = False) -> Iterator[str]:
    """The DSN to use: --dsn, else ONCEFLOW_DSN, else the bundled server of this folder (as that user), started if need be and stopped if unused.

    `embedded`: the bundled server and no other. `make`: make it, if there is none yet.
    """
    settings = load_settings(dsn=dsn)
    if embedded:
        refuse_dsn(settings)
    if settings.dsn is not None:
        yield settings.dsn
        return
    if not make and not has_server(settings.embedded_dir):
        raise SettingsError(
            f"There is no database to work on: ONCEFLOW_DSN is not set, and there is no bundled server in {Path(settings.embedded_dir).resolve()}. "
            "Set ONCEFLOW_DSN=postgresql://…, or run `onceflow dev` here, which makes one."
        )
    with use_server(settings.embedded_dir) as server:
        yield server.dsn(user)


@contextmanager
def open_reads(dsn: str | None, user: str = OPERATOR) -> Iterator[Reader]:
    """A connection for queries, on that database."""
    from onceflow.db.queries import open_reader

    with open_dsn(dsn, user) as found, open_reader(found) as reader:
        yield reader


@contextmanager
def open_client(dsn: str | None) -> Iterator[tuple[Client, Reader]]:
    """A client and a connection for queries, on that database."""
    from onceflow.db.queries import open_reader
    from onceflow.engine.client import Client

    # The reader first: it fails at once where the client would try for seconds.
    with open_dsn(dsn) as found, open_reader(found) as reader, Client(found) as client:
        yield client, reader


@contextmanager
def engine_settings(settings: Settings, command: str, embedded: bool) -> Iterator[Settings]:
    """The settings with the DSNs of a process of the engine; refuses to guess a database."""
    if not embedded and settings.dsn is None:
        raise SettingsError(
            f"onceflow {command} needs a database: set ONCEFLOW_DSN (and ONCEFLOW_STEP_DSN, the login of steps), "
            "or use --embedded, the bundled Postgres of this folder."
        )
    if not embedded:
        yield settings
        return
    refuse_dsn(settings)
    with use_server(settings.embedded_dir, migrate=True) as server:
        yield replace(settings, dsn=server.dsn(WORKER), step_dsn=server.dsn(STEP), direct_dsn=None)


def refuse_dsn(settings: Settings) -> None:
    """--embedded means one database, a DSN another."""
    if settings.dsn is not None:
        raise SettingsError("Both --embedded and a DSN (--dsn, ONCEFLOW_DSN or onceflow.toml) are given. Drop one of them.")


@contextmanager
def use_server(folder: str, *, migrate: bool = False) -> Iterator[EmbeddedServer]:
    """The folder's bundled server while the block runs; afterwards it is stopped, unless others use it."""
    from onceflow.db.embedded import ensure_database, start_server, stop_if_unused

    server = ensure_database(folder) if migrate else start_server(folder)
    try:
        with server.hold():
            yield server
    finally:
        stop_if_unused(folder)


def has_server(folder: str) -> bool:
    """Was a bundled server made in that folder?"""
    return (Path(folder) / "pgdata").exists()
