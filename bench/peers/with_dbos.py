"""DBOS: a workflow for each job, with one transaction of a datasource. `with_dbos.py DSN jobs|queued|light|long COUNT`: started directly, or from a queue."""

import json
import sys
import time

import sqlalchemy as sa
from dbos import DBOS, SQLAlchemyDatasource

dsn, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
url = dsn.replace("postgresql://", "postgresql+psycopg://")
THREADS = 16
DBOS(
    config={
        "name": "peer",
        "system_database_url": url,
        "sys_db_pool_size": 32,
        "max_executor_threads": THREADS,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)
datasource = SQLAlchemyDatasource.create(url, engine_kwargs={"pool_size": 32})


@datasource.transaction(isolation_level="READ COMMITTED")
def insert_one(n: int) -> int:
    datasource.sql_session().execute(sa.text("insert into effect(n) values (:n)"), {"n": n})
    return n


@DBOS.workflow()
def job(n: int) -> int:
    return insert_one(n)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@DBOS.step()
def one(n: int) -> int:
    return fibonacci(n)


@DBOS.workflow()
def sequence(steps: int, n: int) -> None:
    for _ in range(steps):
        one(n)


DBOS.launch()
if what in ("jobs", "queued"):
    if what == "queued":
        DBOS.register_queue("jobs", worker_concurrency=THREADS, polling_interval_sec=0.01)
        handles = [DBOS.enqueue_workflow("jobs", job, n) for n in range(count)]
    else:
        handles = [DBOS.start_workflow(job, n) for n in range(count)]
    for handle in handles:
        handle.get_result()
else:
    times = []
    for _ in range(3 if what == "light" else 1):
        started = time.perf_counter()
        DBOS.start_workflow(sequence, 40 if what == "light" else 10, 10 if what == "light" else count).get_result()
        times.append(time.perf_counter() - started)
    print(json.dumps({"seconds": sorted(times)[len(times) // 2]}), flush=True)
DBOS.destroy()
