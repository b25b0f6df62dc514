"""Step identity: (path of scopes, name, occurrence in the scope). Never a global position, so that parallel branches and
library-made tasks shift nothing. A key is taken when the call is written, before it runs."""

from __future__ import annotations

import asyncio
from typing import Any


class Scope:
    """One strand of a body: the body itself, a branch of gather, a task the user made, an external step's inside.

    `owner`: the asyncio task that walks this strand (None for a thread). `seen`: keys taken so far, over all scopes.
    """

    __slots__ = ("_counts", "owner", "path", "seen")

    def __init__(self, path: str, seen: set[str], owner: asyncio.Task[Any] | None = None) -> None:
        self.path = path
        self.seen = seen
        self.owner = owner
        self._counts: dict[str, int] = {}

    def take_key(self, name: str) -> str:
        """The next key of that name here.

        >>> scope = Scope("", set())
        >>> scope.take_key("pay"), scope.take_key("pay")
        ('pay#0', 'pay#1')
        """
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        key = f"{self.path}{name}#{number}"
        self.seen.add(key)
        return key

    def child(self, name: str) -> Scope:
        return Scope(f"{self.path}{name}/", self.seen)

    def head_of(self, key: str) -> str | None:
        """The key of this very scope that a recorded key belongs to: itself, or the gather, task or step it lies in.

        >>> Scope("a#0/", set()).head_of("a#0/gather#1[2]/pay#0")
        'a#0/gather#1'
        """
        if not key.startswith(self.path):
            return None
        head = key[len(self.path) :].partition("/")[0]
        return self.path + head.partition("[")[0].removesuffix(":deadline")
