"""Connections and variables as people may see them: without what is secret."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from onceflow.db import dag_calls
from onceflow.db.queries import Reader
from onceflow.db.sync_runner import run_call


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """A connection without its password and extra: nobody but a worker reads these."""

    conn_id: str
    conn_type: str
    host: str | None
    port: int | None
    schema: str | None
    login: str | None
    description: str | None


@dataclass(frozen=True, slots=True)
class VariableRow:
    """A variable; val is None where it is secret."""

    key: str
    val: str | None
    is_encrypted: bool
    description: str | None


def list_connections(reader: Reader, name: str | None = None) -> list[ConnectionRow]:
    """All of them, or the one of that name."""
    with reader.cursor(row_factory=class_row(ConnectionRow)) as cursor:
        return cursor.execute(
            """select conn_id, conn_type, host, port, schema, login, description from onceflow.connection
            where %(name)s::text is null or conn_id = %(name)s order by conn_id""",
            {"name": name},
        ).fetchall()


def list_variables(reader: Reader) -> list[VariableRow]:
    """All of them."""
    return [VariableRow(**row) for row in run_call(reader, dag_calls.list_variables())]
