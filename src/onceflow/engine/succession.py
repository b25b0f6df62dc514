"""Edited files are served without a restart: a worker process starts its successor, which has the new code, and works off what it has begun.

A successor that cannot import a file which its predecessor could is none: it ends, and the worker goes on with the code before the edit. The
process that was started stays, as the parent of its latest successor, so that whoever started it has one process to watch and to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onceflow.engine.dag_files import Contents, list_files, open_root, time_look
from onceflow.engine.sandbox import die_with_parent
from onceflow.errors import ImportFailed, SettingsError

if TYPE_CHECKING:
    from onceflow.engine.worker import Worker

log = logging.getLogger("onceflow.worker")

VARIABLE = "ONCEFLOW_SUCCEEDS"  # to a successor: the descriptor to tell that it is ready, and the files that are broken anyway
LOOK_S = 0.25
READY_S = 300.0  # a folder of many files takes long to import
STALE_S = 30.0


class NewerCode(BaseException):
    """The task is of newer code than this process has: its successor has it."""


@dataclass
class CodeWatch:
    """The files of a folder as they were when this process imported them. `broken`: those it could not import."""

    root: Path
    broken: list[str] = field(default_factory=list)
    _contents: Contents = field(default_factory=Contents)
    _changed: set[str] = field(default_factory=set)
    _changed_at: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(cls, path: str) -> CodeWatch:
        """To be called before they are imported."""
        watch = cls(open_root(path))
        watch._contents.look(list_files(watch.root).modules)
        return watch

    @property
    def source(self) -> str:
        """A digest of all files: the same source never gives a second plan of a dag."""
        return self._contents.digest_all()

    def note_errors(self, errors: list[ImportFailed]) -> None:
        self.broken = [error.file for error in errors]

    def look(self) -> None:
        """Notes the files whose content has changed since the last look, came or went."""
        with self._lock:
            try:
                changed = self._contents.look(list_files(self.root).modules)
            except SettingsError as error:
                log.error("%s Its code is served as it was.", error)
                return
            if changed:
                self._changed |= changed
                self._changed_at = time.monotonic()

    def take_changes(self) -> set[str]:
        """The files that have changed since this was last asked, whoever has looked meanwhile."""
        self.look()
        with self._lock:
            found, self._changed = self._changed, set()
        return found

    def is_stale(self) -> bool:
        """Have files changed just now, so that a successor must be on its way?"""
        self.look()
        return self._changed_at is not None and time.monotonic() - self._changed_at < STALE_S


class Succession:
    """In the process that was started: watches the files for its worker, and later for its successors."""

    def __init__(self, worker: Worker, watch: CodeWatch) -> None:
        self._worker, self._watch = worker, watch
        self._present: asyncio.subprocess.Process | None = None  # None: the worker of this process
        self._past: list[asyncio.subprocess.Process] = []
        self._is_ending = False

    async def watch_files(self) -> None:
        """Until it is cancelled."""
        coming: asyncio.Task[None] | None = None
        while True:
            changed, rest_s = await asyncio.to_thread(time_look, self._watch.take_changes)
            if changed:
                if coming is not None:
                    coming.cancel()
                    await asyncio.wait([coming])
                coming = asyncio.get_running_loop().create_task(self._succeed(changed))
            await asyncio.sleep(max(LOOK_S, rest_s))

    async def _succeed(self, changed: set[str]) -> None:
        log.info("files have changed; a successor is coming", extra={"files": sorted(changed)[:10]})
        ours, theirs = os.pipe()
        process = None
        try:
            environment = {**os.environ, VARIABLE: json.dumps([theirs, self._watch.broken])}
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "onceflow", *sys.argv[1:], pass_fds=[theirs], env=environment)
            os.close(theirs)
            theirs = -1
            is_ready = await self._await_ready(ours)
        except BaseException:
            if process is not None:
                process.kill()
                await process.wait()
            raise
        finally:
            os.close(ours)
            if theirs >= 0:
                os.close(theirs)
        if not is_ready:
            process.kill() if process.returncode is None else None
            await process.wait()
            log.error("the edit is not served, the code before it is: see the errors above; a further edit is tried again")
            return
        self._hand_over(process)

    async def _await_ready(self, pipe: int) -> bool:
        loop = asyncio.get_running_loop()
        said: asyncio.Future[bytes] = loop.create_future()

        def hear() -> None:
            loop.remove_reader(pipe)
            said.set_result(os.read(pipe, 1))

        loop.add_reader(pipe, hear)
        try:
            async with asyncio.timeout(READY_S):
                return await said != b""
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pipe)

    def _hand_over(self, successor: asyncio.subprocess.Process) -> None:
        before, self._present = self._present, successor
        if before is None:
            self._worker.retire()
            for number in (signal.SIGTERM, signal.SIGINT):  # they were the worker's
                asyncio.get_running_loop().add_signal_handler(number, self._end)
        else:
            self._past.append(before)
            with contextlib.suppress(ProcessLookupError):
                before.send_signal(signal.SIGUSR1)
        if self._is_ending:
            self._end()
        log.info("a successor has the new code", extra={"pid": successor.pid})

    def _end(self) -> None:
        self._is_ending = True
        self._worker.stop()
        for process in (self._present, *self._past):
            if process is not None and process.returncode is None:
                process.terminate()

    async def outlive(self) -> int:
        """Waits for all successors to end; answers the exit code of the latest."""
        code = 0
        while (process := self._present) is not None:
            code = await process.wait()
            if process is self._present:
                break
        for process in self._past:
            await process.wait()
        return code if code >= 0 else 128 - code


class Successor:
    """In a process that is one: tells when it is ready, and obeys its parent."""

    def __init__(self, worker: Worker, pipe: int) -> None:
        self._worker, self._pipe = worker, pipe

    async def run(self) -> None:
        die_with_parent(signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._worker.retire)
        await self._worker.ready.wait()
        os.write(self._pipe, b".")
        os.close(self._pipe)


def read_succession() -> tuple[int, list[str]] | None:
    """Of a successor: where to tell that it is ready, and the files that are broken anyway. Taken out of the environment: it is nobody else's."""
    found = os.environ.pop(VARIABLE, None)
    if found is None:
        return None
    pipe, broken = json.loads(found)
    return int(pipe), list(broken)


async def serve(worker: Worker, watch: CodeWatch | None, pipe: int | None) -> int:
    """Runs a worker, and its successors; answers the exit code."""
    loop = asyncio.get_running_loop()
    if watch is None:
        await worker.run()
        return 0
    if pipe is not None:
        telling = loop.create_task(Successor(worker, pipe).run())
        await worker.run()
        telling.cancel()
        return 0
    succession = Succession(worker, watch)
    watching = loop.create_task(succession.watch_files())
    try:
        await worker.run()
        return await succession.outlive() if worker.is_retired else 0
    finally:
        watching.cancel()
