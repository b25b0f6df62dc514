"""Airflow with the LocalExecutor: `with_airflow.py DSN light|long N`. Its scheduler, dag processor and API server, on PostgreSQL; the seconds are those of its dag_run row."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg2

dsn, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
home = Path(tempfile.mkdtemp(prefix="onceflow-airflow-"))
DAG = """
from datetime import datetime
from airflow.sdk import chain, dag, task

def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@task
def one(n):
    return fibonacci(n)

@dag(schedule=None, start_date=datetime(2026, 1, 1), is_paused_upon_creation=False)
def sequence():
    chain(*[one({n}) for _ in range({tasks})])

sequence()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main() -> None:
    port = free_port()
    (home / "dags").mkdir()
    (home / "dags" / "sequence.py").write_text(DAG.replace("{n}", str(10 if what == "light" else count)).replace("{tasks}", "40" if what == "light" else "10"))
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": dsn.replace("postgresql://", "postgresql+psycopg2://"),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def airflow(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]

    log = (home / "log").open("wb")
    subprocess.run(airflow("db", "migrate"), env=environment, check=True, stdout=log, stderr=log)
    parts = (("api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"), ("dag-processor",), ("scheduler",))
    processes = [subprocess.Popen(airflow(*part), env=environment, stdout=log, stderr=log) for part in parts]
    try:
        conn = psycopg2.connect(dsn)
        conn.autocommit = True
        ask(conn, "select exists (select from serialized_dag where dag_id = 'sequence')", 180)
        times = []
        for n in range(2):  # the first one warms its processes
            subprocess.run(airflow("dags", "trigger", "sequence", "--run-id", f"r{n}"), env=environment, check=True, stdout=log, stderr=log)
            state, seconds = ask(
                conn, f"select state, extract(epoch from end_date - queued_at)::float8 from dag_run where run_id = 'r{n}' and end_date is not null", 400
            )
            assert state == "success", state
            times.append(seconds)
        print(json.dumps({"seconds": min(times)}), flush=True)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(conn: object, query: str, timeout_s: float) -> tuple:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with conn.cursor() as cursor:
            cursor.execute(query)
            if (row := cursor.fetchone()) and row[0]:
                return row
        time.sleep(0.1)
    raise TimeoutError(f"not within {timeout_s} s: {query}; see {home}/log")


main()
