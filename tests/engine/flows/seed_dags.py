"""The example dags that people know from Airflow's world; changed are only their imports, and what they call outside."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from onceflow import DAG, PostgresOperator, PythonOperator, dag, task  # noqa: F401

WAREHOUSE: dict[str, Any] = {}


def write_to_warehouse(data: Any) -> None:
    """Stands for a system outside."""


def read(path: str) -> str:
    return path.removesuffix(".csv")


def sync_table(table: str) -> str:
    return f"synced {table}"


class s3:
    """Stands for a bucket."""

    @staticmethod
    def list_objects(prefix: str) -> list[str]:
        return ["file1.csv", "file2.csv", "file3.csv"]


@dag(
    dag_id="daily_etl_pipeline",
    schedule="0 6 * * *",  # 6 AM UTC daily
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=5),
        "execution_timeout": timedelta(hours=1),
        "pool": "etl_pool",
    },
    tags=["etl", "warehouse"],
)
def daily_etl_pipeline():

    @task()
    def extract_orders():
        """Pull today's orders from the source DB."""
        return [{"id": 1, "customer": 7}]

    @task()
    def extract_customers():
        """Pull customer updates."""
        return {7: "Ada"}

    @task()
    def transform(orders, customers):
        """Join and clean data."""
        # orders and customers are XCom values from upstream tasks
        return [{"id": order["id"], "customer": customers[order["customer"]]} for order in orders]

    @task()
    def load(data):
        """Write to warehouse."""
        write_to_warehouse(data)

    # Define dependency graph
    orders = extract_orders()
    customers = extract_customers()
    transformed = transform(orders, customers)
    load(transformed)


daily_etl_pipeline()


@dag(schedule="@daily")
def process_files():

    @task()
    def list_files() -> list[str]:
        """Returns a list of file paths to process."""
        return s3.list_objects("bucket/incoming/{{ ds }}/")

    @task()
    def process_file(file_path: str) -> dict:
        """Process a single file. Runs once per file."""
        data = read(file_path)
        return {"file": data}

    @task()
    def aggregate(results: list[dict]):
        """Aggregate all processed results."""
        combined = [result["file"] for result in results]
        write_to_warehouse(combined)
        return combined

    files = list_files()
    processed = process_file.expand(file_path=files)  # MAPPED: creates N instances
    aggregate(processed)


process_files()


# DAG-time expansion (static — task count fixed at parse time)
with DAG("process_tables") as static:
    tables = ["users", "orders", "products"]  # known at import
    for table in tables:
        PythonOperator(
            task_id=f"sync_{table}",
            python_callable=sync_table,
            op_args=[table],
        )


def query_information_schema() -> list[str]:
    return ["users", "orders"]


@dag()
def sync_tables():
    # Runtime expansion (dynamic — task count determined at runtime)
    @task()
    def get_tables() -> list[str]:
        return query_information_schema()

    task(sync_table).expand(table=get_tables())  # N instances created at runtime
