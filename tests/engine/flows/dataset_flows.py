"""Dags that write datasets and say something of them, and dags that run by these."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import asyncpg
import psycopg

from onceflow import Asset, BaseOperator, Dataset, DatasetAlias, DatasetOrTime, EmptyOperator, Metadata, PythonOperator, dag, task

sales, stock, prices = Dataset("s3://sales/", extra={"owner": "shop"}), Asset("s3://stock/"), Dataset("s3://prices/")
exports = DatasetAlias("exports")
OPEN = {"is_paused_upon_creation": False}


@task(outlets=[sales])
def load_sales(rows: int) -> Any:
    yield Metadata(sales, extra={"rows": rows, "sum": Decimal("7.50")})
    return rows


@task(outlets=[stock], retries=1)
async def load_stock(conn: asyncpg.Connection, outlet_events: Any, try_number: int) -> int:
    await conn.execute("insert into effect (what, note) values ('stock', $1)", f"try {try_number}")
    outlet_events[stock].extra["try"] = try_number
    if try_number == 1:
        raise ValueError("not yet")
    return try_number


@task(outlets=[prices])
def load_prices(conn: psycopg.Connection[Any]) -> Any:
    conn.execute("insert into effect (what, note) values ('prices', 'written')")
    yield Metadata("s3://prices/", {"rows": 1})


@task(outlets=[exports])
def export(names: list[str], outlet_events: Any) -> None:
    for name in names:
        outlet_events[exports].add(Dataset(f"s3://export/{name}"), {"name": name})


class Load(BaseOperator):
    """Tells of its outlet through the context."""

    def execute(self, context: dict[str, Any]) -> None:
        (dataset,) = context["outlets"]
        context["outlet_events"][dataset].extra["by"] = "operator"


@dag(params={"rows": 3}, render_template_as_native_obj=True)
def write_sales():
    load_sales("{{ params.rows }}")


@dag
def write_stock():
    load_stock()


@dag
def write_prices():
    load_prices()


@dag(params={"names": ["x", "y"]}, render_template_as_native_obj=True)
def write_exports():
    export("{{ params.names }}")


@dag
def write_by_operators():
    Load("load", outlets=[sales]) >> EmptyOperator("joint", outlets=[stock]) >> PythonOperator("call", python_callable=_yield, outlets=[prices])


def _yield() -> Any:
    yield Metadata(prices, {"by": "python"})
    return "called"


@dag
def write_wrongly():
    @task(outlets=[sales])
    def other():
        yield Metadata(stock, {})

    @task(outlets=[sales])
    def number():
        yield 7

    other()
    number()


@task
def see(triggering_dataset_events: Any, dag_run: Any) -> dict[str, Any]:
    return {uri: [[e.extra, e.source_dag_id, e.source_task_id] for e in events] for uri, events in triggering_dataset_events.items()} | {
        "type": dag_run.run_type,
        "sales": len(triggering_dataset_events.get(sales, [])),
    }


@dag(schedule=sales, **OPEN)
def after_sales():
    see()


@dag(schedule=stock | prices, **OPEN)
def after_stock_or_prices():
    see()


@dag(schedule=exports, **OPEN)
def after_exports():
    see()


@dag(schedule=DatasetOrTime(sales & stock, "0 6 * * *"), **OPEN)
def after_both_or_daily():
    see()
