"""A proxy in front of a real Postgres that breaks connections exactly where a fault test wants it.

    with Proxy(db.step_dsn) as proxy:
        fault = proxy.cut_next(b"complete_task", when="answered")   # the commit happens, its reply is lost
        ... run with proxy.dsn(db.step_dsn) ...
        fault.wait()

A fault matches a statement when the server would RUN it: a simple query, or the Execute of a prepared statement whose
SQL or parameters contain the bytes (letter case is ignored). When it strikes:
    before     the message never reaches the server; both sides are cut
    forwarded  the server gets it; the client is cut at once, while the server still works on it
    answered   the server gets it and has answered; the answer is swallowed, then both sides are cut
    held       the client is cut; the message waits here until `fault.deliver()`: a first attempt that arrives late
With `act` something else happens at that moment, before or answered: it is called with the connection, while both sides wait,
and says whether the connection goes on (the message, or the answer, is then passed on) or is cut.
The client always talks to 127.0.0.1 without TLS; the server may be a unix socket or a port. COPY through the
extended protocol is not followed.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tests.wire import (
    BACKEND_KEY,
    ENDS_GROUP,
    ERROR_RESPONSE,
    NO_ENCRYPTION,
    READY_FOR_QUERY,
    Frame,
    Statements,
    find_backend_pid,
    find_sqlstate,
    is_negotiation,
    read_frame,
)

When = Literal["before", "forwarded", "answered", "held"]
Act = Callable[["Link"], bool]


@dataclass
class Fault:
    """One planned break. `sqlstate` is the error in the swallowed answer, None if the server said success."""

    needle: bytes
    when: When
    skip: int
    act: Act | None = None
    happened: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    missed: threading.Event = field(default_factory=threading.Event)  # its connection ended for another reason, before it could strike
    sqlstate: str | None = None
    held: bytes = b""
    answer: bytes = b""
    held_server: socket.socket | None = None

    def wait(self, timeout: float = 20) -> None:
        """Wait until the client has been cut; fails if no statement matched in time."""
        assert self.happened.wait(timeout), f"no statement with {self.needle!r} came through the proxy in {timeout} s"

    def wait_answered(self, timeout: float = 20) -> str | None:
        """Wait until the server has answered the statement the client was cut from, or ended its session; returns its SQLSTATE or None."""
        assert self.answered.wait(timeout), f"the server did not answer {self.needle!r} in {timeout} s"
        return self.sqlstate

    def deliver(self, timeout: float = 20) -> str | None:
        """Hand a held message to the server and wait for its answer; returns its SQLSTATE or None."""
        self.wait(timeout)
        assert self.held_server is not None, "nothing is held"
        self.held_server.sendall(self.held)
        return self.wait_answered(timeout)


class Link:
    """One client's connection and its connection to the server; one thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.statements = Statements()
        self.groups_sent = 1  # what the server answers up to a ReadyForQuery; the startup is the first
        self.groups_answered = 0
        self.fault: Fault | None = None
        self.fault_group = -1
        self.backend_pid = 0

    def start(self) -> None:
        """Forward both directions until one side ends."""
        threading.Thread(target=self._run, args=(self._forward_requests,), daemon=True).start()
        threading.Thread(target=self._run, args=(self._forward_replies,), daemon=True).start()

    def cut(self) -> None:
        """Cut both sides, as a broken network would."""
        close_socket(self.client)
        close_socket(self.server)

    def _run(self, forward: Callable[[], bool]) -> None:
        server_goes_on = False
        try:
            server_goes_on = forward()
        except (OSError, ValueError):
            pass  # the other thread, or the test, cut the connection
        finally:
            if not server_goes_on:
                self.cut()
                if self.fault is not None:
                    self.fault.missed.set()

    def _forward_requests(self) -> bool:
        """Client to server; True when the client has been cut and the server shall not notice."""
        with self.client.makefile("rb") as stream:
            while (startup := read_frame(stream, typed=False)) is not None and is_negotiation(startup):
                self.client.sendall(NO_ENCRYPTION)
            if startup is None:
                return False
            self.server.sendall(startup.raw)
            while (frame := read_frame(stream)) is not None:
                self.proxy.wait_thawed()
                if not self._forward_request(frame):
                    return self.fault is not None and self.fault.when in ("forwarded", "held")
        return False

    def _forward_request(self, frame: Frame) -> bool:
        """Pass one message on, or let the planned fault strike; False when the client is cut."""
        text = self.statements.executed_text(frame)
        if self.fault is None and text is not None:
            self.fault = self.proxy.take_fault(text)
            self.fault_group = self.groups_sent
        fault = self.fault
        if fault is not None and fault.when == "before":
            if not self._go_on(fault):
                return False
            fault = None
        if fault is not None and fault.when == "held":
            fault.held += frame.raw
        else:
            self.server.sendall(frame.raw)
        if frame.kind in ENDS_GROUP:
            self.groups_sent += 1
            if fault is not None and fault.when in ("forwarded", "held"):
                fault.held_server = self.server
                close_socket(self.client)
                fault.happened.set()
                return False
        return True

    def _forward_replies(self) -> bool:
        """Server to client, up to the server's end or the last of a swallowed answer."""
        with self.server.makefile("rb") as stream:
            while (frame := read_frame(stream)) is not None:
                self.proxy.wait_thawed()
                if self.fault is not None and self.groups_answered == self.fault_group:
                    if self._swallow_reply(self.fault, frame):
                        break
                else:
                    if frame.kind == READY_FOR_QUERY:
                        time.sleep(self.proxy.delay_s)
                    self.client.sendall(frame.raw)
                if frame.kind == READY_FOR_QUERY:
                    self.groups_answered += 1
                elif frame.kind == BACKEND_KEY:
                    self.backend_pid = find_backend_pid(frame)
        if self.fault is not None and self.fault.held:
            self.fault.answered.set()  # its session has ended
        return False

    def _swallow_reply(self, fault: Fault, frame: Frame) -> bool:
        """Keep one message of the answer from the client; True when it was the last."""
        if frame.kind == ERROR_RESPONSE:
            fault.sqlstate = find_sqlstate(frame)
        fault.answer += frame.raw
        if frame.kind != READY_FOR_QUERY:
            return False
        fault.answered.set()
        if not self._go_on(fault):
            return True
        self.client.sendall(fault.answer)
        return False

    def _go_on(self, fault: Fault) -> bool:
        """The fault strikes now; does the connection live on?"""
        goes_on = fault.act is not None and fault.act(self)
        if goes_on:
            self.fault = None
        else:
            self.cut()
        fault.happened.set()
        return goes_on


class Proxy:
    """Listens on a loopback port and forwards to the server of `dsn`; everything passes until told otherwise."""

    def __init__(self, dsn: str) -> None:
        self._target = conninfo_to_dict(dsn)
        self._listener: socket.socket | None = None
        self.port = 0
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.on_statement: Callable[[bytes], None] = lambda text: None
        self._links: list[Link] = []
        self._thawed = threading.Event()
        self._thawed.set()
        self.delay_s = 0.0
        self.accept()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def dsn(self, dsn: str) -> str:
        """The same user, password and database, through this proxy."""
        parts = conninfo_to_dict(dsn)
        password = f":{quote(str(parts['password']), safe='')}" if parts.get("password") else ""
        user = quote(str(parts["user"]), safe="")
        database = quote(str(parts["dbname"]), safe="")
        return f"postgresql://{user}{password}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def cut_next(self, needle: bytes, *, when: When = "answered", skip: int = 0, act: Act | None = None) -> Fault:
        """Plan a fault for the next statement that contains `needle`, after letting `skip` such statements pass."""
        assert when in get_args(When), f"when={when!r} must be one of {get_args(When)}"
        assert act is None or when in ("before", "answered"), f"nothing else can happen when={when!r}"
        fault = Fault(needle.lower(), when, skip, act)
        with self._lock:
            self._faults.append(fault)
        return fault

    def forget(self, fault: Fault) -> bool:
        """A planned fault does not strike any more; False when it has begun to already."""
        with self._lock:
            is_planned = fault in self._faults
            if is_planned:
                self._faults.remove(fault)
            return is_planned

    def delay_replies(self, seconds: float) -> None:
        """Hold the end of every answer back for so long, so that each statement takes longer; 0 ends it."""
        self.delay_s = seconds

    def refuse(self) -> None:
        """Refuse new connections, as a server that is down does; open ones live on."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            close_socket(listener)

    def accept(self) -> None:
        """Accept new connections, on the same port as before."""
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            self.port = listener.getsockname()[1]
            self._listener = listener
            threading.Thread(target=self._accept_links, args=(listener,), daemon=True).start()

    def freeze(self) -> None:
        """Let nothing through in either direction, without closing anything: a network that swallows packets."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Let through again, first of all what waited."""
        self._thawed.set()

    def wait_thawed(self) -> None:
        """Block a forwarding thread while the proxy is frozen."""
        self._thawed.wait()

    def cut_all(self) -> None:
        """Cut every open connection now."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.cut()

    def pass_everything(self) -> None:
        """Forget planned faults, delays, freezes and refusals."""
        with self._lock:
            self._faults.clear()
        self.delay_s = 0.0
        self.thaw()
        self.accept()

    def close(self) -> None:
        """Stop listening and cut everything."""
        self.refuse()
        self.cut_all()
        self.thaw()

    def take_fault(self, text: bytes) -> Fault | None:
        """The planned fault this statement triggers; each strikes once."""
        self.on_statement(text)
        with self._lock:
            for fault in self._faults:
                if fault.needle in text.lower():
                    fault.skip -= 1
                    if fault.skip < 0:
                        self._faults.remove(fault)
                        return fault
            return None

    def _accept_links(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # refuse() closed the listener
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                link = Link(self, client, self._connect_server())
            except OSError:
                close_socket(client)  # the server is down: so are we
                continue
            with self._lock:
                self._links.append(link)
            link.start()

    def _connect_server(self) -> socket.socket:
        host, port = str(self._target.get("host", "127.0.0.1")), int(self._target.get("port") or 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(Path(host) / f".s.PGSQL.{port}"))
        else:
            server = socket.create_connection((host, port))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server


def close_socket(one: socket.socket) -> None:
    """Close a socket that another thread may be reading: shutdown wakes that thread."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected any more
    one.close()
