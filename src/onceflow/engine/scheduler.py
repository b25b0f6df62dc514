"""A scheduler process: keeps the dags of its folder known (see parsing), makes their runs when these are due, and drives what else time drives; claims nothing.

Any number may run beside each other and beside workers, which tick too: every tick is one SQL call that takes what others have not locked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import time
from typing import Any

from onceflow.db import calls
from onceflow.db.link import Link
from onceflow.engine.due_runs import Made, make_due_runs
from onceflow.engine.parsing import DagProcessor
from onceflow.errors import SettingsError
from onceflow.settings import Settings

log = logging.getLogger("onceflow.scheduler")


class Scheduler:
    """One scheduler. `run()` works until SIGTERM or SIGINT (or `stop()`). Holds three connections at most.

    `backfill_only`: it makes no runs from schedules; those that wait, backfills' too, begin all the same.
    """

    def __init__(self, settings: Settings, backfill_only: bool = False) -> None:
        if settings.dsn is None:
            raise SettingsError("a scheduler needs a database: set ONCEFLOW_DSN, or use --embedded")
        self.settings, self.backfill_only = settings, backfill_only
        self.id = (int(time.time() * 1000) << 20) | secrets.randbelow(1 << 20)
        self._link = Link(settings.dsn, limit=3)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self._link.open()
        work = loop.create_task(self._work())
        stopping = loop.create_task(self._stopping.wait())
        parsing = loop.create_task(self._parse()) if self.settings.dags is not None else None
        try:
            await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # raises: the database refused a call, and would again
        finally:
            ending = [task for task in (work, parsing) if task is not None]
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
            await self._link.close()
            log.info("scheduler ended", extra={"pid": os.getpid()})

    def stop(self) -> None:
        self._stopping.set()

    async def _work(self) -> None:
        log.info("scheduler ready", extra={"scheduler": self.id, "pid": os.getpid(), "pooled": self._link.pooled})
        while True:
            made = await self._make_due_runs()
            # Due timers, wake-ups, runs that may begin, rescues, partitions and seals: all of it is run_tick's.
            answer = await self._link.call_again(calls.run_tick(500, self.settings.max_rescues))
            if answer["readied"] or answer["rescued"]:
                log.debug("ticked", extra={"readied": answer["readied"], "rescued": answer["rescued"]})
                await self._link.call_again(calls.wake_workers())
            wait_s = self.settings.poll_s * (0.75 + random.random() / 2)
            await asyncio.sleep(min([wait_s, *(max(s, 0.001) for s in (answer["next_s"], made.next_s) if s is not None)]))

    async def _parse(self) -> None:
        """Keeps what is known of the dag files true. Whatever goes wrong with that, time goes on."""
        while True:
            try:
                await DagProcessor(self.settings, self._link).run()
            except Exception as error:
                log.error("parsing of dag files failed: %s; beginning anew", error, exc_info=error)
                await asyncio.sleep(self.settings.poll_s)

    async def _make_due_runs(self) -> Made:
        """What one batch of dags has due. Whatever goes wrong with it, timers fire and runs begin: it is tried again with the next tick."""
        if self.backfill_only:
            return Made(0, None)
        try:
            request = make_due_runs(self.id)
            answer: Any = None
            while True:
                answer = await self._link.call_again(request.send(answer))
        except StopIteration as end:
            made: Made = end.value
            if made.runs:
                log.info("runs made", extra={"runs": made.runs})
            return made
        except Exception as error:
            log.error("no runs were made from schedules: %s; trying again", error)
            return Made(0, None)


def run_scheduler(settings: Settings, backfill_only: bool = False) -> None:
    """Runs a scheduler until it is told to stop."""
    asyncio.run(Scheduler(settings, backfill_only).run())
