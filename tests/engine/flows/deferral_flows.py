"""Dags whose tasks wait: for triggers, and as sensors in three modes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from onceflow import (
    ApprovalOperator,
    BaseOperator,
    BaseSensor,
    BaseTrigger,
    DateTimeSensor,
    ExternalTaskSensor,
    FileSensor,
    PokeReturnValue,
    SqlSensor,
    TimeDeltaSensor,
    TriggerDagRunOperator,
    TriggerEvent,
    dag,
    defer,
    sensor,
    task,
)


class GateTrigger(BaseTrigger):
    """Fires when a file is there; the event is its text."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not Path(self.path).exists():
            await asyncio.sleep(0.02)
        yield TriggerEvent(Path(self.path).read_text())


class AtOnce(BaseTrigger):
    def __init__(self, number: int) -> None:
        self.number = number

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent({"n": self.number, "when": timedelta(seconds=self.number)})


class Broken(BaseTrigger):
    def __init__(self, how: str) -> None:
        self.how = how

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.how == "raise":
            raise ValueError("no such thing")
        if self.how == "block":
            time.sleep(2.5)
            yield TriggerEvent("at last")
        if self.how == "unrecordable":
            yield TriggerEvent(lambda: None)


class Waiting(BaseOperator):
    """Writes, defers (so that what it wrote is rolled back), and goes on with the event."""

    template_fields = ("path",)

    def __init__(self, task_id: str, *, path: str, wait: timedelta | None = None, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.path, self.wait = path, wait

    async def execute(self, conn: asyncpg.Connection, context: dict[str, Any]) -> None:
        await conn.execute("insert into effect (what, note) values ($1, 'rolled back')", context["run_id"])
        self.defer(trigger=GateTrigger(self.path), method_name="execute_complete", kwargs={"extra": (1, 2)}, timeout=self.wait)

    async def execute_complete(self, conn: asyncpg.Connection, context: dict[str, Any], event: Any, extra: tuple[int, int]) -> list[Any]:
        await conn.execute("insert into effect (what, note) values ($1, $2)", context["run_id"], event)
        return [event, extra, context["ti"].try_number]


@dag(params={"path": "", "wait_s": 60.0})
def deferred_operator() -> None:
    Waiting("wait", path="{{ params.path }}", wait=timedelta(seconds=60))


@dag(params={"path": ""})
def deferred_for_a_moment() -> None:
    Waiting("wait", path="{{ params.path }}", wait=timedelta(seconds=0.5), retries=1)


@dag(params={"path": ""})
def deferred_past_its_limit() -> None:
    Waiting("wait", path="{{ params.path }}", execution_timeout=timedelta(seconds=1))


@task
def ask(path: str) -> str:
    return f"saw {defer(GateTrigger(path))}"


@dag(params={"path": ""})
def deferred_function() -> None:
    ask("{{ params.path }}")


@task
def ask_at_once(number: int) -> int:
    return int(defer(AtOnce(number))["n"])


@dag(params={"count": 10}, max_active_tasks=1000)
def deferred_many() -> None:
    @task
    def numbers(params: dict[str, Any]) -> list[int]:
        return list(range(params["count"]))

    ask_at_once.expand(number=numbers())


@task
def ask_broken(how: str) -> Any:
    return defer(Broken(how))


@dag(params={"how": ""})
def broken_trigger() -> None:
    ask_broken("{{ params.how }}")


class GateSensor(BaseSensor):
    template_fields = ("path",)

    def __init__(self, task_id: str, *, path: str, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.path = path

    def poke(self, context: dict[str, Any]) -> Any:
        gate = Path(self.path)
        return gate.exists() and PokeReturnValue(True, gate.read_text())

    def make_trigger(self, context: dict[str, Any]) -> BaseTrigger:
        return GateTrigger(self.path)


@dag(params={"path": ""})
def sensors() -> None:
    for mode in ("poke", "reschedule", "deferrable"):
        GateSensor(mode, path="{{ params.path }}", mode=mode, poke_interval=0.1)


@dag
def sensors_in_vain() -> None:
    for mode in ("poke", "reschedule", "deferrable"):
        GateSensor(mode, path="/nowhere", mode=mode, poke_interval=0.1, timeout=0.5, retries=3)
        GateSensor(f"{mode}_soft", path="/nowhere", mode=mode, poke_interval=0.1, timeout=0.5, soft_fail=True)


@sensor(poke_interval=0.1)
async def effect_there(conn: asyncpg.Connection, run_id: str) -> Any:
    return await conn.fetchval("select note from effect where what = $1", run_id) is not None


@dag
def function_sensor() -> None:
    effect_there()


@dag(params={"subject": "Pay?"})
def asking() -> None:
    ApprovalOperator("ask", subject="{{ params.subject }}", approvers=["ann", "role:treasury"])


@dag
def asking_for_a_moment() -> None:
    ApprovalOperator("ask", subject="Pay?", timeout=timedelta(seconds=0.5), default="approve")


@dag
def asking_in_vain() -> None:
    ApprovalOperator("ask", subject="Pay?", timeout=timedelta(seconds=0.5))


@dag(params={"path": ""})
def file_and_sql() -> None:
    FileSensor("file", path="{{ params.path }}", mode="deferrable", poke_interval=0.1)
    SqlSensor("rows", sql="select count(*) from effect where what = '{{ run_id }}'", poke_interval=0.1)


class DateTimeSoon(str):
    """Rendered as the text of a moment half a second after the file was read: near enough for a test, and past for later ones."""

    def __new__(cls) -> DateTimeSoon:
        return super().__new__(cls, (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat())


@dag
def moments() -> None:
    TimeDeltaSensor("past", delta=timedelta(seconds=0.001))
    DateTimeSensor("soon", target_time=DateTimeSoon())


@dag
def awaiting_another() -> None:
    ExternalTaskSensor("task", external_dag_id="sensors", external_task_id="poke", poke_interval=0.1)
    ExternalTaskSensor("run", external_dag_id="sensors", poke_interval=0.1)
    ExternalTaskSensor("earlier", external_dag_id="sensors", execution_delta=timedelta(days=1), poke_interval=0.1, timeout=0.5, soft_fail=True)


@dag
def awaiting_nobody() -> None:
    ExternalTaskSensor("dag", external_dag_id="no_such_dag", poke_interval=0.1)
    ExternalTaskSensor("task", external_dag_id="sensors", external_task_id="no_such_task", poke_interval=0.1)


@task(retries=0)
def fail_once(run_id: str, params: dict[str, Any]) -> None:
    gate = Path(params["path"])
    if not gate.exists():
        gate.write_text("")
        raise ValueError("the first time")


@dag(params={"path": ""})
def failing_once() -> None:
    fail_once()


@dag(params={"path": ""})
def starting_another() -> None:
    options: dict[str, Any] = {"trigger_dag_id": "failing_once", "conf": {"path": "{{ params.path }}"}, "wait_for_completion": True, "poke_interval": 0.1}
    TriggerDagRunOperator("start", retries=1, **options)
