"""What is known of dag files and of what they describe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row, scalar_row

from onceflow.db.queries import Reader


@dataclass(frozen=True, slots=True)
class ImportErrorRow:
    """What is wrong with a file, or with one dag of it; `is_warning`: the dag runs nevertheless."""

    filename: str
    dag_id: str | None
    is_warning: bool
    timestamp: datetime
    stacktrace: str

    @property
    def what(self) -> str:
        """Its first line."""
        return self.stacktrace.split("\n")[0]


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a dag's plan; `is_current`: new runs go by it. `living`: runs that still go by it."""

    number: int
    is_current: bool
    created_at: datetime
    code_version: str | None
    living: int
    plan: dict[str, Any]


def list_import_errors(reader: Reader, dag_id: str | None = None) -> list[ImportErrorRow]:
    """All, errors before warnings; or those of one dag and its file."""
    with reader.cursor(row_factory=class_row(ImportErrorRow)) as cursor:
        return cursor.execute(
            """select e.filename, e.dag_id, e.is_warning, e."timestamp", e.stacktrace from onceflow.import_error e
            where %(dag)s::text is null or e.dag_id = %(dag)s or (e.dag_id is null and e.filename = (select fileloc from onceflow.dag where dag_id = %(dag)s))
            order by e.is_warning, e.filename, e.dag_id nulls first""",
            {"dag": dag_id},
        ).fetchall()


def count_import_errors(reader: Reader) -> int:
    with reader.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute("select count(*) from onceflow.import_error where not is_warning").fetchone() or 0


def list_versions(reader: Reader, dag_id: str) -> list[VersionRow]:
    """The latest first; none of a workflow."""
    with reader.cursor(row_factory=class_row(VersionRow)) as cursor:
        return cursor.execute(
            """select v.number, coalesce(v.id = d.version, false) as is_current, v.created_at, v.code_version, v.plan,
                (select count(*) from onceflow.active_run a join onceflow.run r on r.id = a.run where a.dag_id = v.dag_id and r.version = v.id) as living
            from onceflow.dag_version v left join onceflow.dag d on d.dag_id = v.dag_id where v.dag_id = %s order by v.number desc""",
            (dag_id,),
        ).fetchall()
