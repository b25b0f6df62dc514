"""The idle connections of one binding: a stack, so the busiest stay warm, with a bound on all that are open."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from onceflow.errors import NoDatabase

C = TypeVar("C")


class ConnectionStack(Generic[C]):
    """Places for `limit` connections; used on the event loop's thread only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.closed = False
        self._idle: list[C] = []
        self._places = asyncio.Semaphore(limit)

    async def take(self) -> C | None:
        """Wait for a place; the connection used last, or None if a new one must be opened for it."""
        await self._places.acquire()
        if self.closed:
            self._places.release()
            raise NoDatabase("the worker is closing its connections; no step can begin on them any more")
        return self._idle.pop() if self._idle else None

    def give_back(self, connection: C | None) -> None:
        """Free a place, keeping its connection for the next step (None: it was closed)."""
        if connection is not None:
            self._idle.append(connection)
        self._places.release()

    def close(self) -> list[C]:
        """Serve no more; the idle connections, for the caller to close. Those in use are not to be given back."""
        self.closed = True
        idle, self._idle = self._idle, []
        return idle
