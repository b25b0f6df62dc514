"""The durable forms, as the engine does them: each is one recorded decision."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from onceflow.codec import decode, encode, inputs_hash
from onceflow.db import calls
from onceflow.engine.started import StartedTask

if TYPE_CHECKING:
    from onceflow.authoring.workflow import Workflow
    from onceflow.engine.place import Place
    from onceflow.engine.task_run import TaskRun


LOOK_AGAIN_S = 0.1


class ContinueAs(BaseException):
    """The body ends here and goes on as a fresh run."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


class Forms:
    """One method per form: `_<name>(place, key, …)`."""

    def __init__(self, task: TaskRun) -> None:
        self._task = task

    def prepare(self, place: Place, name: str, arguments: dict[str, Any]) -> Any:
        """What makes the form's coroutine; the key is taken now, where the call stands in the body."""
        label = {"start_child": lambda: f"{arguments['workflow'].name}:start", "patch": lambda: f"patch:{arguments['name']}"}.get(name, lambda: name)()
        return partial(getattr(self, f"_{name}"), place, place.scope.take_key(label), **arguments)

    async def _sleep(self, place: Place, key: str, seconds: float) -> None:
        due = await self._record_time(place, key, "sleep", {"seconds": seconds}, seconds)
        await self._task.wait_until(due, seconds)

    async def _now(self, place: Place, key: str) -> datetime:
        return datetime.fromisoformat(await self._record_time(place, key, "now", {}, 0.0))

    async def _record_time(self, place: Place, key: str, name: str, values: dict[str, Any], after_s: float) -> str:
        known = self._task.find_recorded(place, key, name, values)
        if known is not None:
            return str(known.value())
        record = self._task.form_record(key, name, values)
        moment = await self._task.write(record, lambda: calls.record_time(*self._task.claimed.owner, key, name, record.inputs, record.inputs_hash, after_s))
        return str(moment).strip('"')  # the recorded output's text when a reply was lost

    async def _deadline(self, place: Place, key: str, name: str, values: dict[str, Any], seconds: float | None) -> str | None:
        """The recorded moment at which a wait ends in any case."""
        if seconds is None:
            return None
        place.scope.seen.add(f"{key}:deadline")
        return await self._record_time(place, f"{key}:deadline", name, values, seconds)

    async def _random(self, place: Place, key: str) -> Any:
        return await self._decide(place, key, "random", {}, random.random)

    async def _uuid4(self, place: Place, key: str) -> Any:
        return await self._decide(place, key, "uuid4", {}, uuid.uuid4)

    async def _decide(self, place: Place, key: str, name: str, values: dict[str, Any], choose: Any) -> Any:
        known = self._task.find_recorded(place, key, name, values)
        return known.value() if known is not None else await self._task.record_value(place, key, name, values, choose())

    async def _patch(self, place: Place, key: str, name: str) -> bool:
        """A run whose ledger goes on beyond this place was written by code without the patch."""
        task = self._task
        task.check_alive()
        if key not in task.history.outcomes and task.history.left_over(place.scope):
            return False
        return bool(await self._decide(place, key, "patch", {"name": name}, lambda: True))

    async def _send(self, place: Place, key: str, to: int, message: Any, topic: str) -> None:
        values = {"to": str(to), "topic": topic, "message": message}
        key = self._task.settle_key(place, key, "send", values)
        known = self._task.find_recorded(place, key, "send", values)
        if known is None:
            record = self._task.form_record(key, "send", values)
            body = encode(message, where="send.message", limit=self._task.services.settings.max_value_bytes)
            await self._task.write(record, lambda: calls.send_from_step(*self._task.claimed.owner, key, record.inputs, record.inputs_hash, to, topic, body))
            self._task.remember(place, record, "null")
            self._task.services.wake_soon()

    async def _recv(self, place: Place, key: str, topic: str, seconds: float | None) -> Any:
        task = self._task
        values = {"topic": topic, "timeout_s": seconds}
        deadline = await self._deadline(place, key, "recv", values, seconds)
        known = task.find_recorded(place, key, "recv", values)
        if known is not None:
            return known.value()
        record = task.form_record(key, "recv", values)
        looks = 0
        while True:
            got = await task.write(record, lambda: calls.receive_message(*task.claimed.owner, key, record.inputs, record.inputs_hash, topic))
            if got is not None:
                return decode(got) if isinstance(got, str) else decode(json.dumps(got["body"]))
            if deadline is not None and await task.is_past(deadline):
                return await task.record_value(place, key, "recv", values, None)
            if looks > 0:  # a message is there, but a step that is still open has taken it: it may yet roll back
                await asyncio.sleep(min(0.01 * 2**looks, LOOK_AGAIN_S))
            looks += 1
            targets = [("message", task.claimed.run, topic)]
            await task.wait_any(targets if deadline is None else [*targets, ("time", 0, deadline)], seconds)

    async def _set_event(self, place: Place, key: str, event: str, value: Any) -> None:
        values = {"key": event, "value": value}
        key = self._task.settle_key(place, key, "set_event", values)
        if self._task.find_recorded(place, key, "set_event", values) is None:
            record = self._task.form_record(key, "set_event", values)
            text = encode(value, where="set_event.value", limit=self._task.services.settings.max_value_bytes)
            await self._task.write(record, lambda: calls.set_run_event(*self._task.claimed.owner, key, record.inputs, record.inputs_hash, event, text))
            self._task.remember(place, record, "null")
            self._task.services.wake_soon()

    async def _get_event(self, place: Place, key: str, run: int, event: str, seconds: float | None) -> Any:
        task = self._task
        values = {"run": str(run), "key": event, "timeout_s": seconds}
        deadline = await self._deadline(place, key, "get_event", values, seconds)
        known = task.find_recorded(place, key, "get_event", values)
        if known is not None:
            return known.value()
        targets = [("event", run, event)]
        await task.wait_any(targets if deadline is None else [*targets, ("time", 0, deadline)], seconds)
        answer = await task.services.call_again(calls.read_run_event(run, event))
        value = decode(json.dumps(answer["value"])) if answer is not None else None
        return await task.record_value(place, key, "get_event", values, value)

    async def _start_child(self, place: Place, key: str, workflow: Workflow[..., Any], arguments: dict[str, Any], deduplicate: str | None) -> StartedTask:
        task = self._task
        text = encode(arguments, where=workflow.name, limit=task.services.settings.max_value_bytes)
        key = task.settle_key(place, key, workflow.name, arguments)
        known = task.find_recorded(place, key, workflow.name, arguments)
        if known is not None:
            answer = known.value()
        else:
            record = task.form_record(key, workflow.name, arguments)
            got = await task.write(
                record,
                lambda: calls.start_child(
                    *task.claimed.owner,
                    key,
                    workflow.name,
                    workflow.name,
                    text,
                    inputs_hash(text),
                    None,
                    workflow.queue,
                    workflow.retry.retries,
                    "body",
                    deduplicate,
                ),
            )
            answer = decode(got) if isinstance(got, str) else got
            task.remember(place, record, encode(answer))
            task.services.wake_soon()
        return StartedTask(workflow.name, "run", int(answer["run"]), "", answer["run_id"])

    async def _continue_as(self, place: Place, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise ContinueAs(self._task.bind_body(args, kwargs))
