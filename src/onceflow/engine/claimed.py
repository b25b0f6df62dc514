"""What a worker knows of a task it holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Claimed:
    """A claimed task instance. `token` is its fence; `resolve_commit` may replace it."""

    run: int
    ti: int
    token: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    kind: str
    fn: str | None
    epoch: int
    try_number: int
    entries: int
    args: str
    code_version: str | None
    max_tries: int = 0
    fence: int = 0
    queue: str = "default"
    logical_date: str = ""
    dag_run: dict[str, Any] | None = None  # of a dag's task: params, run_type, data_interval_start, data_interval_end
    resume: dict[str, Any] | None = None  # of a dag's task that has waited in this try: method, kwargs, event, used_s
    is_awaited: bool = False  # a body elsewhere may wait for its end
    is_idle: bool = field(default=False)  # every branch waits: it counts against no slot
    shares_commit: bool = field(default=False)  # it waits for a commit together with others: it counts against no slot
    is_ending: bool = field(default=False)  # its end is being written: the answer to that says whether the lease is lost, no heartbeat's
    resolving: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the token is being replaced

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Claimed:
        return cls(**data)

    @property
    def owner(self) -> tuple[int, int, str]:
        """The first three arguments of every call that writes for this task."""
        return self.run, self.ti, self.token

    async def settled_token(self) -> str:
        """The token, once it is not being replaced."""
        async with self.resolving:
            return self.token

    def __str__(self) -> str:
        index = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id}/{self.run_id}/{self.task_id}{index}"
