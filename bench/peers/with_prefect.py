"""Prefect: `with_prefect.py DSN light|long N`. A flow that calls its tasks in sequence, its API server beside it, on SQLite, which is its default: on PostgreSQL it wants pg_trgm, which the bundled server lacks."""

import json
import os
import sys
import tempfile
import time

what, count = sys.argv[2], int(sys.argv[3])
os.environ |= {
    "PREFECT_HOME": tempfile.mkdtemp(prefix="onceflow-prefect-"),
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}

from prefect import flow, task  # noqa: E402 - it reads its settings now


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@task
def one(n: int) -> int:
    return fibonacci(n)


@flow
def sequence(tasks: int, n: int) -> None:
    for _ in range(tasks):
        one(n)


if __name__ == "__main__":
    sequence(1, 1)  # its server starts
    times = []
    for _ in range(3 if what == "light" else 1):
        started = time.perf_counter()
        sequence(40 if what == "light" else 10, 10 if what == "light" else count)
        times.append(time.perf_counter() - started)
    print(json.dumps({"seconds": sorted(times)[len(times) // 2]}), flush=True)
