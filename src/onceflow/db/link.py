"""The engine's own connections (asyncpg): few, pinned, reconnected for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from typing import Any

import asyncpg

from onceflow.db.calls import Call, parse_answer
from onceflow.db.driver_errors import is_connection_lost, translate
from onceflow.errors import NoDatabase
from onceflow.settings import mask_dsn

log = logging.getLogger("onceflow.link")
STOPPED_S = 10  # others wait for the locks of a call; between its messages a live process needs milliseconds


class Link:
    """Runs `Call`s on at most `limit` connections. `pooled` says that a transaction pooler (pgbouncer) stands between.

    `call` lets a lost connection through as an error of the driver: whoever called knows whether it may be repeated.
    `call_again` repeats until it is answered: for calls that may run twice.
    """

    def __init__(self, dsn: str, limit: int = 4, patience_ms: int = 0) -> None:
        """`patience_ms`: how long a call may wait for what somebody else holds, before it fails with 55P03; 0: for ever."""
        self.dsn = dsn
        self.patience_ms = patience_ms
        self.pooled = False
        self._probed = False
        self._idle: list[asyncpg.Connection[asyncpg.Record]] = []
        self._places = asyncio.Semaphore(limit)
        self._closed = False

    async def open(self) -> None:
        """Connects once, so that a wrong DSN is told at the start; raises NoDatabase."""
        try:
            self._idle.append(await self._connect())
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise NoDatabase(f"cannot connect to {mask_dsn(self.dsn)}: {error}. Is the server up, and ONCEFLOW_DSN right?") from error

    async def call(self, call: Call) -> Any:
        async with self._places:
            conn = await self._take()
            try:
                answer = await (fetch_in_transaction(conn, call, self.patience_ms) if self.pooled else conn.fetchval(call.sql, *call.args))
            except BaseException as error:
                if isinstance(error, asyncpg.PostgresError) and not is_connection_lost(error) and not conn.is_closed():
                    self._idle.append(conn)
                else:
                    conn.terminate()
                own = translate(error)
                if own is not None:
                    raise own from None  # the driver's error says the same
                raise
            self._idle.append(conn)
            return parse_answer(answer)

    async def call_again(self, call: Call) -> Any:
        wait_s = 0.05
        while True:
            try:
                return await self.call(call)
            except Exception as error:
                if not is_connection_lost(error) and getattr(error, "sqlstate", None) not in ("40001", "40P01", "55P03"):
                    raise
                log.warning("%s: not answered (%s); trying again", call.name, error)
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 2.0)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            conn = self._idle.pop()
            try:
                await conn.close(timeout=2)
            except Exception:
                conn.terminate()

    async def _take(self) -> asyncpg.Connection[asyncpg.Record]:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                return conn
        wait_s = 0.05
        while True:
            try:
                return await self._connect()
            except Exception as error:
                if self._closed or not (
                    is_connection_lost(error) or isinstance(error, OSError | asyncpg.TooManyConnectionsError | asyncpg.CannotConnectNowError)
                ):
                    raise
                log.warning("cannot connect to %s: %s; trying again", mask_dsn(self.dsn), error)
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 2.0)

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        settings = session_settings("onceflow-engine")
        if not self._probed:
            conn = await asyncpg.connect(self.dsn, statement_cache_size=0, timeout=10, server_settings=settings)
            async with conn.transaction():
                # Behind a pooler the process id of the handshake is not that of the server that answers.
                self.pooled = await conn.fetchval("select pg_backend_pid()") != conn.get_server_pid()
            self._probed = True
            if self.pooled:
                return conn
            await conn.close()
        conn = await asyncpg.connect(self.dsn, statement_cache_size=0 if self.pooled else 200, timeout=10, server_settings=settings)
        keep_alive(conn)
        if not self.pooled:
            # The login, or the database, may have another default; what ends a run must see what was committed just before.
            await conn.execute(f"set default_transaction_isolation = 'read committed'; set lock_timeout = {self.patience_ms}")
        return conn


def session_settings(application_name: str) -> dict[str, str]:
    """What an asyncpg connection says at its start. The encoding is ours, whatever the DSN says: the driver reads and writes UTF-8."""
    return {"application_name": application_name, "client_encoding": "utf8"}


async def fetch_in_transaction(conn: asyncpg.Connection[asyncpg.Record], call: Call, patience_ms: int = 0) -> Any:
    """For a pooler: parse and execute must meet the same server connection. A process that is stopped in the midst of it does not keep its locks."""
    await conn.execute(
        f"begin isolation level read committed; set local idle_in_transaction_session_timeout = '{STOPPED_S}s'; set local lock_timeout = {patience_ms}"
    )
    try:
        answer = await conn.fetchval(call.sql, *call.args)
    except asyncpg.PostgresError:
        try:
            await conn.execute("rollback")
        except Exception:
            conn.terminate()
        raise
    await conn.execute("commit")
    return answer


async def is_pooled(dsn: str) -> bool:
    """Whether a transaction pooler stands between; raises NoDatabase, so that a wrong DSN is told at the start."""
    probe = Link(dsn)
    await probe.open()
    await probe.close()
    return probe.pooled


def keep_alive(conn: Any) -> None:
    """Have the kernel notice a peer that vanished without a word within about 15 s; asyncpg has no option for it."""
    sock = conn._transport.get_extra_info("socket") if getattr(conn, "_transport", None) is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000)):
            if hasattr(socket, name):  # not every system has all of them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Listener:
    """One LISTEN connection; calls `heard(channel, payload)` on the event loop. Without it polling goes on alone."""

    CHANNELS = ("onceflow_ready", "onceflow_revoked")

    def __init__(self, dsn: str, heard: Any) -> None:
        self.dsn = dsn
        self.heard = heard

    async def run(self) -> None:
        """Listens until cancelled, reconnecting for ever."""
        wait_s = 0.1
        while True:
            conn: asyncpg.Connection[asyncpg.Record] | None = None
            try:
                conn = await asyncpg.connect(self.dsn, statement_cache_size=0, timeout=10, server_settings=session_settings("onceflow-listen"))
                keep_alive(conn)
                gone = asyncio.Event()
                conn.add_termination_listener(lambda _c, gone=gone: gone.set())
                for channel in self.CHANNELS:
                    await conn.add_listener(channel, lambda _c, _p, ch, payload: self.heard(ch, payload))
                wait_s = 0.1
                self.heard("onceflow_ready", "")  # whatever came while nobody listened
                await gone.wait()
            except Exception as error:
                log.warning("listener lost: %s; trying again", error)
            finally:
                if conn is not None:
                    conn.terminate()
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, 5.0)
