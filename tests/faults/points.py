"""Where a fault can strike: every statement that a worker sends, by name.

There are no hooks in the engine for it: the proxy in front of each worker sees its statements, and knows them by what they call.
A test compares this list with what workers really send, so a new statement without a name here is noticed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from tests.proxy import When

STEPS_OWN = {"begin": b"idle_in_transaction_session_timeout", "effect": b"insert into effect"}
# Written into one statement with others, by name.
BATCHED = ("start_step", "fail_step", "fail_task")
CALLED = (
    "register_worker", "claim_tasks", "heartbeat", "run_tick", "load_history", "complete_step", "complete_task", "defer_task", "record_time", "start_task",
    "start_child", "read_run", "read_task", "check_waits", "receive_message", "send_message", "resolve_commit", "run_batch", "complete_group",
    "run_sql_steps", "read_values", "reschedule_task",
)  # fmt: skip
POINTS: dict[str, bytes] = STEPS_OWN | {name: f'["{name}"'.encode() for name in BATCHED} | {name: f"onceflow.{name}(".encode() for name in CALLED}
# What only wakes others sooner, or stands in a statement that has a name here.
UNNAMED = {"wake_workers", "check_mark", "refuse_commit", "encode_value", "take_callbacks", "end_worker", "unclaim_tasks"}
CALL = re.compile(rb"onceflow\.(\w+)\(|\[\"(\w+)\", \d")


def find_unnamed(text: bytes) -> set[str]:
    """What a statement calls that has no name here."""
    return {(called or batched).decode() for called, batched in CALL.findall(text)} - set(POINTS) - UNNAMED


ACTS = ("kill", "stop", "end_session", "lose")
OFTEN = ("kill", "stop")  # dealt twice
MOMENTS: tuple[When, ...] = ("before", "answered")


@dataclass(frozen=True)
class Strike:
    """What is to happen at which statement: before the server gets it, or after it has run it and before its reply."""

    point: str
    when: When
    act: str

    def __str__(self) -> str:
        return f"{self.act} {self.when} {self.point}"


class Deck:
    """All strikes in a seeded order; a new round begins when each has been dealt, and the hard ones twice."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._all = [Strike(point, when, act) for point in POINTS for when in MOMENTS for act in ACTS]
        self._all += [Strike(point, "held", "arrive_late") for point in POINTS]
        self._left: list[Strike] = []

    def __len__(self) -> int:
        return len(self._all)

    def deal(self) -> Strike:
        if not self._left:
            cards = self._all + [strike for strike in self._all if strike.act in OFTEN]
            self._left = self._dice.sample(cards, len(cards))
        return self._left.pop()

    def put_back(self, strike: Strike) -> None:
        """It did not happen: it comes last in this round."""
        self._left.insert(0, strike)
