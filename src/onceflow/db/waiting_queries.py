"""What waits outside of workers: approvals and triggers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from onceflow.db.queries import Reader


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """What people are asked, and what they said; `run` is the number of the run."""

    run: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    subject: str
    options: list[str]
    approvers: list[str]
    asked_at: datetime
    due_at: datetime | None
    answer: str | None
    actor: str | None
    comment: str | None
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A trigger, the task that waits for it, and who runs it (None: nobody yet, or a person answers)."""

    id: int
    classpath: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    created_date: datetime
    triggerer: str | None
    is_manual: bool


def list_approvals(reader: Reader, everything: bool, limit: int) -> list[ApprovalRow]:
    with reader.cursor(row_factory=class_row(ApprovalRow)) as cursor:
        return cursor.execute(
            """select a.run, a.dag_id, a.run_id, a.task_id, a.map_index, a.subject, a.options, a.approvers, a.asked_at, a.due_at, a.answer, a.actor, a.comment, a.answered_at
            from onceflow.approval a
            where %(everything)s or a.answered_at is null and exists (select from onceflow.trigger g where g.run = a.run and g.ti = a.ti)
            order by a.asked_at desc limit %(limit)s""",
            {"everything": everything, "limit": limit},
        ).fetchall()


def list_triggers(reader: Reader, limit: int) -> list[TriggerRow]:
    with reader.cursor(row_factory=class_row(TriggerRow)) as cursor:
        return cursor.execute(
            """select g.id, g.classpath, r.dag_id, r.run_id, t.task_id, t.map_index, g.created_date, w.host || ':' || w.pid as triggerer, g.is_manual
            from onceflow.trigger g join onceflow.run r on r.id = g.run join onceflow.ti t on t.run = g.run and t.id = g.ti
            left join onceflow.triggerer w on w.id = g.triggerer_id order by g.id limit %(limit)s""",
            {"limit": limit},
        ).fetchall()
