"""Where running code stands: in a body, a branch of one, or a step. What it may call from there, and in which colour."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from onceflow.authoring.context import here
from onceflow.authoring.step import Step
from onceflow.checks import show
from onceflow.engine.causes import find_causes, mark_cause
from onceflow.engine.foreign_waits import refuse_unrecorded_waits, refuse_waiting_for_strand
from onceflow.engine.inside import InsideCall, is_possible_inside, prepare_form, prepare_start
from onceflow.engine.late_commit import LateCommit
from onceflow.engine.read_named import read_connection, read_variable
from onceflow.engine.scopes import Scope
from onceflow.engine.user_code import await_user
from onceflow.engine.waits import Suspended
from onceflow.errors import AuthoringError, LostContext, NonDeterminismError, WaitTimeout, WrongColour

if TYPE_CHECKING:
    from onceflow.engine.task_run import TaskRun

Mode = Literal["body", "external", "transaction"]
Work = Callable[[], Coroutine[Any, Any, Any]]


class Place:
    """Implements authoring's `Here`."""

    def __init__(self, task: TaskRun, scope: Scope, mode: Mode, is_async: bool, step_key: str = "", try_number: int = 1) -> None:
        self.task = task
        self.scope = scope
        self.mode = mode
        self.is_async = is_async
        self.step_key = step_key
        self.try_number = try_number
        self.connection: Any = None  # a transactional step's own, while its function runs
        self.database: str | None = None  # the other one, in which the step's transaction is
        self.late_commit: LateCommit | None = None
        self.root = self  # the place that this one is a branch of
        self.origin = self  # the place that this one is another pass of
        self.owes_wake = False  # the step's transaction holds something that others may wait for
        self.is_closed = False
        self.acts: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}  # what its code has under way, and the strand that waits for it

    def anew(self) -> Place:
        """For a pass of the step: it counts its keys from the start, and what an earlier pass has left running does not reach it."""
        place = Place(self.task, Scope(self.scope.path, self.scope.seen), self.mode, self.is_async, self.step_key, self.try_number)
        place.origin = self.origin
        return place

    @property
    def run_id(self) -> str:
        return self.task.claimed.run_id

    @property
    def dag_id(self) -> str:
        return self.task.claimed.dag_id

    @property
    def context(self) -> dict[str, Any] | None:
        return self.task.context

    @property
    def run(self) -> int:
        return self.task.claimed.run

    @property
    def idempotency_key(self) -> str:
        """Names the task too: two tasks that a run has started have steps of the same keys. Only the slashes between names are slashes."""
        claimed = self.task.claimed
        task = "" if claimed.map_index < 0 else f"{_escape(claimed.task_id)}[{claimed.map_index}]/"
        return f"{_escape(claimed.dag_id)}/{_escape(claimed.run_id)}/{task}{self.step_key}"

    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, from_other_colour: bool) -> Any:
        if self.mode == "transaction":
            raise AuthoringError(
                f"step {step.name} was called inside the transactional step {self.step_key}: it would commit apart from it. "
                f"Call {step.name}.fn(conn, ...) to run inside this transaction, or {step.name}.start(...) to run after it."
            )
        if step.text is None and step.is_async != self.is_async and not (from_other_colour and self.is_async):
            if self.is_async:
                raise WrongColour(f"step {step.name} is a plain def and would block this async body: use `await {step.name}.aio(...)`")
            raise WrongColour(f"step {step.name} is async def and cannot be called from a def body: make the body async def")
        values = step.bind(args, kwargs)
        return self.perform(partial(self.task.run_step, self, step, self.scope.take_key(step.name), values))

    def start_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = step.bind(args, kwargs)
        if self._is_in_transaction():
            return self._do_inside(f"{step.name}.start", lambda: prepare_start(self, step, values))
        return self.perform(partial(self.task.start_step, self, step, self.scope.take_key(f"{step.name}:start"), values))

    def form(self, name: str, /, **arguments: Any) -> Any:
        if self._is_in_transaction() and is_possible_inside(name):
            return self._do_inside(name, lambda: prepare_form(self, name, arguments))
        if self.mode == "transaction":
            raise AuthoringError(f"{name} was called inside the transactional step {self.step_key}; it is recorded on its own: call it in the body")
        if self.mode == "external" and name in ("recv", "sleep", "continue_as", "get_event"):
            remedy = ", or with timeout=0 in a transactional step, or after commit_with" if is_possible_inside(name) else ""
            raise AuthoringError(f"{name} was called inside the step {self.step_key}; a step cannot be suspended: call it in the workflow's body{remedy}")
        return self.perform(self.task.forms.prepare(self, name, arguments))

    def read_named(self, kind: str, name: str, **options: Any) -> Any:
        """A connection or variable. In a body a replay could find another one, and what is recorded must not be secret."""
        if self.mode == "body":
            raise AuthoringError(
                f"get_{kind} was called in the body of {self.dag_id}: it is not recorded, so a replay could see another value; call it in a step"
            )
        read = partial(read_connection if kind == "connection" else read_variable, self.task, name, **options)
        is_on_loop = asyncio._get_running_loop() is self.task.loop
        return self.task.loop.run_in_executor(self.task.services.threads, read) if is_on_loop else read()

    def _is_in_transaction(self) -> bool:
        """Does what stands here commit with the step: in a transactional one, or from commit_with on?"""
        late = self.root.late_commit
        return self.mode == "transaction" or (late is not None and late.connection is not None)

    def _do_inside(self, what: str, prepare: Callable[[], InsideCall]) -> Any:
        """Through the step's own connection, in its transaction."""
        if self.database is not None:
            raise AuthoringError(
                f"{what} was called inside step {self.step_key}, whose transaction is in database {self.database!r}: it cannot commit with it. "
                "Call it in the workflow's body, after the step."
            )
        late = self.root.late_commit
        conn = self.connection if late is None else late.connection
        if conn is None:
            raise LostContext(f"{what} was called for step {self.step_key} after the step ended; nothing was sent. Await or join all work a step starts.")
        call = prepare()
        self.root.origin.owes_wake |= call.wakes
        return call.run(conn) if self.is_async else call.run_blocking(conn)

    def open_commit(self, connection: type[Any]) -> LateCommit:
        if self.mode != "external":
            raise AuthoringError("commit_with works inside an external step; a transactional step has its connection already")
        if self.root.is_closed:
            raise self._is_late()
        if self.root.late_commit is not None:
            raise AuthoringError(f"commit_with was used twice in step {self.step_key}; a step commits once")
        self.root.late_commit = LateCommit(self, connection)
        return self.root.late_commit

    def gather(self, branches: tuple[Awaitable[Any], ...], return_exceptions: bool) -> Any:
        self._need_async("gather", branches)
        return self._gather(self.scope.take_key("gather"), branches, return_exceptions)

    async def _gather(self, key: str, branches: tuple[Awaitable[Any], ...], return_exceptions: bool) -> list[Any]:
        tasks = [self._spawn(f"{key}[{i}]/", branch) for i, branch in enumerate(branches)]
        await self._join(tasks, asyncio.ALL_COMPLETED)
        errors = [asyncio.CancelledError() if t.cancelled() else t.exception() for t in tasks]
        failed = [error for error in errors if error is not None]
        if failed and not return_exceptions:
            # The one that is raised stands for all: none of them has been handled.
            raise mark_cause(failed[0], *causes) if (causes := [key for error in failed for key in find_causes(error)]) else failed[0]
        return [error if error is not None else t.result() for t, error in zip(tasks, errors, strict=True)]

    def first_of(self, branches: tuple[Awaitable[Any], ...]) -> Any:
        self._need_async("first_of", branches)
        if not branches:
            raise AuthoringError("first_of() without a branch would wait for ever; pass at least one")
        return self._first_of(self.scope.take_key("first_of"), branches)

    async def _first_of(self, key: str, branches: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
        known = self.task.find_recorded(self, key, "first_of", {"branches": len(branches)})
        if known is not None:
            winner = int(known.value())
            for i, branch in enumerate(branches):
                if i != winner:
                    _close(branch)
                    self.task.forget_branch(f"{key}[{i}]/")
            task = self._spawn(f"{key}[{winner}]/", branches[winner])
            await self._join([task], asyncio.ALL_COMPLETED)
            return winner, task.result()
        tasks = [self._spawn(f"{key}[{i}]/", branch) for i, branch in enumerate(branches)]
        await self._join(tasks, asyncio.FIRST_COMPLETED)
        done = {t for t in tasks if t.done()}
        for task in tasks:
            task.cancel()
        await self._join(tasks, asyncio.ALL_COMPLETED)
        # A branch whose record was just being committed has ended too: the first in order wins, so nothing received is lost.
        ended = [i for i, t in enumerate(tasks) if not t.cancelled() and (t in done or t.exception() is None)]
        if not ended:
            raise asyncio.CancelledError
        winner = ended[0]
        await self._inside(partial(self.task.record_value, self, key, "first_of", {"branches": len(branches)}, winner))
        return winner, tasks[winner].result()

    def timeout(self, branch: Awaitable[Any], seconds: float) -> Any:
        self._need_async("timeout", (branch,))
        return self._timeout(self.first_of((branch, self.form("sleep", seconds=seconds))), seconds)

    async def _timeout(self, first: Awaitable[tuple[int, Any]], seconds: float) -> Any:
        winner, value = await first
        if winner == 1:
            raise WaitTimeout(f"timeout: {seconds} s were over first")
        return value

    def branch(self, path: str) -> Place:
        """A place for a new strand of this body."""
        branch = Place(self.task, Scope(path, self.scope.seen), self.mode, self.is_async, self.step_key, self.try_number)
        branch.root = self.root
        return branch

    def _spawn(self, path: str, branch: Awaitable[Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(here.set, self.branch(path))
        return asyncio.get_running_loop().create_task(_await(branch), context=context)

    async def _join(self, tasks: list[asyncio.Task[Any]], until: str) -> None:
        """Waits for branches without counting as an active one itself."""
        strand = self.task.branches.enter_wait() if self.mode == "body" else None
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=until)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            self.task.branches.leave_wait(strand)
        if self.task.is_suspended:
            for task in tasks:
                _ = task.cancelled() or task.exception()  # nobody else will ask for it
            raise Suspended

    def _need_async(self, what: str, branches: tuple[Any, ...]) -> None:
        if not self.is_async or self.mode == "transaction":
            raise WrongColour(f"{what} takes coroutines, so it works in an async def body; in a def body use step.start(...) and handle.result()")
        for branch in branches:
            if not inspect.isawaitable(branch):
                raise AuthoringError(f"{what} takes calls of steps and other coroutines, not {show(branch)}; to pass many, write {what}(*them)")

    def perform(self, work: Work) -> Any:
        """A coroutine for an async body to await; for a def body, the result, computed on the loop while its thread waits."""
        return self._inside(work) if self.is_async else self.task.perform_blocking(partial(self._act, work))

    async def _act(self, work: Work) -> Any:
        """Work of a step's code: it ends with the step."""
        if self.mode == "body":
            return await work()
        if self.root.is_closed:
            raise self._is_late()
        act = asyncio.get_running_loop().create_future()
        self.root.acts[act] = asyncio.current_task()
        try:
            return await work()
        except asyncio.CancelledError:
            if self.is_async or not self.root.is_closed:
                raise
            raise self._is_late() from None  # in a thread
        finally:
            del self.root.acts[act]
            act.set_result(None)

    def _is_late(self) -> LostContext:
        return LostContext(f"step {self.step_key} is over; what its code still calls is not recorded. Await or join all work a step starts.")

    async def close(self) -> None:
        """The step's function is over: whatever it left behind acts no more once this has returned, so nothing commits after the step's outcome."""
        self.is_closed = True
        for strand in list(self.acts.values()):
            if strand is not None:
                strand.cancel()
        while self.acts:
            await asyncio.wait(list(self.acts))

    async def _inside(self, work: Work) -> Any:
        """Work of the engine's in a strand of the body's: tasks it makes are none of the body's."""
        task, strand = self.task, asyncio.current_task()
        is_first = self.mode == "body" and strand not in task.branches.engaged  # what an external step calls lies in the call of that step
        if self.mode == "body":
            task.check_strand(strand)
        if is_first:
            task.branches.engaged.add(strand)
        token = here.set(None)
        try:
            return await (self._act(work) if not task.is_ignored else park())
        finally:
            if is_first:
                task.branches.engaged.discard(strand)
            task.cut_again(strand)
            task.look_again()
            try:
                here.reset(token)
            except ValueError:
                pass  # thrown away unfinished, from somewhere else


async def _await(branch: Awaitable[Any]) -> Any:
    return await branch  # a coroutine, a task or a future


async def park() -> Any:
    """For a body that catches every error and goes on: it has no further turn."""
    await asyncio.get_running_loop().create_future()


def _escape(name: str) -> str:
    """The name without a slash.

    >>> _escape("2026/11"), _escape("100%")
    ('2026%2F11', '100%25')
    """
    return name.replace("%", "%25").replace("/", "%2F")


def _close(branch: Any) -> None:
    if hasattr(branch, "close"):
        branch.close()


class Strand(asyncio.Task[Any]):
    """A task begun in a body or a step."""

    place: Place | None = None

    def add_done_callback(self, fn: Any, /, *, context: contextvars.Context | None = None) -> None:
        """As asyncio's; whoever would decide by this strand's end in a way that is not recorded is refused."""
        if self.place is not None and self.place.mode == "body":
            self.place.task.refuse(partial(refuse_waiting_for_strand, sys._getframe(1)))
        super().add_done_callback(fn, context=context)


def refuse_in_body(error: NonDeterminismError) -> None:
    """Raises the error if the present code is a body's."""
    place = here.get()
    if isinstance(place, Place) and place.mode == "body":
        place.task.end(error)
        raise error


def make_task(loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None, **options: Any) -> asyncio.Task[Any]:
    """The loop's task factory: a task begun inside a body is a strand of its own, named by its coroutine and its order of
    creation. asyncio's as_completed and wait_for are refused around steps: their outcome would not be recorded."""
    context = context or contextvars.copy_context()
    place = context.get(here)
    if isinstance(place, Place) and place.mode == "body":
        place.task.refuse(refuse_unrecorded_waits)
    if not isinstance(place, Place) or place.mode == "transaction":
        return asyncio.Task(coro, loop=loop, context=context, **options)
    if place.scope.owner is not None:
        place = place.branch(place.scope.take_key(getattr(coro, "__qualname__", "task")) + "/")
        context.run(here.set, place)
    task = Strand(await_user(coro, f"a task of {place.task.claimed}"), loop=loop, context=context, **options)
    task.place = place
    place.scope.owner = task
    if place.mode == "body":
        place.task.branches.follow(task, place.scope.path)
    return task
