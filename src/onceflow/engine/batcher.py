"""Group commit for calls on the engine's connection: what arrives while a commit is under way shares the next one."""

from __future__ import annotations

import asyncio
import contextvars
import json
from typing import Any

from onceflow.db import calls
from onceflow.db.calls import Call
from onceflow.db.driver_errors import is_connection_lost
from onceflow.db.link import Link

BUSY = {"busy": True}  # answered for a call whose lease somebody else holds: a step that commits, or an application that cancels and waits
BUSY_S = (0.005, 0.5)  # how long until it is sent again, at first and at most

Waiting = tuple[Call, asyncio.Future[Any], float]


class Batcher:
    """`submit` answers after the COMMIT that holds the call. On any error of a group its calls are run one by one, so
    that one poisoned call costs the others nothing. Nor does one whose lease somebody holds: it is sent again later. A group
    is of one function's calls, which the server runs with one statement for all."""

    BATCHABLE = frozenset({"start_step", "complete_step", "fail_step", "complete_task", "skip_task", "fail_task"})

    def __init__(self, link: Link, group_max: int) -> None:
        self._link = link
        self._group_max = group_max
        self._waiting: dict[str, list[Waiting]] = {}  # by function, in turn
        self._flushes: set[asyncio.Task[None]] = set()

    async def submit(self, call: Call) -> Any:
        if call.name not in self.BATCHABLE:
            return await self._link.call(call)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put((call, future, BUSY_S[0]))
        return await future

    def _put(self, one: Waiting) -> None:
        if one[1].done():
            return  # its caller was cancelled meanwhile
        self._waiting.setdefault(one[0].name, []).append(one)
        # Two flushes under way keep the server busy while the next group gathers.
        if len(self._flushes) < 2:
            self._flushes.add(asyncio.get_running_loop().create_task(self._flush(), context=contextvars.Context()))

    async def _flush(self) -> None:
        try:
            await self._flush_waiting()
        finally:
            # In the same step as the last look at what waits: a call that comes after it must find this flush gone.
            self._flushes.discard(asyncio.current_task())

    async def _flush_waiting(self) -> None:
        await asyncio.sleep(0)  # let everything that is ready now join
        while self._waiting:
            waiting = self._waiting.pop(name := next(iter(self._waiting)))
            group, rest = waiting[: self._group_max], waiting[self._group_max :]
            if rest:
                self._waiting[name] = rest
            try:
                await self._send(group)
            except Exception as error:
                if is_connection_lost(error) or len(group) == 1:
                    for _, future, _ in group:
                        _set_error(future, error)
                    continue
                for one in group:
                    try:
                        await self._send([one])
                    except Exception as its_own:
                        _set_error(one[1], its_own)

    async def _send(self, group: list[Waiting]) -> None:
        answers = await self._link.call(calls.run_batch(json.dumps([[c.name, *c.args] for c, _, _ in group])))
        for (call, future, pause_s), answer in zip(group, answers, strict=True):
            if answer == BUSY:
                asyncio.get_running_loop().call_later(pause_s, self._put, (call, future, min(2 * pause_s, BUSY_S[1])))
            elif not future.done():
                future.set_result(answer)


def _set_error(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
