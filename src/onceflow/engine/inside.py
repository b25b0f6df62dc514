"""What a step does inside its own open transaction, besides its writes: messages, events, starts.

Each is one statement on the step's connection, so it commits with the step's writes and its record, or never happened. It is no entry of the
ledger: the step's own is its record. Nothing waits in here, and nothing of the engine's is locked until the step completes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceflow.authoring.step import Step
from onceflow.codec import decode, encode, inputs_hash
from onceflow.db import calls
from onceflow.db.calls import Call, parse_answer, render
from onceflow.db.driver_errors import translate
from onceflow.db.tokens import prove_token
from onceflow.engine.started import StartedTask
from onceflow.errors import AuthoringError, LeaseLost

if TYPE_CHECKING:
    from onceflow.authoring.workflow import Workflow
    from onceflow.engine.bindings import BlockingSteps, StepConnection
    from onceflow.engine.place import Place


@dataclass(frozen=True, slots=True)
class InsideCall:
    """One statement, and how its answer reads. `wakes`: somebody may wait for what it does."""

    call: Call
    read: Callable[[Any], Any] = lambda answer: None
    wakes: bool = True

    async def run(self, conn: StepConnection) -> Any:
        """On an async step's connection."""
        with _named_errors():
            text = await conn.call(f"{render(self.call)}::text")
        return self.read(parse_answer(text))

    def run_blocking(self, conn: BlockingSteps) -> Any:
        """On a def step's connection, in its thread."""
        with _named_errors():
            text = conn.call_blocking(f"{render(self.call)}::text")
        return self.read(parse_answer(text))


@contextmanager
def _named_errors() -> Iterator[None]:
    """The engine's own errors by their names. A lost lease stays as it came: its attempt looks whether the token was only replaced."""
    try:
        yield
    except Exception as error:
        own = translate(error)
        if own is None or isinstance(own, LeaseLost):
            raise
        raise own from error


def is_possible_inside(name: str) -> bool:
    """Can the form be used in an open transaction?"""
    return name in _FORMS


def prepare_form(place: Place, name: str, arguments: dict[str, Any]) -> InsideCall:
    """The call for a durable form that is used in an open transaction."""
    return _FORMS[name](place, **arguments)


def prepare_start(place: Place, step: Step[..., Any], values: dict[str, Any]) -> InsideCall:
    """The outbox: a task that is there when, and only when, the transaction commits."""
    held, text = place.task.claimed, _encode(place, values, step.name)
    proof = prove_token(held.token, f"start/{step.reference}/{text}")
    call = calls.start_task(held.run, held.ti, proof, None, step.name, step.reference, text, inputs_hash(text), step.retry.retries, None)
    return InsideCall(call, lambda answer: StartedTask(step.name, "task", held.run, answer["task"]))


def _start_child(place: Place, workflow: Workflow[..., Any], arguments: dict[str, Any], deduplicate: str | None = None) -> InsideCall:
    held, text = place.task.claimed, _encode(place, arguments, workflow.name)
    key = place.scope.take_key(f"{workflow.name}:start")
    proof = prove_token(held.token, f"child/{key}/{workflow.name}/{text}")
    call = calls.start_child_in_step(held.run, held.ti, proof, key, workflow.name, text, workflow.queue, workflow.retry.retries, "body", deduplicate)
    return InsideCall(call, lambda answer: StartedTask(workflow.name, "run", int(answer["run"]), "", answer["run_id"]))


def _send(place: Place, to: int, message: Any, topic: str) -> InsideCall:
    return InsideCall(calls.send_message(to, topic, _encode(place, message, "send.message"), None, notify=False))


def _set_event(place: Place, event: str, value: Any) -> InsideCall:
    held, text = place.task.claimed, _encode(place, value, "set_event.value")
    return InsideCall(calls.set_event_in_step(held.run, held.ti, prove_token(held.token, f"event/{event}/{text}"), event, text))


def _recv(place: Place, topic: str, seconds: float | None) -> InsideCall:
    _refuse_waiting(place, "recv", "take a message that is there already", seconds)
    held = place.task.claimed
    return InsideCall(calls.take_message(held.run, held.ti, prove_token(held.token, f"take/{topic}"), topic), _read("body"), wakes=False)


def _get_event(place: Place, run: int, event: str, seconds: float | None) -> InsideCall:
    _refuse_waiting(place, "get_event", "read a value that is there already", seconds)
    return InsideCall(calls.read_run_event(run, event), _read("value"), wakes=False)


def _refuse_waiting(place: Place, name: str, what: str, seconds: float | None) -> None:
    if seconds != 0:
        raise AuthoringError(
            f"{name} would wait inside the open transaction of step {place.step_key}: {what} with timeout=0, or call it in the workflow's body to wait"
        )


def _read(field: str) -> Callable[[Any], Any]:
    return lambda answer: None if answer is None else decode(json.dumps(answer[field]))


def _encode(place: Place, value: Any, where: str) -> str:
    return encode(value, where=where, limit=place.task.services.settings.max_value_bytes)


_FORMS: dict[str, Callable[..., InsideCall]] = {
    "send": _send,
    "recv": _recv,
    "set_event": _set_event,
    "get_event": _get_event,
    "start_child": _start_child,
}
