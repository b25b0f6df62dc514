"""`TriggerDagRunOperator`: starts a run of another dag."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import asyncpg

from onceflow.authoring.deferral import TaskRescheduled
from onceflow.authoring.forms import idempotency_key
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.sensor import read_seconds
from onceflow.authoring.step import Step
from onceflow.checks import check_flag
from onceflow.codec import encode
from onceflow.db import calls
from onceflow.errors import AuthoringError, RunFailed

LOST = ("failed", "cancelled")


def name_run(key: str) -> str:
    """A run id made of the task's own key."""
    name = f"triggered__{key}"
    return name if len(name) <= 250 else f"triggered__{sha256(key.encode()).hexdigest()}"


class TriggerDagRunOperator(BaseOperator):
    """Starts a run of a dag (or workflow) in the transaction that completes this task: exactly once, whatever crashes.

    `conf` are its params, `trigger_run_id` its run id (made up when not given), `logical_date` its date, as a datetime or an ISO text.
    `wait_for_completion`: this task ends as that run ends, looked at every `poke_interval` (seconds, or a timedelta) without holding a slot; a retry of it retries what failed of the run.
    The output is {"run": number, "run_id": …, "dag_id": …}; the id lies under the key `trigger_run_id` too.

    >>> TriggerDagRunOperator(task_id="report", trigger_dag_id="daily_report", conf={"day": "{{ ds }}"})   # doctest: +SKIP
    """

    template_fields = ("trigger_dag_id", "trigger_run_id", "logical_date", "conf")

    def __init__(
        self,
        task_id: str,
        *,
        trigger_dag_id: str,
        conf: dict[str, Any] | None = None,
        trigger_run_id: str | None = None,
        logical_date: datetime | str | None = None,
        wait_for_completion: bool = False,
        poke_interval: float | timedelta = 60,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        self.wait_for_completion = check_flag(wait_for_completion, f"task {self.task_id}: wait_for_completion", error=AuthoringError)
        self.poke_interval_s = read_seconds(poke_interval, f"task {self.task_id}: poke_interval")
        self.trigger_dag_id, self.conf, self.trigger_run_id, self.logical_date = trigger_dag_id, conf, trigger_run_id, logical_date
        self.follow_fields()

    def make_step(self, method: str = "execute", given: dict[str, Any] | None = None) -> Step[..., Any]:
        return super().make_step("start_and_wait" if self.wait_for_completion and method == "execute" else method, given)

    async def start_and_wait(self, context: dict[str, Any]) -> dict[str, Any]:
        """One run for this task, however often this is called: its id is the task's. Between two looks no slot is held."""
        ti, run_id = context["ti"], self.trigger_run_id or name_run(idempotency_key())
        date = self._date()
        text = encode(self.conf or {}, where=f"conf of task {self.task_id}")
        started = await ti.ask(calls.start_run(self.trigger_dag_id, text, run_id, logical_date=date.isoformat() if date else None))
        run = int(started["run"])
        found = await ti.ask(calls.read_run(run))
        if found["state"] in LOST and ti.resume is None and ti.try_number > 1:
            await ti.ask(calls.retry_run(run, f"retried by task {self.task_id} of run {context['run_id']}"))
        elif found["state"] in LOST:
            raise RunFailed(f"run {run_id} of {self.trigger_dag_id} ended {found['state']}: {found['stop_reason'] or 'see onceflow runs show'}")
        elif found["state"] == "success":
            ti.xcom_push("trigger_run_id", run_id)
            return {"run": run, "run_id": run_id, "dag_id": self.trigger_dag_id}
        raise TaskRescheduled(self.poke_interval_s)

    def _date(self) -> datetime | None:
        return datetime.fromisoformat(self.logical_date) if isinstance(self.logical_date, str) else self.logical_date

    async def execute(self, conn: asyncpg.Connection, context: dict[str, Any]) -> dict[str, Any]:
        date = self._date()
        text = "select onceflow.start_run($1, $2::text::jsonb, $3, $4)::text"
        answer = json.loads(
            await conn.fetchval(text, self.trigger_dag_id, encode(self.conf or {}, where=f"conf of task {self.task_id}"), self.trigger_run_id, date)
        )
        context["ti"].xcom_push("trigger_run_id", answer["run_id"])
        return {"run": int(answer["run"]), "run_id": answer["run_id"], "dag_id": self.trigger_dag_id}
