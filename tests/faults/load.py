"""The load of the fault run: many kinds of runs, mixed by a seeded dice, and what must have come of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.database import TestDatabase
from tests.faults import checker

POOL, SLOTS = "faults", 7
IN_GROUP, IN_POSTGRES = 30, 30
JOINED = str(sum(range(6)) + 10 + 11 + 12)


@dataclass(frozen=True)
class Kind:
    """A workflow of the mix: how often it comes, how many rows of `effect` it writes, and its arguments."""

    name: str
    weight: int
    effects: int
    args: Callable[[str, Random], list[Any]] = lambda key, dice: [key]
    options: str = "{}"


def transfer_args(key: str, dice: Random) -> list[Any]:
    source, target = dice.sample(range(1, 21), 2)
    return [key, source, target, dice.randrange(1, 100)]


KINDS = (
    Kind("transfer", 12, 2, transfer_args),
    Kind("in_groups", 6, IN_GROUP, lambda key, dice: [key, IN_GROUP]),
    Kind("in_postgres", 6, 1 + IN_POSTGRES, lambda key, dice: [key, IN_POSTGRES]),
    Kind("three_payments", 4, 3),
    Kind("pay_all_ways", 4, 2),
    Kind("map_and_join", 3, 10, lambda key, dice: []),
    Kind("look_again", 2, 1, lambda key, dice: []),
    Kind("tell_and_wait", 3, 1),
    Kind("hear_two", 0, 2),  # started by tell_and_wait
    Kind("by_whom", 4, 0),
    Kind("one_payment", 0, 1),  # started with no notice, when all is idle
    Kind("nap", 2, 1),
    Kind("with_child", 2, 0),
    Kind("child", 0, 1),
    Kind("with_task", 2, 1),
    Kind("third_try", 2, 2),
    Kind("catch_failure", 2, 1),
    Kind("body_fails_once", 2, 1),
)


@dataclass
class Load:
    """Keeps about `open_runs` runs going."""

    db: TestDatabase
    dice: Random
    open_runs: int
    started: int = 0
    pending: list[list[Any]] = field(default_factory=list)

    def prepare(self) -> None:
        """The pool of the dag's tasks. The dags themselves come with the workers."""
        self.db.sql("select onceflow.set_pool(%s, %s)", POOL, SLOTS)

    def feed(self) -> None:
        """Start as many runs as have ended. After a lost reply the same run ids are sent again: they start once."""
        if not self.pending:
            open_now = self.db.sql("select count(*) from onceflow.run where state is null")[0][0]
            self.pending = [self._make_one() for _ in range(self.open_runs - open_now)]
        if self.pending:
            start = "select count(onceflow.start_run(x ->> 0, x -> 1, x ->> 2)) from jsonb_array_elements(%s::jsonb) x"
            self.db.sql(start, json.dumps(self.pending))
            self.started += len(self.pending)
            self.pending = []

    def _make_one(self) -> list[Any]:
        kind = self.dice.choices(KINDS, [kind.weight for kind in KINDS])[0]
        key = f"{kind.name}-{self.dice.getrandbits(60):x}"
        return [kind.name, kind.args(key, self.dice) or {}, key]

    def check(self) -> None:
        """Everything that was started has come to its right end, exactly once; raises AssertionError with what has not."""
        checker.check_nothing_left(self.db)
        checker.check_all_succeeded(self.db)
        runs = dict(self.db.sql("select dag_id, count(*) from onceflow.run group by 1"))
        effects = checker.check_exactly_once(self.db)
        assert effects == sum(kind.effects * runs.get(kind.name, 0) for kind in KINDS), "not as many effects as runs should have"
        checker.check_money(self.db)
        checker.check_joins(self.db, "map_and_join", "join_items", JOINED)
        checker.check_limit(self.db, POOL, SLOTS)
        checker.check_messages(self.db)
        checker.check_workers(self.db, ["tell_pid", "by_whom"])
        checker.check_rescues(self.db)


def is_away(error: Exception) -> bool:
    """Is the server down, or has it ended our session?"""
    return isinstance(error, psycopg.OperationalError)
