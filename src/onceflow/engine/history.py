"""What the ledger already holds of a body: replayed instead of run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceflow.codec import decode, decode_error
from onceflow.engine.causes import mark_cause
from onceflow.engine.record import Record
from onceflow.engine.scopes import Scope
from onceflow.errors import NonDeterminismError

MANY_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One recorded outcome of a step."""

    key: str
    name: str
    kind: str
    state: str
    inputs_hash: str | None
    inputs: str | None
    output: str | None
    error: str | None
    code_version: str | None

    def value(self) -> Any:
        """The recorded result; raises the recorded error."""
        if self.state == "success":
            return decode(self.output)
        raise mark_cause(decode_error(self.error or "null"), self.key)


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries an unfinished step has had: the last number, how many failed (a lost try is no failure), when the next is due."""

    try_number: int = 0
    failures: int = 0
    retry_at: str | None = None


class History:
    """The outcomes of one body, and the number of tries its unfinished steps have had."""

    def __init__(self, data: dict[str, Any] | None = None, strict: bool = True) -> None:
        data = data or {"outcomes": [], "tries": {}}
        self.outcomes: dict[str, Outcome] = {o["key"]: Outcome(**o) for o in data["outcomes"]}
        self._unseen = list(self.outcomes.values())  # not called yet; looked through again and again, so kept short
        self.tries = {key: Tries(**t) for key, t in data["tries"].items()}
        self.base_epoch: int = data.get("base_epoch", 0)
        """Successes since this epoch of the task count."""
        # After retry_run the body may take another branch: what failed before may succeed now.
        self._strict = strict

    def find(self, scope: Scope | None, key: str, name: str, inputs: str, inputs_hash: str) -> Outcome | None:
        """The recorded outcome of this call; None if it has to run. Raises NonDeterminismError naming both calls.

        Without a scope, inside of an external step, calls may be left out.
        """
        found = self.outcomes.get(key)
        if found is None:
            if scope is not None:
                self.check_nothing_skipped(scope, f"{name}({_shorten(inputs)})")
            return None
        if found.inputs_hash is not None and found.inputs_hash != inputs_hash:
            raise NonDeterminismError(f"step {key}: the ledger holds {name}({_shorten(found.inputs)}), this code calls {name}({_shorten(inputs)})")
        return found

    def add(self, record: Record, state: str, text: str) -> None:
        """An outcome of this very claim, which another try of the step around it will ask for."""
        output, error = (text, None) if state == "success" else (None, text)
        self.outcomes[record.key] = Outcome(record.key, record.name, record.kind, state, record.inputs_hash, record.inputs, output, error, None)

    def left_over(self, scope: Scope) -> list[Outcome]:
        """Recorded in this scope or in one below it, but neither called nor begun yet by this replay."""
        self._unseen = [o for o in self._unseen if o.key not in scope.seen]
        return [o for o in self._unseen if (head := scope.head_of(o.key)) is not None and head not in scope.seen]

    def check_nothing_skipped(self, scope: Scope, call: str) -> None:
        """A new call while recorded ones of the same strand were never made: this code left them out.

        Only the strand's own task can tell: a task beside it may well come before calls that are still to be made.
        """
        import asyncio

        if not self._strict or not self.outcomes:
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if scope.owner is not None and task is not scope.owner:
            return
        if missing := self.left_over(scope):
            raise NonDeterminismError(
                f"the ledger holds step {missing[0].key}({_shorten(missing[0].inputs)}), which this code left out: it calls {call} instead"
            )

    def check_all_called(self, seen: set[str]) -> None:
        """At the end of a body: everything recorded must have been called."""
        if not self._strict:
            return
        missing = [o for o in self._unseen if o.key not in seen and not self._is_inside_recorded(o.key)]
        if missing:
            raise NonDeterminismError(f"the ledger holds step {missing[0].key}({_shorten(missing[0].inputs)}), which this code never calls")

    def _is_inside_recorded(self, key: str) -> bool:
        """Does a key belong to a step whose own outcome is recorded, so that nobody calls what lies in it?"""
        return any(key[:i] in self.outcomes for i, letter in enumerate(key) if letter == "/")

    def key_inside(self, key: str, try_number: int, inputs_hash: str) -> str:
        """The key of a call inside an external step, which may take another way on each try: a success of the same inputs is reused; a
        failure is not repeated, and other inputs are another call."""
        if key not in self.outcomes:
            return key
        names = [k for k in self.outcomes if k == key or k.startswith(f"{key}~")]
        for name in names:
            if self.outcomes[name].state == "success" and self.outcomes[name].inputs_hash in (None, inputs_hash):
                return name
        while f"{key}~{try_number}" in names:
            try_number += 1
        return f"{key}~{try_number}"

    def recorded_version(self) -> str | None:
        """The code version that wrote the latest outcome."""
        versions = [o.code_version for o in self.outcomes.values() if o.code_version]
        return versions[-1] if versions else None


def _shorten(text: str | None, limit: int = 120) -> str:
    text = text or ""
    return text if len(text) <= limit else text[: limit - 1] + "…"
