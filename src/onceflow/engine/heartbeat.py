"""The worker's sign of life: its own thread and connection, so that a step that computes cannot starve it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from onceflow.db.calls import Call
from onceflow.db.sync_runner import connect, run_call

log = logging.getLogger("onceflow.heartbeat")


class Heartbeat:
    """Calls `make()` for the call to send and hands the answer to `heard`, every `interval_s`, over lost connections."""

    def __init__(self, dsn: str, interval_s: float, make: Callable[[], Call], heard: Callable[[Any], None]) -> None:
        self._dsn, self._interval_s, self._make, self._heard = dsn, interval_s, make, heard
        self._is_stopping = False
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Sends the next one at once: something may have been revoked."""
        self._now.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._now.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        while True:
            self._now.wait(self._interval_s if conn is not None else 0.2)
            self._now.clear()
            if self._is_stopping:
                break
            try:
                if conn is None or conn.closed:
                    conn = connect(self._dsn, "onceflow-heartbeat", connect_timeout=5, keepalives_idle=5, keepalives_interval=2, keepalives_count=3)
                self._heard(run_call(conn, self._make()))
            except Exception as error:
                log.warning("heartbeat not sent: %s", str(error).strip())
                if conn is not None:
                    conn.close()
                conn = None
        if conn is not None:
            conn.close()
