"""One physical psycopg connection: how it is opened, what is sent on it past any face, and how it is cut."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import generators, pq

from onceflow.engine.bindings.protocol import APPLICATION_NAME, SqlArgument


class Physical(psycopg.Connection[Any]):
    step_prepare_threshold: int | None = None


class PhysicalAsync(psycopg.AsyncConnection[Any]):
    step_prepare_threshold: int | None = None


def connect_options(pgbouncer: bool) -> dict[str, Any]:
    """How a step's connection is opened: BEGIN is ours, the text encoding fixed, no named statements with pgbouncer."""
    return {
        "autocommit": True,
        "prepare_threshold": None if pgbouncer else 5,
        "application_name": APPLICATION_NAME,
        "client_encoding": "utf8",
        "keepalives_idle": 5,  # a peer that vanished without a word is noticed within about 15 s
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }


def run_text(pgconn: Any, text: str, args: Sequence[bytes | None] | None = None) -> Any:
    """Send `text` in one round trip (one simple query; with args one statement) and return the last result.

    A generator for the `wait` of either kind of psycopg connection. Raises the driver's error of the first failure.
    """
    if args is None:
        pgconn.send_query(text.encode())
    else:
        pgconn.send_query_params(text.encode(), args)
    results = yield from generators.execute(pgconn)
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
    return results[-1]


def reported_name(physical: Any) -> bytes | None:
    name: bytes | None = None if physical.closed else physical.pgconn.parameter_status(b"application_name")
    return name


def new_name(physical: Any, before: bytes | None) -> bytes | None:
    """The name that the opening has set, if it has set one."""
    return name if (name := reported_name(physical)) != before else None


def first_text(result: Any) -> str | None:
    value = result.get_value(0, 0) if result.ntuples and result.nfields else None
    return None if value is None else value.decode()


def as_bytes(args: tuple[SqlArgument, ...]) -> list[bytes | None]:
    return [None if arg is None else _text_of(arg).encode() for arg in args]


def _text_of(arg: str | int | list[int]) -> str:
    return f"{{{','.join(map(str, arg))}}}" if isinstance(arg, list) else str(arg)


def sever(physical: Any) -> None:
    """Cut the socket under a connection that a left-over thread is still using; that thread gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(physical.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
