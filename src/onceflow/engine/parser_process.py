"""One parser process, from its parent's side: started without anything of ours, asked, ended when it does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import IO, Any

log = logging.getLogger("onceflow.parsing")

MOST_BYTES = 32 * 1024 * 1024  # of what one file may say about its dags
START_S = 60.0
GRACE_S = 2.0  # beyond the limit, in which it may say itself where it was
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_refused: set[tuple[str, str]] = set()  # users that may not read a folder


class ParserLost(Exception):
    """The process ended, or had to be ended; says why."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """What all parser processes of one folder have in common. `environment` names variables that dag files may see; `user` is whom root makes them."""

    root: str
    limit_s: float
    memory_mb: int
    network: bool
    environment: tuple[str, ...]
    user: str
    code_version: str | None
    pause_new: bool


@dataclass
class ParserProcess:
    """A living parser process."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limit_s: float
    held: list[str] = field(default_factory=list)
    parsed: int = 0

    @classmethod
    async def start(cls, options: ParseOptions) -> ParserProcess:
        """Starts one, as another user if we are root and that user may read the folder. Raises ParserLost if it does not come up."""
        if (account := _find_account(options.user)) and (options.user, options.root) not in _refused:
            try:
                return await cls._start_as(options, account)
            except ParserLost as error:
                log.info(
                    "dag files are parsed as this user, not as %s (parsing_user), who may read neither all of Python nor the folder: %s", options.user, error
                )
                _refused.add((options.user, options.root))
        return await cls._start_as(options, {})

    @classmethod
    async def _start_as(cls, options: ParseOptions, account: dict[str, Any]) -> ParserProcess:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as said:
            try:
                with theirs:
                    process = _launch(theirs.fileno(), options, account, said)
            except OSError as error:
                ours.close()
                raise ParserLost(f"it cannot be started: {error}") from None
            reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
            one = cls(process, reader, writer, options.limit_s)
            try:
                one._send(
                    {
                        "root": options.root,
                        "limit_s": options.limit_s,
                        "memory_mb": options.memory_mb,
                        "network": options.network,
                        "code_version": options.code_version,
                        "pause_new": options.pause_new,
                    }
                )
                one.held = (await one._receive(START_S))["ready"] + (["account"] if account else [])
            except ParserLost as error:
                said.seek(0)
                raise ParserLost(f"{error}: {said.read()[-2000:].decode(errors='replace')}") from None
            except BaseException:
                one.kill()
                raise
            return one

    async def parse(self, file: str) -> dict[str, Any]:
        """What the process says of a file. Raises ParserLost; it is gone then."""
        self.parsed += 1
        try:
            self._send({"file": file})
            return await self._receive(self.limit_s + GRACE_S)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it and what it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.writer.close()
        self.process.wait()  # the kernel has it already

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.writer.write(struct.pack("!I", len(body)) + body)

    async def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(limit_s):
                (size,) = struct.unpack("!I", await self.reader.readexactly(4))
                if size > MOST_BYTES:
                    raise ParserLost(f"it describes its dags with {size} bytes; {MOST_BYTES} are the most. Move data out of the file")
                found = json.loads(await self.reader.readexactly(size))
        except TimeoutError:
            self.kill()
            raise ParserLost(f"the import took longer than {self.limit_s:g} s (dagbag_import_timeout) and could not be interrupted") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ParserLost(f"the process that imported it ended, {await self._tell_end()}") from None
        except ValueError as error:
            raise ParserLost(f"it wrote into the connection of its parser process: {error}") from None
        if not isinstance(found, dict):
            raise ParserLost("it wrote into the connection of its parser process")
        return found

    async def _tell_end(self) -> str:
        for _ in range(100):
            if (code := self.process.poll()) is not None:
                return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            await asyncio.sleep(0.01)
        self.kill()
        return "and closed its connection"


def _launch(fd: int, options: ParseOptions, account: dict[str, Any], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """A fresh interpreter: neither our memory nor our files nor our environment."""
    environment = {name: os.environ[name] for name in (*PASSED_ON, *options.environment) if name in os.environ}
    environment |= {
        "HOME": tempfile.gettempdir(),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONHASHSEED": "0",  # else the order of a set would make another plan in another process
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-P", "-m", "onceflow.engine.parse_child", str(fd)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, pass_fds=(fd,), start_new_session=True, **account
    )


def _find_account(user: str) -> dict[str, Any]:
    """As whom to start them; {}: as ourselves."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return {}
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []} if found.pw_uid else {}
