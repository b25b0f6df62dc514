"""A worker process: claims tasks, runs them, sends its heartbeat, ticks, drains. Start more to scale."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onceflow.authoring.context import worker_process
from onceflow.db import calls
from onceflow.db.link import Link, Listener, is_pooled
from onceflow.engine.batcher import Batcher
from onceflow.engine.branches import ENDLESS
from onceflow.engine.callbacks import run_callbacks
from onceflow.engine.claimed import Claimed
from onceflow.engine.foreign_waits import watch_timeouts
from onceflow.engine.group import GroupCommitter
from onceflow.engine.heartbeat import Heartbeat
from onceflow.engine.loader import describe_dags
from onceflow.engine.place import make_task, refuse_in_body
from onceflow.engine.run_task import run_task
from onceflow.engine.services import Services
from onceflow.engine.sql_forms import SqlGroups
from onceflow.engine.stored_values import open_store
from onceflow.engine.succession import CodeWatch, NewerCode, serve
from onceflow.engine.waits import WaitKeeper
from onceflow.errors import SettingsError
from onceflow.settings import Settings

log = logging.getLogger("onceflow.worker")
STEP_THREADS = "onceflow-step"
MAX_SHARING = 3  # times the concurrency: how many tasks may wait for shared commits while others run


class Worker:
    """One worker. `run()` works until SIGTERM or SIGINT (or `stop()`), then drains: running tasks may end within drain_s,
    the rest is unclaimed without burning a try. `is_test`: it lives for one test, in a thread, beside whoever works on that database.

    Connections, at most: 4 of the engine, 1 heartbeat, 1 LISTEN, and per kind of step connection up to `concurrency`.
    """

    def __init__(self, settings: Settings, *, is_test: bool = False, watch: CodeWatch | None = None) -> None:
        if settings.dsn is None:
            raise SettingsError("a worker needs a database: set ONCEFLOW_DSN, or use --embedded")
        self.settings = settings
        self.id = (int(time.time() * 1000) << 20) | secrets.randbelow(1 << 20)
        self._dsn = settings.dsn
        self._is_test = is_test
        self._watch = watch
        self._held: dict[int, Claimed] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._slots: dict[int, Claimed] = {}  # the tasks that count against the concurrency
        self._sharing: dict[int, Claimed] = {}  # those that only wait for a commit with others
        self._queued: deque[Claimed] = deque()  # claimed ahead: short tasks are fetched in batches
        self._mean_s = 1.0  # smoothed duration of a task
        self._lock = threading.Lock()  # the heartbeat thread reads what the loop changes
        self._claim = 0
        self._seen_claim = 0
        self._lanes: list[int] = []
        self._stopping = False
        self.is_retired = False
        self.ready = asyncio.Event()
        self._wake, self._has_news, self._stopped, self._hurry = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_task_factory(make_task)
        watch_timeouts(refuse_in_body)
        link = Link(self._dsn, patience_ms=200)  # calls that wait for one run must not take the connections from all others
        await link.open()
        self.services = self._make_services(link, await is_pooled(self.settings.step_dsn) if self.settings.step_dsn else link.pooled)
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody listen to signals
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        await self._register()  # from here on others see this worker, and may tell it to stop
        self._heartbeat = heartbeat = Heartbeat(self._dsn, min(self.settings.lease_s / 4, 3.0), self._beat, self._hear_later)
        heartbeat.start()
        telling = loop.create_task(self._tell_for_ever())
        beside = [loop.create_task(self._tick_for_ever()), loop.create_task(run_callbacks(self.services))]
        if not link.pooled or self.settings.direct_dsn:
            beside.append(loop.create_task(Listener(self.settings.direct_dsn or self._dsn, self._listen).run()))
        log.info("worker ready", extra={"worker": self.id, "pid": os.getpid(), "lanes": len(self._lanes), "pooled": link.pooled})
        self.ready.set()
        try:
            await self._until_stopped(self._claim_for_ever())
        finally:
            for task in beside:
                task.cancel()
            await self._drain()
            telling.cancel()
            await asyncio.wait([telling])
            heartbeat.stop()
            await self.services.close()
            log.info("worker ended", extra={"worker": self.id})

    def stop(self) -> None:
        """Begins to drain."""
        log.info("worker draining", extra={"worker": self.id, "held": len(self._held)})
        self._hurry.set()
        self._begin_to_drain()

    def retire(self) -> None:
        """A successor claims from now on: what has begun here may take its time, what has not goes back."""
        log.info("worker retiring", extra={"worker": self.id, "held": len(self._held)})
        self.is_retired = True
        with self._lock:
            for claimed in self._queued:
                del self._held[claimed.ti]
        self._queued.clear()
        self._heartbeat.beat_now()
        self._begin_to_drain()

    def _begin_to_drain(self) -> None:
        self._stopping = True
        self._stopped.set()
        self._wake.set()

    def _make_services(self, link: Link, steps_pooled: bool) -> Services:
        threads = ThreadPoolExecutor(max_workers=max(64, 2 * self.settings.concurrency), thread_name_prefix=STEP_THREADS)
        return Services(
            settings=self.settings,
            worker=self.id,
            link=link,
            batcher=Batcher(link, self.settings.group_max),
            groups=GroupCommitter(self.settings.group_max),
            sql_groups=SqlGroups(self.settings.group_max),
            waits=WaitKeeper(link.call_again),
            step_dsn=self.settings.step_dsn or self._dsn,
            steps_pooled=steps_pooled,
            threads=threads,
            store=open_store(self.settings),
            wake_soon=self._wake_soon,
            slots_changed=self._change_slots,
            is_stale=self._watch.is_stale if self._watch is not None else lambda: False,
        )

    async def _register(self) -> None:
        source = self._watch.source if self._watch is not None else None
        rows = describe_dags(self.settings.code_version, self.settings.pause_new_dags)
        dags = json.dumps([{**row, "source": source, "max_map_length": self.settings.max_map_length} for row in rows])
        queues = list(self.settings.queues)
        call = calls.register_worker(self.id, os.uname().nodename, os.getpid(), queues, self.settings.lease_s, dags, self._is_test, _find_user())
        answer = await self._until_stopped(self.services.call_again(call))
        self._lanes = answer["lanes"] if answer is not None else []

    async def _until_stopped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Its result. What hangs because the database is away must not keep the worker from draining: then None."""
        working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([working], timeout=1)
        stopped.cancel()
        if working.done():
            return working.result()
        working.cancel()  # what a claim took is given back at the end of the drain
        return None

    async def _claim_for_ever(self) -> None:
        is_backlog = False
        while not self._stopping:
            self._start_queued()
            # Short tasks are claimed one load ahead, in batches of at least half a load while there is a backlog.
            ahead = self.settings.concurrency if is_backlog and self._mean_s < 0.1 else 0
            free = self._free_slots() + ahead - len(self._queued)
            got = 0
            if free >= (1 if not ahead else max(1, self.settings.concurrency // 2)):
                got = await self._claim_tasks(limit := min(free, 50))
                is_backlog = got == limit
                if is_backlog:
                    self._wake_soon()  # there may be more than we can take
            if not got:
                await self._pause()

    def _free_slots(self) -> int:
        return self.settings.concurrency - len(self._slots) - max(0, len(self._sharing) - MAX_SHARING * self.settings.concurrency)

    def _count_slots(self, claimed: Claimed) -> None:
        is_running = self._held.get(claimed.ti) is claimed
        for counted, counts in ((self._slots, not claimed.is_idle and not claimed.shares_commit), (self._sharing, claimed.shares_commit)):
            if is_running and counts:
                counted[claimed.ti] = claimed
            elif counted.get(claimed.ti) is claimed:
                del counted[claimed.ti]

    def _change_slots(self, claimed: Claimed) -> None:
        self._count_slots(claimed)
        self._start_queued()
        if not self._queued:
            self._wake.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self.settings.poll_s * (0.75 + random.random() / 2)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _claim_tasks(self, limit: int) -> int:
        self._wake.clear()
        with self._lock:
            self._claim += 1
        number = self._claim
        again = False
        while True:
            try:
                answer = await self.services.link.call(calls.claim_tasks(self.id, number, self._lanes, limit, again))
                break
            except Exception as error:
                log.warning("claim not answered (%s); asking again", error)
                if self._stopping:
                    return 0
                again = True
                await asyncio.sleep(0.05 + random.random() * 0.2)
        with self._lock:
            for item in answer:
                claimed = Claimed.from_json(item)
                self._held[claimed.ti] = claimed
                self._queued.append(claimed)
            self._seen_claim = number
        self._start_queued()
        return len(answer)

    def _start_queued(self) -> None:
        free = self._free_slots()
        while self._queued and free > 0 and not self._stopping:
            self._start(self._queued.popleft())
            free -= 1

    def _start(self, claimed: Claimed) -> None:
        started = time.monotonic()
        task = asyncio.get_running_loop().create_task(run_task(self.services, claimed), name=str(claimed))
        self._tasks[claimed.ti] = task
        self._count_slots(claimed)
        task.add_done_callback(lambda t: self._ended(claimed, t, started))

    def _ended(self, claimed: Claimed, task: asyncio.Task[None], started: float) -> None:
        self._mean_s += 0.1 * (time.monotonic() - started - self._mean_s)
        with self._lock:
            if self._held.get(claimed.ti) is claimed:
                del self._held[claimed.ti]
                self._tasks.pop(claimed.ti, None)
        self._count_slots(claimed)
        if not task.cancelled() and isinstance(error := task.exception(), NewerCode):
            log.info("task given back: %s", error)
        elif not task.cancelled() and error is not None:
            # Not the user's code: the engine could not record an outcome. The next heartbeat unclaims the lease.
            log.error("task left unfinished", extra={"task": str(claimed)}, exc_info=error)
        self._start_queued()
        self.services.waits.poke()
        self._wake.set()

    def _beat(self) -> calls.Call:
        with self._lock:
            return calls.heartbeat(self.id, list(self._held), [c.token for c in self._held.values()], self._seen_claim)

    def _hear_later(self, answer: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._heard, answer)

    def _heard(self, answer: dict[str, Any]) -> None:
        revoked = set(answer["revoked"])
        self._lanes = answer["lanes"]  # a plan of a dag may have brought new ones
        # A token that is just being replaced (resolve_commit) is not revoked. Nor is a lease lost that goes with the task's own end: the reply is on its way.
        self._let_go([c for c in self._held.values() if c.token in revoked and not c.resolving.locked() and not c.is_ending])

    def _listen(self, channel: str, payload: str) -> None:
        if channel == "onceflow_revoked":
            # Anybody may notify: only what the heartbeat's answer says counts.
            if any(str(c.run) == payload for c in self._held.values()):
                self._heartbeat.beat_now()
        else:
            self._tick_now.set()
        self._wake.set()

    def _let_go(self, gone: list[Claimed]) -> None:
        """Stops work on tasks that are no longer ours."""
        for claimed in gone:
            log.warning("LeaseLost: %s: rescued, or cancelled; what it had not committed is rolled back", claimed, extra={"task": str(claimed)})
            if claimed in self._queued:  # first: what runs of that task may be its pass before, whose reply is late
                self._queued.remove(claimed)
                with self._lock:
                    del self._held[claimed.ti]
            elif (task := self._tasks.get(claimed.ti)) is not None:
                task.cancel()

    async def _tick_for_ever(self) -> None:
        self._tick_now = asyncio.Event()
        while True:
            try:
                answer = await self.services.call_again(calls.run_tick(500, self.settings.max_rescues))
            except Exception as error:
                log.error("tick failed: %s; trying again", error)  # whatever it was: without ticks no timer fires and nobody is rescued
                await asyncio.sleep(self.settings.poll_s)
                continue
            self.services.waits.poke()
            self.services.tracks = answer["tracks"]
            if answer["readied"] or answer["rescued"]:
                self._wake.set()
                self._wake_soon()
            wait_s = self.settings.poll_s * (0.75 + random.random() / 2)
            if answer["next_s"] is not None:
                wait_s = min(wait_s, max(answer["next_s"], 0.001))
            try:
                async with asyncio.timeout(wait_s):
                    await self._tick_now.wait()
            except TimeoutError:
                pass
            self._tick_now.clear()

    def _wake_soon(self) -> None:
        """Wakes this worker now and others soon."""
        self._wake.set()
        self._has_news.set()

    async def _tell_for_ever(self) -> None:
        """Wakes others, at most 20 times a second; news that come meanwhile are put off, never left out."""
        while True:
            await self._has_news.wait()
            await asyncio.sleep(0.001)  # what comes together is told together
            self._has_news.clear()
            try:
                await self.services.link.call(calls.wake_workers())
            except Exception as error:
                log.debug("wake not sent: %s", error)  # polling is the guarantee
            await asyncio.sleep(0.05)

    async def _drain(self) -> None:
        if self.is_retired:
            await self._until_quiet(self._hurry, None)
        await self._until_quiet(None, self.settings.drain_s)
        rest = list(self._tasks.values())
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=5)
        try:
            async with asyncio.timeout(5):
                await self.services.link.call(calls.end_worker(self.id))
        except Exception as error:
            log.warning("could not say goodbye: %s; the tasks will be rescued", error)

    async def _until_quiet(self, hurry: asyncio.Event | None, timeout_s: float | None) -> None:
        """Until every task has ended or is a body that only waits; one that begins to wait meanwhile counts too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._is_busy() and not (hurry and hurry.is_set()):
                    self._wake.clear()  # set by whatever ends, begins to wait or hurries
                    await self._wake.wait()

    def _is_busy(self) -> bool:
        return any(not task.done() and (not (c := self._held.get(ti)) or not c.is_idle) for ti, task in self._tasks.items())


def _find_user() -> str | None:
    """Whose process this is; a container's number may have no name."""
    with contextlib.suppress(KeyError, OSError, ImportError):
        return getpass.getuser()
    return None


def run_worker(settings: Settings, watch: CodeWatch | None = None, pipe: int | None = None) -> None:
    """Runs a worker until it is told to stop; uses uvloop where it is installed. `watch`: edits of these files bring successors; `pipe`: it is one.

    A `def` step that did not end within the drain cannot be ended: its task is given back, and the process leaves with it.
    """
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with worker_process(), runner:
        code = runner.run(serve(Worker(settings, watch=watch), watch, pipe))
        if ENDLESS:
            log.warning("%d bodies catch every error and never end; what they do is not recorded", len(ENDLESS))
            logging.shutdown()
            os._exit(code)  # the runner would wait for them
    left = [thread for thread in threading.enumerate() if thread.name.startswith(STEP_THREADS)]
    deadline = time.monotonic() + 1
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        log.warning("steps still run in threads; what they do from here on is not recorded, their tasks were given back")
        logging.shutdown()
        os._exit(code)  # the interpreter would wait for them
    if code:
        raise SystemExit(code)
