"""`SQLOperator`: SQL as a task, in the transaction that records it."""

from __future__ import annotations

from typing import Any

import psycopg

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.errors import AuthoringError


class SQLOperator(BaseOperator):
    """Runs SQL in the task's own transaction: its effect, the record and the task's state commit together, exactly once.

    `sql`: one text (several statements where there are no parameters), a list of texts, or the name of a .sql file beside the dag's.
    `parameters`: a list for %s, a dict for %(name)s; values never belong into the text itself. The output is the rows of the last statement
    as a list of dicts (at most `max_rows`), or how many rows it changed. `database`: another registered one (ONCEFLOW_DATABASE_…), exactly once there too.

    >>> SQLOperator(task_id="age", sql="delete from rate where day < %(day)s", parameters={"day": "{{ ds }}"})   # doctest: +SKIP
    """

    template_fields = ("sql", "parameters")
    template_ext = (".sql",)

    def __init__(
        self,
        task_id: str,
        *,
        sql: str | list[str],
        parameters: list[Any] | tuple[Any, ...] | dict[str, Any] | None = None,
        database: str | None = None,
        max_rows: int = 10_000,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        self.sql, self.parameters, self.database, self.max_rows = sql, parameters, database, max_rows
        self.follow_fields()

    def execute(self, conn: psycopg.Connection[Any], context: dict[str, Any]) -> Any:
        output: Any = None
        for text in [self.sql] if isinstance(self.sql, str) else self.sql:
            cursor = conn.execute(text.encode(), self.parameters)
            while cursor.nextset():
                pass
            if cursor.description is None:
                output = cursor.rowcount
                continue
            names = [column.name for column in cursor.description]
            rows = cursor.fetchmany(self.max_rows + 1)
            if len(rows) > self.max_rows:
                raise AuthoringError(f"task {self.task_id}: the query answers more than max_rows ({self.max_rows}) rows; keep them in a table, or raise it")
            output = [dict(zip(names, row, strict=True)) for row in rows]
        return output


class PostgresOperator(SQLOperator):
    """SQLOperator under the name that Airflow's provider gave it. `postgres_conn_id` names a registered database; left out, it is the engine's own."""

    def __init__(self, task_id: str, *, postgres_conn_id: str | None = None, **given: Any) -> None:
        super().__init__(task_id, **{"database": postgres_conn_id, **given})
