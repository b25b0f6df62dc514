"""One claimed task while it runs: its steps, its replay, its waits, and whether it still is ours."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import json
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from onceflow.authoring import registry
from onceflow.authoring.signature import unbind
from onceflow.authoring.step import Step
from onceflow.codec import decode, decode_error, encode, encode_error, inputs_hash
from onceflow.db import calls
from onceflow.engine.branches import Branches
from onceflow.engine.causes import mark_cause
from onceflow.engine.claimed import Claimed
from onceflow.engine.foreign_waits import refuse_unrecorded_waits
from onceflow.engine.forms import Forms
from onceflow.engine.history import History, Outcome, Tries
from onceflow.engine.place import Place, park
from onceflow.engine.record import Record
from onceflow.engine.run_step import elapsed_us
from onceflow.engine.run_try import run_try
from onceflow.engine.scopes import Scope
from onceflow.engine.services import Committed, Services
from onceflow.engine.started import StartedTask
from onceflow.engine.user_code import tamed
from onceflow.engine.waits import Suspended, Wait
from onceflow.errors import EncodingError, LeaseLost, NonDeterminismError

log = logging.getLogger("onceflow.task")
MANY_REFUSALS = 100  # calls of a body that is over; then it gets no answer any more

# Values a step cannot change under its caller: they need no copy.
_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, Decimal, UUID, datetime.date, datetime.datetime, datetime.time, datetime.timedelta})


class TaskRun:
    """`fatal` once set (lease lost, non-determinism) is raised by every further call of the body, whatever it caught."""

    def __init__(self, services: Services, claimed: Claimed, history: History) -> None:
        self.services = services
        self.claimed = claimed
        self.history = history
        self.loop = asyncio.get_running_loop()
        self.fatal: BaseException | None = None
        self.is_suspended = False
        self.suspended_on: list[dict[str, Any]] = []
        self.branches = Branches(self.consider_suspending)
        self.forms = Forms(self)
        self.context: dict[str, Any] | None = None  # of a dag's task
        self.seen: set[str] = set()  # keys taken by the body so far
        self._waits: set[Wait] = set()
        self._cut: set[asyncio.Task[Any] | None] = set()  # strands cancelled while a record of theirs was being written
        self._refusals = 0

    async def run_step(self, place: Place, step: Step[..., Any], key: str, values: dict[str, Any]) -> Any:
        """The step's result: replayed from the ledger, or run, with its retries, until its outcome is recorded."""
        self.check_alive()
        inputs, digest = await self._encode_inputs(key, step, values)
        key = self._settle_key(place, key, digest)
        known = self._find(place, key, step.name, inputs, digest)
        if known is not None:
            return known.value()
        if not all(type(v) in _IMMUTABLE for v in values.values()):
            values = decode(inputs)
        args, kwargs = unbind(step.signature, values)
        tries = self.history.tries.get(key, Tries())
        if tries.retry_at is not None:
            await self._wait_for_retry(place, tries.retry_at, 0.0)
        record, failures = Record(self.claimed, key, step.name, step.kind, inputs, digest, tries.try_number + 1), tries.failures
        while True:
            self._leave_if_cut(asyncio.current_task())
            started = time.perf_counter()
            try:
                output = await run_try(self.services, record, step, args, kwargs, self._place_inside(place, step, record))
                self.remember(place, record, output)
                return decode(output)
            except asyncio.CancelledError:
                return decode(await self._find_committed(place, record))
            except Exception as error:  # a LeaseLost too: if it is true, and not the user's own, the failure cannot be recorded
                if self.fatal is not None:
                    raise self.fatal from None
                again = failures < step.retry.retries and step.retry.is_worth_it(error)
                retry_at, delay_s = await self._record_failure(record, step, error, again, elapsed_us(started))
                if isinstance(retry_at, Committed):
                    return decode(retry_at)  # a thread past its time limit had committed after all
                if not again:
                    if place.mode != "body":
                        self.history.add(record, "failed", encode_error(error))
                    _raise_recorded(error, key)
                failures += 1
                record.try_number += 1
                if retry_at is not None and delay_s > 0:
                    await self._wait_for_retry(place, retry_at, delay_s)

    def _place_inside(self, place: Place, step: Step[..., Any], record: Record) -> Place:
        mode: Any = "external" if step.kind == "external" else "transaction"
        return Place(self, Scope(f"{record.key}/", place.scope.seen), mode, step.is_async, record.key, record.try_number)

    async def _find_committed(self, place: Place, record: Record) -> str:
        """The output of a step whose strand was cancelled while its commit was on its way: what has happened must not be lost for the body.

        Raises CancelledError where it has not happened; then it cannot any more.
        """
        if self.is_over or not record.is_asked:
            raise asyncio.CancelledError
        recorded = await self._end_uncut(self.services.resolve(record, record.claimed.token))
        if recorded is None or recorded.state != "success":
            raise asyncio.CancelledError
        self._cut.add(asyncio.current_task())
        self.remember(place, record, recorded.output)
        return str(recorded.output)

    async def _record_failure(self, record: Record, step: Step[..., Any], error: Exception, again: bool, us: int) -> tuple[str | None, float]:
        text = encode_error(error)
        delay_s = step.retry.delay_s(record.try_number)
        retry_at = await self.write(record, lambda: record.fail(text, again, delay_s, us))
        log.warning("step failed", exc_info=error, extra={"task": str(self.claimed), "step": record.key, "try": record.try_number, "again": again})
        return retry_at, delay_s

    async def _wait_for_retry(self, place: Place, moment: str, delay_s: float) -> None:
        """A body waits durably. A step inside a running step cannot be suspended: it waits in memory."""
        if place.mode == "body":
            await self.wait_until(moment, delay_s)
        else:
            await asyncio.sleep(delay_s)

    async def _encode_inputs(self, key: str, step: Step[..., Any], values: dict[str, Any]) -> tuple[str, str]:
        try:
            inputs = encode(values, where=step.name, limit=self.services.settings.max_value_bytes)
        except EncodingError as error:
            # The arguments cannot be kept, but that the step failed for them can.
            if key not in self.history.outcomes:
                record = Record(self.claimed, key, step.name, step.kind, "null", inputs_hash("null"))
                text = encode_error(error)
                await self.write(record, lambda: record.fail(text, False, 0, 0))
            raise mark_cause(error, key) from None
        return inputs, inputs_hash(inputs)

    def _find(self, place: Place, key: str, name: str, inputs: str, digest: str) -> Outcome | None:
        try:
            return self.history.find(place.scope if place.mode == "body" else None, key, name, inputs, digest)
        except NonDeterminismError as error:
            self.end(error)
            raise

    def find_recorded(self, place: Place, key: str, name: str, values: dict[str, Any]) -> Outcome | None:
        """The recorded outcome of an engine form, or None; its inputs must match."""
        self.check_alive()
        inputs = encode(values, where=name)
        return self._find(place, key, name, inputs, inputs_hash(inputs))

    def settle_key(self, place: Place, key: str, name: str, values: dict[str, Any]) -> str:
        """The key under which this call of a form is recorded, or will be."""
        return self._settle_key(place, key, inputs_hash(encode(values, where=name))) if place.mode == "external" else key

    def _settle_key(self, place: Place, key: str, digest: str) -> str:
        return self.history.key_inside(key, place.try_number, digest) if place.mode == "external" else key

    def remember(self, place: Place, record: Record, output: str) -> None:
        """Inside an external step: its next try, or another pass of this one, asks for it again."""
        if place.mode != "body":
            self.history.add(record, "success", output)

    def form_record(self, key: str, name: str, values: dict[str, Any]) -> Record:
        inputs = encode(values, where=name, limit=self.services.settings.max_value_bytes)
        return Record(self.claimed, key, name, "engine", inputs, inputs_hash(inputs))

    async def record_value(self, place: Place, key: str, name: str, values: dict[str, Any], value: Any) -> Any:
        """Records what a form decided, before anybody acts on it; answers it as a replay would."""
        self.check_alive()
        record = self.form_record(key, name, values)
        output = encode(value, where=name, limit=self.services.settings.max_value_bytes)
        recorded = await self.write(record, lambda: record.complete(output, 0))
        return decode(output if recorded is None else recorded)

    async def write(self, record: Record, make: Any) -> Any:
        """A call that writes for this task; a lost lease ends the body.

        It ends even when its strand is cancelled meanwhile, and answers: what it took (a message) must not be lost. The strand
        is cancelled again at its next call then, or where it waits for something else.
        """
        return await self._end_uncut(self.services.record(record, make))

    async def _end_uncut(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The call's answer, though the strand be cancelled meanwhile."""
        work, is_cut = self.loop.create_task(call, context=contextvars.Context()), False
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                is_cut = True
        if is_cut:
            self._cut.add(asyncio.current_task())
        try:
            return work.result()
        except LeaseLost as error:
            raise self.lose(error) from None

    async def start_step(self, place: Place, step: Step[..., Any], key: str, values: dict[str, Any]) -> StartedTask:
        self.check_alive()
        inputs, digest = await self._encode_inputs(key, step, values)
        key = self._settle_key(place, key, digest)
        known = self._find(place, key, step.name, inputs, digest)
        if known is not None:
            answer = decode(known.output)
        else:
            record = Record(self.claimed, key, step.name, "engine", inputs, digest)
            answer = _parsed(
                await self.write(
                    record, lambda: calls.start_task(*self.claimed.owner, key, step.name, step.reference, inputs, digest, step.retry.retries, None)
                )
            )
            self.remember(place, record, encode(answer))
            self.services.wake_soon()
        # A forked run has taken over tasks of the run it comes from.
        return StartedTask(step.name, "task", int(answer.get("run", self.claimed.run)), answer["task"])

    async def wait_until(self, moment: str, about_s: float | None = None) -> None:
        await self.wait_any([("time", 0, moment)], about_s)

    async def wait_any(self, targets: list[tuple[str, int, str]], about_s: float | None = None) -> None:
        """A durable wait until one of the targets (kind, run, target) is there. Raises Suspended when the body leaves memory."""
        self.check_alive()
        self._leave_if_cut(asyncio.current_task())
        waits = [Wait(self.claimed.run, *target) for target in targets]
        self._waits.update(waits)
        for wait in waits:
            self.services.waits.add(wait, about_s)
        strand = self.branches.enter_wait()
        try:
            await asyncio.wait([w.future for w in waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                self._waits.discard(wait)
                self.services.waits.discard(wait)
            self.branches.leave_wait(strand)
        self.check_alive()
        for wait in waits:
            if wait.future.done():
                wait.future.result()  # raises where the wait could not be asked

    async def is_past(self, moment: str) -> bool:
        """Whether a moment is over, by the one clock."""
        wait = {"run": self.claimed.run, "kind": "time", "target_run": 0, "target": moment}
        return bool((await self.services.call_again(calls.check_waits(json.dumps([wait]))))[0])

    def bind_body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments for a fresh run of this workflow."""
        return registry.find_workflow(self.claimed.dag_id).bind(args, kwargs)

    @property
    def is_over(self) -> bool:
        """Is it lost, stopped or suspended, so that its code is told Suspended, or worse?"""
        return self.fatal is not None or self.is_suspended

    def tame(self, error: BaseException, what: str) -> BaseException:
        """An ordinary error for a Suspended that is none of ours: the user's code raised it, or kept it from another run."""
        return tamed(error, what) if isinstance(error, Suspended) and not self.is_over else error

    def check_alive(self) -> None:
        if not self.is_over:
            return
        self._refusals += 1
        raise self.fatal or Suspended()

    @property
    def is_ignored(self) -> bool:
        """Does the body go on calling, whatever it is told?"""
        return self._refusals > MANY_REFUSALS

    def check_strand(self, strand: asyncio.Task[Any] | None) -> None:
        """Before a call of the body's: refuses what no replay could repeat, and ends a strand that was cancelled while it wrote."""
        self.refuse(refuse_unrecorded_waits)
        self._leave_if_cut(strand)

    def _leave_if_cut(self, strand: asyncio.Task[Any] | None) -> None:
        if strand in self._cut:
            self._cut.discard(strand)
            if strand is not None and strand.cancelling():
                raise asyncio.CancelledError

    def cut_again(self, strand: asyncio.Task[Any] | None) -> None:
        """A strand that was cancelled while it wrote goes on: unless it ends right here, it must not wait for anything any more."""
        if strand is not None and strand in self._cut:
            self.loop.call_soon(self._cancel_cut, strand)

    def _cancel_cut(self, strand: asyncio.Task[Any]) -> None:
        if strand in self._cut:
            self._cut.discard(strand)
            if not strand.done() and strand.cancelling():
                strand.uncancel()  # still the same request
                strand.cancel()

    def refuse(self, check: Callable[[], None]) -> None:
        """Runs a check of the body's code; what it raises ends the body, even when it is caught there."""
        try:
            check()
        except NonDeterminismError as error:
            self.end(error)
            raise

    def lose(self, error: LeaseLost) -> LeaseLost:
        self.end(error)
        return error

    def end(self, fatal: BaseException) -> None:
        """From now on every call of the body raises this, and whoever waits is woken to hear it."""
        self.fatal = self.fatal or fatal
        self._wake_waits()

    def forget_branch(self, path: str) -> None:
        """A branch that lost: what it recorded is not asked for again."""
        self.seen.update(key for key in self.history.outcomes if key.startswith(path))

    def look_again(self) -> None:
        """A strand goes on: where it stops next, nobody else will tell."""
        if self._waits:
            self.loop.call_soon(self.consider_suspending)

    def consider_suspending(self) -> None:
        """Called whenever a strand begins, ends, waits or goes on."""
        idle = bool(self._waits) and self.fatal is None and self.branches.are_quiet()
        if idle != self.claimed.is_idle:
            self.claimed.is_idle = idle
            self.services.slots_changed(self.claimed)
        if idle:
            self.loop.call_later(self.services.settings.suspend_after_s, self._suspend_if_idle, self.branches.changes)

    def _suspend_if_idle(self, changes: int) -> None:
        if self.branches.changes != changes or self.fatal is not None or self.is_suspended or not self._waits:
            return
        if any(w.future.done() for w in self._waits) or not self.branches.are_still():
            return
        if not all(w.is_asked for w in self._waits):
            self.loop.call_later(0.005, self._suspend_if_idle, changes)  # on a replay most waits are over: ask first
            return
        self.is_suspended = True
        self.suspended_on = [w.describe() for w in self._waits]
        self._wake_waits()

    def _wake_waits(self) -> None:
        for wait in self._waits:
            if not wait.future.done():
                wait.future.set_result(None)

    def perform_blocking(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Runs engine work on the loop for a thread that waits. The task made for it is none of the body's strands."""
        answer: ThreadFuture[Any] = ThreadFuture()

        def begin() -> None:
            task = self.loop.create_task(work() if not self.is_ignored else park())
            task.add_done_callback(lambda t: _pass_on(t, answer))

        self.loop.call_soon_threadsafe(begin, context=contextvars.Context())
        return answer.result()


def _pass_on(task: asyncio.Task[Any], answer: ThreadFuture[Any]) -> None:
    if task.cancelled():
        answer.set_exception(Suspended())
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _raise_recorded(error: Exception, key: str) -> NoReturn:
    """Raises what a replay will raise; the original is its context."""
    raise mark_cause(decode_error(encode_error(error)), key)


def _parsed(answer: Any) -> Any:
    """`record` answers a call's value, or the recorded output's text when the reply was lost."""
    return decode(answer) if isinstance(answer, str) else answer
