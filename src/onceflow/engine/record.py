"""Where the outcome of one unit of work goes: into a task's own end, or into an entry of a step inside a running task."""

from __future__ import annotations

import json
from dataclasses import dataclass

from onceflow.authoring.deferral import TaskDeferred, TaskRescheduled
from onceflow.db import calls, trigger_calls
from onceflow.db.calls import Call
from onceflow.db.tokens import prove_token
from onceflow.engine.claimed import Claimed


@dataclass(slots=True)
class Record:
    """One try of a step. `whole`: the step is the task itself, so its outcome ends the task."""

    claimed: Claimed
    key: str
    name: str
    kind: str
    inputs: str
    inputs_hash: str
    try_number: int = 1
    whole: bool = False
    pushed: dict[str, str] | None = None  # of a dag's task: what it gives to others under keys of its own, encoded
    is_asked: bool = False  # was the server asked for the success? Then it may be committed, even where its caller is cancelled

    def start(self) -> Call:
        return calls.start_step(*self.claimed.owner, self.key, self.name, self.kind, self.try_number, self.inputs, self.inputs_hash)

    def complete(self, output: str, elapsed_us: int) -> Call:
        """Written out in full on steps' connections, where others could read it: with a proof that is good for this alone in place of the token."""
        held, self.is_asked = self.claimed, True
        what = f"{held.task_id}/{held.try_number}" if self.whole else f"{self.key}/{self.try_number}"
        pushed = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in self.pushed.items()) + "}" if self.pushed else None
        owner = held.run, held.ti, prove_token(held.token, f"{what}/{self.kind}/{output}{f'/{pushed}' if pushed else ''}")
        if self.whole:
            return calls.complete_task(*owner, self.name, self.kind, self.inputs, self.inputs_hash, output, elapsed_us, pushed)
        return calls.complete_step(*owner, self.key, self.name, self.kind, self.try_number, self.inputs, self.inputs_hash, output, elapsed_us)

    def fail(self, error: str, again: bool, delay_s: float, elapsed_us: int) -> Call:
        if self.whole:
            return calls.fail_task(*self.claimed.owner, self.name, self.kind, self.inputs, self.inputs_hash, error, again, delay_s, elapsed_us)
        return calls.fail_step(
            *self.claimed.owner, self.key, self.name, self.kind, self.try_number, self.inputs, self.inputs_hash, error, not again, delay_s, elapsed_us
        )

    def skip(self, error: str, elapsed_us: int) -> Call:
        return calls.skip_task(*self.claimed.owner, self.name, self.kind, self.inputs, self.inputs_hash, error, elapsed_us)

    def defer(self, wait: TaskDeferred, limit_s: float | None, elapsed_us: int) -> Call:
        timeout_s = wait.timeout.total_seconds() if wait.timeout is not None else None
        given = (self.name, self.kind, self.inputs, self.inputs_hash, *wait.describe())
        return trigger_calls.defer_to_trigger(*self.claimed.owner, *given, timeout_s, limit_s, elapsed_us)

    def reschedule(self, wait: TaskRescheduled, elapsed_us: int) -> Call:
        given = (self.name, self.kind, self.inputs, self.inputs_hash, wait.describe())
        return trigger_calls.reschedule_task(*self.claimed.owner, *given, wait.delay_s, elapsed_us)

    def resolve(self, new_token: str, is_start: bool) -> Call:
        held = self.claimed
        return calls.resolve_commit(*held.owner, held.epoch, self.key, held.fence, self.try_number, is_start, new_token)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger holds of a record whose commit was in doubt: the state it led to, and its output's text."""

    state: str
    output: str
