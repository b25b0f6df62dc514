"""The dag processor: keeps what the database knows of a dags folder true, by parser processes that have no secrets.

A file is parsed when its content, or that of what it read of the folder, is another than when it was last parsed; by whom does not matter, so
a scheduler that starts anew parses nothing again. One scheduler parses a folder, the others stand by.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceflow.db import dag_calls
from onceflow.db.link import Link
from onceflow.engine.dag_files import Contents, Listing, list_files, open_root, time_look
from onceflow.engine.parser_process import ParseOptions, ParserLost, ParserProcess
from onceflow.errors import SettingsError
from onceflow.settings import Settings

log = logging.getLogger("onceflow.parsing")

LEASE_S = 10.0
CLAIM_S = 2.0
IDLE_S = 30.0  # then all parser processes but one end
MOST_PARSED = 500  # by one process; whatever its files leak goes with it
BATCH = 100  # files saved in one transaction
SLOW_S = 5.0  # a broken file that takes longer is not tried again at every change of another


@dataclass(slots=True)
class Known:
    """A file, as the database has it. `change`: the folder's, when it was parsed."""

    sources: dict[str, str]
    is_broken: bool
    parse_s: float = 0.0
    tried_at: float = 0.0
    change: int = 0


def digest_authoring() -> str:
    """Of the code that makes plans of files: another release may make others."""
    files = sorted((Path(__file__).parents[1] / "authoring").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


class FolderLost(Exception):
    """Another scheduler parses the folder now."""


class DagProcessor:
    """Parses one folder, for one scheduler. `run()` works until it is cancelled."""

    def __init__(self, settings: Settings, link: Link) -> None:
        assert settings.dags is not None
        self.root = open_root(settings.dags)
        self.parsed = 0
        self._settings, self._link = settings, link
        self._owner = secrets.randbits(62)
        self._salt = f"{digest_authoring()} {settings.code_version or ''} {settings.max_map_length}"
        self._options = ParseOptions(
            str(self.root),
            settings.dagbag_import_timeout,
            settings.parsing_memory_mb,
            settings.parsing_network == "host",
            settings.parsing_environment,
            settings.parsing_user,
            settings.code_version,
            settings.pause_new_dags,
        )

    async def run(self) -> None:
        """Parses while the folder is ours, and stands by while it is another's."""
        try:
            while True:
                if await self._claim():
                    try:
                        await self._parse_folder()
                    except* FolderLost:
                        log.info("another scheduler parses this folder now", extra={"folder": str(self.root)})
                await asyncio.sleep(CLAIM_S)
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    await self._link.call(dag_calls.leave_folder(str(self.root), self._owner))

    async def _claim(self) -> bool:
        return bool(await self._link.call_again(dag_calls.claim_folder(str(self.root), self._owner, os.uname().nodename, os.getpid(), LEASE_S)))

    async def _parse_folder(self) -> None:
        found = await self._link.call_again(dag_calls.list_dag_files(str(self.root)))
        self._known = {name: Known(file["sources"], file["is_broken"]) for name, file in found.items()}
        self._contents = Contents()
        self._change, self._changed_at = 1, dict[str, int]()
        self._missed: set[str] = set()
        self._queue: dict[str, None] = {}  # in order, none twice
        self._busy: set[str] = set()
        self._answers: list[dict[str, Any]] = []
        self._gone: set[str] = set()
        self._work, self._news = asyncio.Condition(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._save_for_ever())
            for number in range(self._settings.parsing_processes):
                group.create_task(self._parse_for_ever(is_spare=number > 0))

    async def _watch(self) -> None:
        """Looks at the folder, again and again, as often as is set, or as it costs little."""
        claimed = time.monotonic()
        while True:
            started = time.monotonic()
            if started - claimed > CLAIM_S:
                if not await self._claim():
                    raise FolderLost
                claimed = started
            try:
                (listing, changed), rest_s = await asyncio.to_thread(time_look, self._look)
            except SettingsError as error:
                log.error("%s Its dags stay as they are.", error)
                rest_s = CLAIM_S
            else:
                await self._note(listing, changed)
            await asyncio.sleep(max(self._settings.dag_dir_list_interval, rest_s))

    def _look(self) -> tuple[Listing, set[str]]:
        listing = list_files(self.root)
        return listing, self._contents.look(listing.modules)

    async def _note(self, listing: Listing, changed: set[str]) -> None:
        missing = (self._known.keys() | self._busy | self._queue.keys()) - listing.dags.keys()
        gone, self._missed = missing & self._missed, missing  # twice in a row: some editors take a file away for a moment
        if changed or gone:
            self._change += 1
            self._changed_at.update(dict.fromkeys(changed, self._change))
        for file in gone:
            self._known.pop(file, None)
            self._queue.pop(file, None)
            self._gone.add(file)
            self._news.set()
        due = [file for file in listing.dags if file not in self._busy and file not in self._queue and self._is_due(file)]
        if due:
            async with self._work:
                self._queue.update(dict.fromkeys(due))
                self._work.notify_all()

    def _is_due(self, file: str) -> bool:
        known = self._known.get(file)
        if known is None or known.sources.get("") != self._salt or any(self._contents.digest(path) != digest for path, digest in known.sources.items() if path):
            return True
        if not known.is_broken:
            return False
        if known.change < self._change and known.parse_s < SLOW_S:
            return True  # what it lacked may have come
        return time.monotonic() - known.tried_at > max(self._settings.min_file_process_interval, 10 * known.parse_s)

    async def _parse_for_ever(self, is_spare: bool) -> None:
        process: ParserProcess | None = None
        try:
            while True:
                file = await self._take(IDLE_S if is_spare and process is not None else None)
                if file is None:
                    assert process is not None
                    process.kill()
                    process = None
                    continue
                change = self._change
                try:
                    process, answer = await self._parse(process, file)
                finally:
                    self._busy.discard(file)
                await self._accept(file, answer, change)
        finally:
            if process is not None:
                process.kill()

    async def _take(self, wait_s: float | None) -> str | None:
        """The next file; None: none has come."""
        try:
            async with asyncio.timeout(wait_s), self._work:
                await self._work.wait_for(lambda: self._queue)
                file = next(iter(self._queue))
                del self._queue[file]
                self._busy.add(file)
                return file
        except TimeoutError:
            return None

    async def _parse(self, process: ParserProcess | None, file: str) -> tuple[ParserProcess | None, dict[str, Any]]:
        """What is wrong with a file counts only if a process that has read no other says so too: one file must not harm another."""
        while True:
            is_fresh = process is None
            if process is None:
                process = await self._start()
            try:
                answer = await process.parse(file)
            except ParserLost as lost:
                answer = {"dags": [], "warnings": [], "sources": [file], "parse_s": 0.0, "error": f"{file}: {lost}", "is_spent": True, "is_final": False}
            if answer["is_spent"] or process.parsed >= MOST_PARSED or (answer["error"] and not is_fresh):
                process.kill()
                process = None
            if is_fresh or not answer["error"] or answer["is_final"]:
                return process, answer

    async def _start(self) -> ParserProcess:
        while True:
            try:
                process = await ParserProcess.start(self._options)
            except ParserLost as error:
                log.error("no parser process comes up (%s); trying again", error)
                await asyncio.sleep(5)
            else:
                log.debug("parser process started", extra={"pid": process.process.pid, "isolation": process.held})
                self._tell_isolation(process)
                return process

    def _tell_isolation(self, process: ParserProcess) -> None:
        if not getattr(self, "_told", False):
            self._told = True
            log.info("dag files are parsed in processes of their own", extra={"folder": str(self.root), "isolation": process.held or ["environment only"]})

    async def _accept(self, file: str, answer: dict[str, Any], change: int) -> None:
        self.parsed += 1
        if any(self._changed_at.get(path, 0) > change for path in answer["sources"]):
            async with self._work:  # edited while it was read: who knows which of both was read
                self._queue[file] = None
                self._work.notify()
            return
        sources = {"": self._salt} | {path: self._contents.digest(path) for path in answer["sources"]}
        self._known[file] = Known(sources, bool(answer["error"]), answer["parse_s"], time.monotonic(), change)
        source = "".join(f"{Path(path).name}={digest} " for path, digest in sources.items())
        for row in answer["dags"]:
            row["source"], row["max_map_length"] = source, self._settings.max_map_length
        self._answers.append({"filename": file, "sources": sources, **{name: answer[name] for name in ("dags", "error", "warnings", "parse_s")}})
        self._news.set()
        if answer["error"]:
            log.warning("a dag file cannot be imported: %s", answer["error"].split("\n")[0])

    async def _save_for_ever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._answers or self._gone:
                batch, self._answers = self._answers[:BATCH], self._answers[BATCH:]
                gone, self._gone = self._gone, set()
                broken = await self._link.call_again(dag_calls.save_dag_files(str(self.root), self._owner, json.dumps(batch), sorted(gone)))
                if broken is None:
                    raise FolderLost
                for file in broken:
                    if file in self._known:
                        self._known[file].is_broken = True
