"""What every running task of one worker process shares."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceflow.db.calls import Call, quote_text
from onceflow.db.driver_errors import is_connection_lost
from onceflow.db.link import Link
from onceflow.db.tokens import name_session
from onceflow.engine.batcher import Batcher
from onceflow.engine.bindings import CLEAN_SESSION, Binding, binding_for
from onceflow.engine.claimed import Claimed
from onceflow.engine.group import GroupCommitter
from onceflow.engine.record import Record, Recorded
from onceflow.engine.sql_forms import SqlForms, SqlGroups
from onceflow.engine.stored_values import ValueStore
from onceflow.errors import AlreadyRecorded, LeaseLost, OnceflowError
from onceflow.settings import Settings

if TYPE_CHECKING:
    from onceflow.engine.waits import WaitKeeper

MAX_PAUSE_S = 5.0  # between the tries of a call that meets what somebody keeps in an open transaction
_RETRY_STATES = ("40001", "40P01", "55P03", "57014")


class Committed(str):
    """The recorded output's text, read from the ledger because the reply to the call that wrote it was lost."""


@dataclass
class Services:
    """Connections, threads and settings. One per worker."""

    settings: Settings
    worker: int
    link: Link
    batcher: Batcher
    groups: GroupCommitter
    sql_groups: SqlGroups
    waits: WaitKeeper
    step_dsn: str
    steps_pooled: bool
    """Does a transaction pooler stand before the steps' database? The engine's own may be reached without."""
    threads: ThreadPoolExecutor
    wake_soon: Callable[[], None]
    """Work was put there for others: tell them, after the commit, coalesced."""
    slots_changed: Callable[[Claimed], None]
    """A task began or stopped counting against the concurrency."""
    store: ValueStore | None = None
    """Where large values of dags go; None: into the database."""
    is_stale: Callable[[], bool] = lambda: False
    """Has this process' code been edited just now, so that a successor has what it lacks?"""
    callbacks: asyncio.Event = field(default_factory=asyncio.Event)
    """Something of a dag has ended: look for what is to be called."""
    bindings: dict[tuple[type[Binding], str], Binding] = field(default_factory=dict)
    sql_forms: SqlForms = field(default_factory=SqlForms)
    tracks: bool = False
    """Is some table tracked? Then the steps of a group are marked one by one."""

    def binding(self, annotation: Any, dsn: str | None = None) -> Binding:
        """The pool of connections for a step's connection annotation, made when first needed; `dsn` of another database."""
        cls = binding_for(annotation)
        assert cls is not None, annotation
        key = (cls, dsn or self.step_dsn)
        if key not in self.bindings:
            # Another database may lie behind a pooler too: then named statements are not safe there.
            self.bindings[key] = cls(key[1], self.settings.concurrency, self.steps_pooled or dsn is not None, self.threads)
        return self.bindings[key]

    def begin_text(self, mark: str, isolation: str) -> str:
        """One simple query that opens a step's transaction on a connection cleaned of whatever the last step left. The mark names the step in it."""
        level = "" if isolation == "read committed" else f"commit; begin isolation level {isolation}; "
        idle_ms = int(self.settings.step_idle_s * 1000)
        return (
            f"{CLEAN_SESSION}; {level or 'begin; '}set local idle_in_transaction_session_timeout = {idle_ms}; "
            f"set local application_name = '{name_session(self.worker, mark)}'; set local onceflow.step = {quote_text(mark)}"
        )

    async def record(self, record: Record, make: Any) -> Any:
        """Runs a call that writes for a task, over lost connections and rotated tokens: exactly once, or LeaseLost.

        `make()` builds the call with the present token. Answers the call's value, or what the ledger holds of it when its
        reply was lost: the output's text (Committed when a success was committed instead of the failure to be recorded).
        """
        pause_s = 0.1
        while True:
            call = make()
            token = record.claimed.token
            record.claimed.is_ending = record.whole and call.name != "start_step"
            if record.claimed.is_ending:
                self.share_commit(record, True)
            try:
                return await self.batcher.submit(call)
            except LeaseLost:
                if await record.claimed.settled_token() == token:
                    raise
            except AlreadyRecorded:
                recorded = await self.resolve(record, token, is_start=call.name == "start_step")
                if recorded is None:
                    raise
                return _read_reply(call, recorded)
            except OnceflowError:
                raise
            except Exception as error:
                if is_connection_lost(error):
                    recorded = await self.resolve(record, token, is_start=call.name == "start_step")
                    if recorded is not None:
                        return _read_reply(call, recorded)
                elif getattr(error, "sqlstate", None) not in _RETRY_STATES:
                    raise
                else:
                    await asyncio.sleep(pause_s * random.random())
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def share_commit(self, record: Record, shares: bool) -> None:
        """Tells that a task only waits for a commit which it shares with others, so that others may run in its place: they make that commit worth while."""
        if record.whole and record.claimed.shares_commit is not shares:
            record.claimed.shares_commit = shares
            self.slots_changed(record.claimed)

    async def resolve(self, record: Record, used: str, *, is_start: bool = False, rotate: bool = True) -> Recorded | None:
        """After a connection died around a commit made with the token `used`: what was committed, None if nothing was (the
        token is new then, so the first attempt can't land late). Raises LeaseLost when the task is another's by now.

        `rotate=False` only looks: for an attempt that had not asked for its commit yet.
        """
        claimed = record.claimed
        async with claimed.resolving:
            # Another branch may have replaced the token since: then this attempt cannot land any more as it is.
            new = str(uuid.uuid4()) if rotate and claimed.token == used else claimed.token
            answer = await self.call_again(record.resolve(new, is_start))
            if answer["outcome"] == "superseded":
                raise LeaseLost(f"{claimed}, step {record.key}: the task went to another worker while this one had lost its connection")
            if answer["outcome"] == "committed":
                return Recorded(answer["state"], answer["output"] if answer["output"] is not None else "null")
            claimed.token = answer["token"]
            return None

    async def call_again(self, call: Call) -> Any:
        return await self.link.call_again(call)

    async def close(self) -> None:
        for binding in self.bindings.values():
            await binding.close_all()
        await self.link.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


def _read_reply(call: Call, recorded: Recorded) -> Any:
    """The reply that was lost, from what the ledger holds."""
    if call.name not in ("fail_step", "fail_task"):
        return recorded.output
    if recorded.state == "success":
        return Committed(recorded.output)
    if call.name == "fail_task":
        return {"state": recorded.state}
    return (json.loads(recorded.output) or {}).get("retry_at")
