"""Durable waits held in memory: one query per poll asks for all of them whether they are over."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable
from typing import Any

from onceflow.db import calls
from onceflow.db.driver_errors import sqlstate_of


class Suspended(BaseException):
    """Every branch of the body waits; it leaves memory and is replayed when a wait is over. Nothing is recorded meanwhile."""


class Wait:
    """One thing a branch waits for. `kind`: time, task, run, message, event; `target` is the moment for time."""

    __slots__ = ("future", "is_asked", "kind", "run", "target", "target_run")

    def __init__(self, run: int, kind: str, target_run: int, target: str) -> None:
        self.run, self.kind, self.target_run, self.target = run, kind, target_run, target
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_asked = False  # and was not over then

    def describe(self) -> dict[str, Any]:
        return {"run": self.run, "kind": self.kind, "target_run": self.target_run, "target": self.target}


class WaitKeeper:
    """All waits of the worker. `poke()` asks now; the worker's poll asks in any case."""

    def __init__(self, call_again: Callable[[calls.Call], Awaitable[Any]]) -> None:
        self._call_again = call_again
        self._waits: set[Wait] = set()
        self._asking = False
        self._again = False

    def add(self, wait: Wait, about_s: float | None = None) -> None:
        """Keeps a wait until it is over or discarded; `about_s`: when asking is likely to be worth it."""
        self._waits.add(wait)
        loop = asyncio.get_running_loop()
        loop.call_soon(self.poke)
        if about_s is not None:
            loop.call_later(max(0.0, about_s) + 0.001, self.poke)

    def discard(self, wait: Wait) -> None:
        self._waits.discard(wait)

    def poke(self) -> None:
        if not self._waits:
            return
        self._again = True
        if not self._asking:
            self._asking = True
            asyncio.get_running_loop().create_task(self._ask(), context=contextvars.Context())

    async def _ask(self) -> None:
        try:
            while self._again and self._waits:
                self._again = False
                asked = list(self._waits)
                for wait, is_over in zip(asked, await self._check(asked), strict=True):
                    wait.is_asked = True
                    if isinstance(is_over, Exception):
                        self._waits.discard(wait)
                        if not wait.future.done():
                            wait.future.set_exception(is_over)
                    elif is_over:
                        self._waits.discard(wait)
                        if not wait.future.done():
                            wait.future.set_result(None)
        finally:
            self._asking = False

    async def _check(self, asked: list[Wait]) -> list[bool | Exception]:
        """One call for all. Where a value is refused, one for each: a wait that cannot be asked must not hold up the others."""
        try:
            answer: list[bool | Exception] = await self._call_again(calls.check_waits(json.dumps([w.describe() for w in asked])))
            return answer
        except Exception as error:
            if not (sqlstate_of(error) or "").startswith("22"):
                raise
            if len(asked) == 1:
                return [error]
        return [(await self._check([wait]))[0] for wait in asked]
