"""The engine's psycopg connections, and how a `Call` runs on one."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import RawCursor
from psycopg.rows import tuple_row

from onceflow.db.calls import Call, parse_answer
from onceflow.db.driver_errors import translate


def connect(dsn: str, application_name: str, **options: Any) -> psycopg.Connection[Any]:
    """A connection in autocommit. The encoding is ours, whatever DSN and PGCLIENTENCODING say; no prepared statements: a pooler may stand between."""
    found = {"autocommit": True, "prepare_threshold": None, "connect_timeout": 10, "client_encoding": "utf8", **options}
    return psycopg.connect(dsn, application_name=application_name, **found)


def run_call(conn: psycopg.Connection[Any], call: Call) -> Any:
    """The call's value. Errors of SQLSTATE class OF become Onceflow's own."""
    with RawCursor(conn, row_factory=tuple_row) as cursor:  # the connection may be a user's, with rows of his own
        try:
            cursor.execute(call.sql.encode(), [list(a) if isinstance(a, tuple) else a for a in call.args])
        except psycopg.Error as error:
            own = translate(error)
            if own is not None:
                raise own from None  # the driver's error says the same
            raise
        row = cursor.fetchone()
    return parse_answer(row[0] if row else None)
