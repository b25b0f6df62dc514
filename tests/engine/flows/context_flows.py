"""Dags whose tasks look at their context, push and pull, render templates and call back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from onceflow import DAG, Label, Param, SQLOperator, TaskGroup, current_context, dag, task, task_group


@task
def give(value: Any = None) -> Any:
    return value


@dag(schedule=None, params={"region": "north", "count": Param(1, type="integer", minimum=1)})
def context() -> None:
    @task
    def by_name(
        ti: Any,
        factor: int,
        ds: str,
        ds_nodash: str,
        ts: str,
        logical_date: datetime,
        data_interval_start: datetime,
        data_interval_end: datetime,
        run_id: str,
        params: dict[str, Any],
        dag: DAG,
        task: Any,
        try_number: int | None = None,
        **context: Any,
    ) -> dict[str, Any]:
        return {
            "task": [ti.task_id, task.task_id, dag.dag_id, ti.map_index, try_number, factor],
            "dates": [ds, ds_nodash, ts, logical_date, data_interval_start, data_interval_end],
            "run": [run_id, context["dag_run"].run_id, context["dag_run"].run_type],
            "params": params,
            "rest": sorted(context),
        }

    @task
    async def by_asking(conn: asyncpg.Connection[Any]) -> str:
        return str(current_context()["ds"])

    @task
    def everything(**context: Any) -> bool:
        return context["ti"] is current_context()["ti"]

    by_name(factor=3)
    by_asking()
    everything()


@dag(schedule=None)
def pushing() -> None:
    """The seed's explicit form, several outputs, and references to keys."""

    @task
    def extract_classic(ti: Any, **context: Any) -> None:
        ti.xcom_push(key="extracted_data", value=[1, 2, (3, 4)])

    @task
    def transform_classic(ti: Any, **context: Any) -> None:
        data = ti.xcom_pull(task_ids="extract_classic", key="extracted_data")
        ti.xcom_push(key="transformed_data", value=data)

    @task
    async def pull_async(ti: Any) -> Any:
        return await ti.xcom_pull(task_ids=["extract_classic", "transform_classic"], key="transformed_data", default="none")

    @task(multiple_outputs=True)
    def several() -> dict[str, Any]:
        return {"left": 1, "right": [2]}

    @task
    def single() -> dict[str, Any]:
        return {"left": 10}

    @task(retries=1)
    def second_try(ti: Any, try_number: Any) -> str:
        ti.xcom_push("lost" if try_number == 1 else "kept", try_number)
        if try_number == 1:
            raise ValueError("not yet")
        return "done"

    @task
    async def transactional(conn: psycopg.AsyncConnection[Any], ti: Any) -> None:
        ti.xcom_push("of_the_transaction", 1)

    @task
    def numbers() -> list[int]:
        return [5, 6, 7]

    @task
    def pull_mapped(ti: Any) -> Any:
        pull = ti.xcom_pull
        return [pull("twice"), pull("twice", map_indexes=1), pull("twice", map_indexes=[2, 0]), pull("nobody"), pull("several", key="right")]

    extract_classic() >> transform_classic() >> pull_async()
    both = several()
    give.override(task_id="sum")([both["left"], both["right"], single()["left"], both])
    second_try()
    transactional()

    @task
    def twice(x: int) -> int:
        return 2 * x

    [twice.expand(x=numbers()), both] >> pull_mapped()


@dag(schedule=None)
def too_much() -> None:
    @task
    def push_much(ti: Any) -> None:
        ti.xcom_push("much", "x" * 9_000_000)

    @task
    def push_odd(ti: Any) -> None:
        ti.xcom_push("odd", object())

    push_much()
    push_odd()


@dag(schedule=None, user_defined_macros={"shout": str.upper})
def templates() -> None:
    give.override(task_id="text")("{{ ds }} {{ params.name }} {{ macros.ds_add(ds, 1) }} {{ shout(run_id) }} {{ logical_date | ts_nodash }}")
    give.override(task_id="nested")({"a": ["{{ ds_nodash }}", 7, ("{{ ti.task_id }}",)]})
    upstream = give.override(task_id="upstream")("{{ '{{' }} ds }}")
    give.override(task_id="data_is_no_template")(upstream)
    give.override(task_id="pulls")("{{ ti.xcom_pull(task_ids='upstream') }}") << upstream
    give.override(task_id="items").expand(value=["{{ ds }}", "plain"])
    SQLOperator(task_id="file", sql="context_flows_query.sql")
    give.override(task_id="secret")(["{{ conn.bank.password }}", "{{ conn.bank.host }}", "{{ var.value.api_key }}", "{{ var.json.limits.most }}"])


@dag(schedule=None, render_template_as_native_obj=True)
def native() -> None:
    give.override(task_id="kept")("{{ params.rows }}")


@dag(schedule=None)
def undefined() -> None:
    give.override(task_id="unknown", retries=2)("{{ dss }}")
    give.override(task_id="outside")("{{ ds.__class__.__mro__ }}")
    give.override(task_id="no_connection")("{{ conn.nobody.host }}")


def note(what: str) -> Any:
    """A callback that notes in the run's file what it was called for."""

    def called(context: dict[str, Any]) -> None:
        ti = context["ti"]
        line = f"{what} {ti.task_id} {ti.state} {ti.try_number} {context.get('exception', '-')!r}" if ti else f"{what} run {context['dag_run'].state}"
        with Path(context["params"]["file"]).open("a") as file:
            file.write(line + "\n")

    return called


def complain(context: dict[str, Any]) -> None:
    raise RuntimeError("the callback itself is broken")


@dag(schedule=None, on_success_callback=note("dag"), on_failure_callback=[complain, note("dag")])
def calling_back() -> None:
    @task(
        retries=1,
        on_retry_callback=note("retry"),
        on_failure_callback=[complain, note("failure")],
        on_success_callback=note("success"),
        on_execute_callback=note("execute"),
    )
    def work(params: Any) -> None:
        if params["fail"]:
            raise ValueError("as told")

    work()


@dag(schedule=None)
def grouped() -> None:
    """begin -> [load: read -> (check: one, two) -> write] -> end, and the group once more."""

    @task_group
    def load(value: Any) -> None:
        """Reads and writes."""
        read = give.override(task_id="read")(value)
        with TaskGroup("check", default_args={"retries": 2}) as check:
            give.override(task_id="one")(read)
            give.override(task_id="two")(read)
        check >> give.override(task_id="write")("w")

    begin, end = give.override(task_id="begin")("b"), give.override(task_id="end")("e")
    begin >> Label("first") >> load(1) >> end
    load(2) >> end
