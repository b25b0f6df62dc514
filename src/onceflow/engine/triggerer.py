"""A triggerer process: runs the triggers of many waiting tasks in one event loop, and tells the database which have fired.

Any number may run beside each other. Each trigger is run by one of them, and by another when that one is gone; whoever fires it deletes its
row in the transaction that makes its task claimable, so it fires once.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import random
import signal
import threading
from contextvars import ContextVar
from functools import reduce
from typing import Any

from onceflow.authoring.deferral import BaseTrigger, TriggerEvent
from onceflow.codec import decode, encode
from onceflow.db import calls, trigger_calls
from onceflow.db.link import Link, Listener
from onceflow.engine.stalls import StallWatch
from onceflow.errors import AuthoringError, SettingsError
from onceflow.settings import Settings

log = logging.getLogger("onceflow.triggerer")
BATCH = 200  # events to a transaction


present_settings: ContextVar[Settings] = ContextVar("onceflow_triggerer_settings")


def find_dsn(database: str | None) -> str:
    """For triggers: the DSN of a registered database, or that in which steps run. Raises SettingsError for one that is not registered."""
    settings = present_settings.get()
    found = dict(settings.databases).get(database) if database is not None else settings.step_dsn or settings.dsn
    if found is None:
        raise SettingsError(f"this triggerer knows no database {database!r}: set ONCEFLOW_DATABASE_{str(database).upper()}")
    return found


class Triggerer:
    """One triggerer. `run()` works until SIGTERM or SIGINT (or `stop()`). `capacity`: how many triggers it runs at once."""

    def __init__(self, settings: Settings, capacity: int = 1000) -> None:
        if settings.dsn is None:
            raise SettingsError("a triggerer needs a database: set ONCEFLOW_DSN, or use --embedded")
        self.settings, self.capacity = settings, capacity
        self._link = Link(settings.dsn, limit=3)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._fired: dict[int, str] = {}  # events that the database has not taken yet
        self._look, self._has_fired = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        await self._link.open()
        await self._register()
        present_settings.set(self.settings)
        work = [loop.create_task(self._beat_for_ever()), loop.create_task(self._fire_for_ever()), loop.create_task(self._stopping.wait())]
        beside = []
        if not self._link.pooled or self.settings.direct_dsn:
            beside.append(loop.create_task(Listener(self.settings.direct_dsn or self._link.dsn, lambda channel, payload: self._look.set()).run()))
        log.info("triggerer ready", extra={"triggerer": self.id, "pid": os.getpid(), "capacity": self.capacity})
        try:
            with StallWatch(loop):
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*work, *beside, *self._running.values()):
                task.cancel()
            await self._end()

    def stop(self) -> None:
        self._stopping.set()

    async def _end(self) -> None:
        """Others take what is left at once."""
        try:
            async with asyncio.timeout(5):
                await self._fire()
                await self._link.call(trigger_calls.end_triggerer(self.id))
        except Exception as error:
            log.warning("could not say goodbye: %s; others take its triggers when its lease is over", error)
        await self._link.close()
        log.info("triggerer ended", extra={"triggerer": self.id})

    async def _register(self) -> None:
        self.id = await self._link.call_again(trigger_calls.register_triggerer(os.uname().nodename, os.getpid(), self.settings.lease_s))

    async def _beat_for_ever(self) -> None:
        """Says that it lives, takes what nobody runs, and lets go what others have by now."""
        longest_s = min(self.settings.poll_s, self.settings.lease_s / 4)
        while True:
            self._look.clear()
            held = list(self._running)
            answer = await self._link.call_again(trigger_calls.beat_triggerer(self.id, held, min(self.capacity - len(held), BATCH)))
            if not answer["is_known"]:
                log.warning("this triggerer was taken for dead; beginning anew")
                await self._register()
                answer = {"taken": [], "kept": []}
            for gone in set(held) - set(answer["kept"]):
                self._drop(gone)
            for row in answer["taken"]:
                task = asyncio.create_task(self._run_trigger(row), name=f"trigger {row['id']} {row['classpath']}")
                self._running[row["id"]] = task
            if len(answer["taken"]) == BATCH:
                continue
            try:
                async with asyncio.timeout(longest_s * (0.75 + random.random() / 4)):
                    await self._look.wait()
            except TimeoutError:
                pass

    def _drop(self, trigger: int) -> None:
        self._fired.pop(trigger, None)
        if (task := self._running.pop(trigger, None)) is not None:
            task.cancel()

    async def _run_trigger(self, row: dict[str, Any]) -> None:
        """Runs one trigger until its first event; whatever goes wrong is an event too."""
        try:
            event = await first_event(make_trigger(row["classpath"], row["kwargs"]))
            text = encode(event.payload, where=f"the event of trigger {row['classpath']}", limit=self.settings.max_value_bytes)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            text = _error_text(row, RuntimeError("it was cancelled by its own code"))
        except Exception as error:
            log.warning("trigger failed", extra={"trigger": row["id"], "class": row["classpath"], "error": type(error).__name__}, exc_info=error)
            text = _error_text(row, error)
        self._fired[row["id"]] = text
        self._has_fired.set()

    async def _fire_for_ever(self) -> None:
        while True:
            await self._has_fired.wait()
            self._has_fired.clear()
            while self._fired:
                await self._fire()

    async def _fire(self) -> None:
        batch = dict(list(self._fired.items())[:BATCH])
        if not batch:
            return
        events = "[" + ", ".join(f"[{number}, {text}]" for number, text in batch.items()) + "]"
        await self._link.call_again(trigger_calls.fire_triggers(self.id, events))
        for number in batch:
            self._fired.pop(number, None)
            self._running.pop(number, None)
        await self._link.call_again(calls.wake_workers())


async def first_event(trigger: BaseTrigger) -> TriggerEvent:
    """The first event of a trigger. Raises AuthoringError when it ends without one, or gives something else."""
    running = trigger.run()
    try:
        async for event in running:
            if not isinstance(event, TriggerEvent):
                raise AuthoringError(f"{type(trigger).__qualname__}.run must yield TriggerEvent(…), not {event!r}")
            return event
    finally:
        if (close := getattr(running, "aclose", None)) is not None:
            await close()
    raise AuthoringError(f"{type(trigger).__qualname__}.run ended without an event")


def make_trigger(classpath: str, kwargs: Any) -> BaseTrigger:
    """The trigger, from its class path (module:Class) and encoded arguments."""
    module, _, name = classpath.partition(":")
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    if not (isinstance(found, type) and issubclass(found, BaseTrigger)):
        raise AuthoringError(f"{classpath} is no BaseTrigger")
    return found(**decode(json.dumps(kwargs)))


def _error_text(row: dict[str, Any], error: Exception) -> str:
    return json.dumps({"$trigger_error": f"trigger {row['classpath']}: {type(error).__name__}: {error}".replace("\0", "")})


def run_triggerer(settings: Settings, capacity: int) -> None:
    """Runs a triggerer until it is told to stop."""
    asyncio.run(Triggerer(settings, capacity).run())
