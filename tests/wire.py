"""As much of the Postgres wire protocol (version 3) as the proxy must read to know which statement a message runs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import BinaryIO

NO_ENCRYPTION = b"N"
NEGOTIATIONS = (80877103, 80877104)  # SSLRequest, GSSENCRequest: one byte comes back, without a frame
ENDS_GROUP = (b"Q", b"S", b"F")  # simple query, sync, function call: each is answered up to one ReadyForQuery
READY_FOR_QUERY = b"Z"
ERROR_RESPONSE = b"E"
BACKEND_KEY = b"K"


@dataclass(frozen=True)
class Frame:
    """One message: its type byte (empty for the startup packet) and all its bytes."""

    kind: bytes
    raw: bytes

    @property
    def payload(self) -> bytes:
        """What follows the type and the length."""
        return self.raw[len(self.kind) + 4 :]


def read_frame(stream: BinaryIO, *, typed: bool = True) -> Frame | None:
    """The next message; None at the end of the stream, also in the middle of a message."""
    head = stream.read(5 if typed else 4)
    kind, length = (head[:1], head[1:]) if typed else (b"", head)
    if len(length) < 4:
        return None
    size = struct.unpack("!I", length)[0] - 4
    body = stream.read(size) if size else b""
    return Frame(kind, head + body) if len(body) == size else None


def is_negotiation(startup: Frame) -> bool:
    """Does the client ask for TLS or GSS encryption before it really starts?"""
    return len(startup.payload) == 4 and struct.unpack("!I", startup.payload)[0] in NEGOTIATIONS


def find_backend_pid(key: Frame) -> int:
    """The server process that a BackendKeyData names."""
    return int(struct.unpack("!I", key.payload[:4])[0])


def find_sqlstate(error: Frame) -> str:
    """The SQLSTATE of an ErrorResponse."""
    fields = {part[:1]: part[1:] for part in error.payload.split(b"\0") if part}
    return fields.get(b"C", b"").decode()


@dataclass
class Statements:
    """Follows Parse and Bind, so that an Execute of a long prepared statement still shows its SQL and parameters."""

    parsed: dict[bytes, bytes] = field(default_factory=dict)
    bound: dict[bytes, bytes] = field(default_factory=dict)

    def executed_text(self, frame: Frame) -> bytes | None:
        """SQL and parameters that this client message makes the server run; None if it runs nothing."""
        if frame.kind == b"Q":
            return frame.payload
        if frame.kind == b"P":
            name, sql, _ = frame.payload.split(b"\0", 2)
            self.parsed[name] = sql
        elif frame.kind == b"B":
            portal, name, rest = frame.payload.split(b"\0", 2)
            self.bound[portal] = self.parsed.get(name, b"") + b"\0" + rest
        elif frame.kind == b"E":
            return self.bound.get(frame.payload.split(b"\0", 1)[0], b"")
        return None
