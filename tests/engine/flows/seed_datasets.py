"""The example of dataset-driven scheduling that people know from Airflow's world; changed are only its imports, and what it calls outside."""

from __future__ import annotations

from typing import Any

from onceflow import Dataset, dag, task

BUCKET: dict[str, Any] = {}


def extract_from_source() -> list[int]:
    """Stands for a system outside."""
    return [1, 2]


def write_to_s3(path: str, data: Any) -> None:
    """Stands for a bucket."""
    BUCKET[path] = data


def read_from_s3(path: str) -> Any:
    return BUCKET.get(path, [1, 2])


def generate_report(data: Any) -> None:
    assert data == [1, 2]


# Producer DAG: declares it updates a dataset
orders_dataset = Dataset("s3://warehouse/orders/")


@dag(schedule="@daily")
def etl_orders():
    @task(outlets=[orders_dataset])  # marks this task as a dataset producer
    def load_orders():
        data = extract_from_source()
        write_to_s3("s3://warehouse/orders/", data)

    load_orders()


# Consumer DAG: triggered when the dataset is updated
@dag(schedule=[orders_dataset])  # triggered by dataset update, not cron
def downstream_analytics():
    @task()
    def build_report():
        data = read_from_s3("s3://warehouse/orders/")
        generate_report(data)

    build_report()


orders = Dataset("s3://warehouse/orders/")
customers = Dataset("s3://warehouse/customers/")


@dag(schedule=[orders, customers])  # both must be updated
def joined_analytics(): ...
