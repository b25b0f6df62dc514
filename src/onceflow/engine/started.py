"""Handles, inside a body, of what it started: a task of its run, or a child run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from onceflow.authoring.context import need_here
from onceflow.codec import decode, decode_error, encode_error
from onceflow.db import calls
from onceflow.engine.causes import mark_cause
from onceflow.engine.requests import find_continuation
from onceflow.errors import AuthoringError, NotFound, RunCancelled, RunFailed

if TYPE_CHECKING:
    from onceflow.engine.place import Place
    from onceflow.engine.task_run import TaskRun


@dataclass(frozen=True, slots=True)
class StartedTask:
    """`result()` waits durably for the end and answers the result, or raises the error; recorded either way.

    A plain value: a step may return it, and a run be given it, so that another body waits for it.
    Attributes: `run` (numeric id of the run that it is, or that the task is of), `run_id` (of a child run), `name`.
    """

    name: str
    kind: str
    """task or run"""
    run: int
    target: str
    """the task's number"""
    run_id: str = ""

    def result(self) -> Any:
        place: Any = need_here(f"result() of {self.name}")  # of the branch that asks, not of the one that started it
        if place.mode != "body":
            raise AuthoringError(
                f"result() of {self.name} was called inside the step {place.step_key}; a step cannot be suspended: wait in the workflow's body"
            )
        return place.perform(partial(self._result, place, place.scope.take_key(f"{self.name}:result")))

    async def _result(self, place: Place, key: str) -> Any:
        task = place.task
        inputs = {"of": self.run_id or self.target}
        known = task.find_recorded(place, key, "result", inputs)
        if known is not None:
            return known.value()
        answer = await self._await_end(task, self.run)
        record = task.form_record(key, "result", inputs)
        if answer["state"] == "success":
            text = answer["output"] or "null"
            await task.write(record, lambda: record.complete(text, 0))
            return decode(text)
        error = answer["error"] or encode_error(_why(self.name, answer))
        await task.write(record, lambda: record.fail(error, False, 0, 0))
        raise mark_cause(decode_error(error), key)

    async def _await_end(self, task: TaskRun, run: int) -> dict[str, Any]:
        """How it ended; a child that went on with continue_as, how the last of its runs did."""
        await task.wait_any([(self.kind, run, self.target)])
        call = calls.read_run(run) if self.kind == "run" else calls.read_task(run, int(self.target))
        answer: dict[str, Any] | None = await task.services.call_again(call)
        if answer is None:
            raise NotFound(f"task {self.name} of run {run} is not there: it was archived, or the transaction that starts it was rolled back")
        next_run = find_continuation(answer) if self.kind == "run" else None
        return answer if next_run is None else await self._await_end(task, next_run)


def _why(name: str, answer: dict[str, Any]) -> RunFailed | RunCancelled:
    reason = answer.get("stop_reason") or "no reason given"
    return RunCancelled(f"{name} was cancelled: {reason}") if answer["state"] == "cancelled" else RunFailed(f"{name} {answer['state']}: {reason}")
