"""The fault proxy, against a fake server that speaks just enough of the wire protocol to answer and to remember."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest

from tests.proxy import Proxy, When, close_socket
from tests.wire import Frame, read_frame


def frame(kind: bytes, payload: bytes) -> bytes:
    """One wire message."""
    return kind + struct.pack("!I", len(payload) + 4) + payload


READY = frame(b"Z", b"I")
FAILED = frame(b"E", b"SERROR\0COF001\0Mlost\0\0")


@dataclass
class FakeServer:
    """Answers each query with its own text and ReadyForQuery; a query with `boom` in it with an error."""

    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    ran: list[bytes] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return f"postgresql://u@127.0.0.1:{self.listener.getsockname()[1]}/d"

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = client.makefile("rwb", buffering=0)
        read_frame(stream, typed=False)  # type: ignore[arg-type]
        stream.write(frame(b"R", b"\0\0\0\0") + READY)
        while (message := read_frame(stream)) is not None:  # type: ignore[arg-type]
            if message.kind in (b"Q", b"E"):
                self.ran.append(message.payload)
                stream.write(FAILED if b"boom" in message.payload else frame(b"C", message.payload))
            if message.kind in (b"Q", b"S"):
                stream.write(READY)


class Client:
    """A client that has connected through the proxy."""

    def __init__(self, proxy: Proxy, *, ask_for_tls: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream: BinaryIO = self.socket.makefile("rb")
        if ask_for_tls:
            self.socket.sendall(struct.pack("!II", 8, 80877103))
            assert self.stream.read(1) == b"N"
        self.socket.sendall(struct.pack("!II", 15, 196608) + b"user\0u\0")
        assert self.answer() == [b"R", b"Z"]

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.socket.sendall(frame(kind, payload))

    def read(self) -> Frame | None:
        try:
            return read_frame(self.stream)
        except ConnectionError:
            return None

    def answer(self) -> list[bytes]:
        """The kinds of messages up to ReadyForQuery or the end of the connection."""
        kinds: list[bytes] = []
        while kinds[-1:] != [b"Z"] and (one := self.read()) is not None:
            kinds.append(one.kind)
        return kinds

    def ask(self, sql: bytes) -> list[bytes]:
        self.send(b"Q", sql + b"\0")
        return self.answer()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake server that listens."""
    fake = FakeServer()
    threading.Thread(target=fake.serve, daemon=True).start()
    yield fake
    close_socket(fake.listener)


@pytest.fixture
def proxy(server: FakeServer) -> Iterator[Proxy]:
    """A proxy in front of the fake server."""
    with Proxy(server.dsn) as started:
        yield started


def test_everything_passes_until_a_fault_is_planned(server: FakeServer, proxy: Proxy) -> None:
    """Messages go through both ways, also after a refused request for TLS."""
    client = Client(proxy, ask_for_tls=True)
    assert client.ask(b"select 1") == [b"C", b"Z"]
    assert server.ran == [b"select 1\0"]


def test_before_means_the_server_never_sees_it(server: FakeServer, proxy: Proxy) -> None:
    """A message cut before forwarding has not run; the next connection works again."""
    fault = proxy.cut_next(b"COMMIT", when="before")
    assert Client(proxy).ask(b"commit") == []
    fault.wait()
    assert server.ran == []
    assert Client(proxy).ask(b"commit") == [b"C", b"Z"]


def test_answered_means_the_server_ran_it_and_the_reply_is_lost(server: FakeServer, proxy: Proxy) -> None:
    """Only the matching statement's reply is swallowed; the one before it arrived."""
    fault = proxy.cut_next(b"commit", when="answered")
    client = Client(proxy)
    assert client.ask(b"insert") == [b"C", b"Z"]
    assert client.ask(b"commit") == []
    assert fault.wait_answered() is None
    assert server.ran == [b"insert\0", b"commit\0"]


def test_a_swallowed_error_is_known_to_the_test(proxy: Proxy) -> None:
    """The test can ask which SQLSTATE the client never saw."""
    fault = proxy.cut_next(b"boom", when="answered")
    assert Client(proxy).ask(b"boom") == []
    assert fault.wait_answered() == "OF001"


def test_forwarded_cuts_the_client_and_lets_the_server_finish(server: FakeServer, proxy: Proxy) -> None:
    """The client is gone at once, the statement runs all the same."""
    fault = proxy.cut_next(b"commit", when="forwarded")
    assert Client(proxy).ask(b"commit") == []
    assert fault.wait_answered() is None
    assert server.ran == [b"commit\0"]


def test_a_held_message_arrives_only_when_delivered(server: FakeServer, proxy: Proxy) -> None:
    """The delayed first attempt: a second connection works before the first one's message lands."""
    fault = proxy.cut_next(b"commit", when="held")
    assert Client(proxy).ask(b"commit a") == []
    assert Client(proxy).ask(b"commit b") == [b"C", b"Z"]
    assert fault.deliver() is None
    assert server.ran == [b"commit b\0", b"commit a\0"]


@pytest.mark.parametrize("when", ["before", "answered", "forwarded", "held"])
def test_a_prepared_statement_matches_when_it_is_executed(server: FakeServer, proxy: Proxy, when: When) -> None:
    """Parse and Describe pass; the Execute of that statement is what is hit, at its second use as well."""
    fault = proxy.cut_next(b"complete_task", when=when, skip=1)
    client = Client(proxy)
    client.send(b"P", b"s1\0select complete_task($1)\0\0\0")
    client.send(b"S")
    assert client.answer() == [b"Z"]
    for expected in ([b"C", b"Z"], []):
        client.send(b"B", b"\0s1\0\0\0\0\0\0\0")
        client.send(b"E", b"\0\0\0\0\0")
        try:
            client.send(b"S")
        except ConnectionError:
            pass  # cut already, at the Execute
        assert client.answer() == expected
    fault.wait()
    if when in ("answered", "forwarded"):
        fault.wait_answered()
    assert len(server.ran) == (2 if when in ("answered", "forwarded") else 1)


def test_a_parameter_matches_too(proxy: Proxy) -> None:
    """A fault can be planned for the statement that carries a certain value."""
    fault = proxy.cut_next(b"pay-42", when="before")
    client = Client(proxy)
    client.send(b"P", b"\0select start_run($1)\0\0\0")
    client.send(b"B", b"\0\0\0\0\0\1\0\0\0\6pay-42\0\0")
    client.send(b"E", b"\0\0\0\0\0")
    assert client.answer() == []
    fault.wait()


def test_refused_connections_and_cut_ones(proxy: Proxy) -> None:
    """While refusing, new connections fail and old ones live; cut_all ends those; accept brings the port back."""
    old = Client(proxy)
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy)
    assert old.ask(b"select 1") == [b"C", b"Z"]
    proxy.cut_all()
    assert old.ask(b"select 2") == []
    proxy.accept()
    assert Client(proxy).ask(b"select 3") == [b"C", b"Z"]


def test_delay_holds_each_answer_back(proxy: Proxy) -> None:
    """An answer takes at least the delay; without it none."""
    client = Client(proxy)
    proxy.delay_replies(0.1)
    started = time.monotonic()
    client.ask(b"select 1")
    assert time.monotonic() - started >= 0.1
    proxy.pass_everything()
    assert proxy.delay_s == 0


def test_a_frozen_proxy_loses_nothing(server: FakeServer, proxy: Proxy) -> None:
    """What is sent while frozen reaches the server after the thaw, and not before."""
    client = Client(proxy)
    proxy.freeze()
    client.send(b"Q", b"select 1\0")
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.stream.read(1)
    assert server.ran == []
    proxy.thaw()
    client.socket.settimeout(10)
    client.stream = client.socket.makefile("rb")
    assert client.answer() == [b"C", b"Z"]


def test_a_server_that_is_down_cuts_the_client(server: FakeServer, proxy: Proxy) -> None:
    """The proxy does not pretend that a dead server is there."""
    close_socket(server.listener)
    with pytest.raises((AssertionError, ConnectionError)):
        Client(proxy)


def test_a_rewritten_dsn_keeps_user_password_and_database(proxy: Proxy) -> None:
    """Odd characters survive, and the address is the proxy's."""
    rewritten = proxy.dsn("postgresql://a%40b:p%2Fw@/my%20db?host=%2Ftmp%2Fx&port=5499")
    assert rewritten == f"postgresql://a%40b:p%2Fw@127.0.0.1:{proxy.port}/my%20db?sslmode=disable"
