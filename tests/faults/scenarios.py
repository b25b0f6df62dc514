"""Faults at a named place, each of which a sound engine survives and one broken engine does not.

A scenario plays until everything should be right, and then asks the checker, which reads the database alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from onceflow.errors import OnceflowError
from tests.database import POLL_S, TestDatabase
from tests.faults import checker
from tests.faults.conftest import FLOWS, TABLES
from tests.processes import Workers
from tests.sql.dag_plans import Node, begin_run, end, register
from tests.sql.engine_calls import BLOCKED, LEASE_S, Engine, Task, make_silent

GOOD = 49


@dataclass
class Play:
    """A database with an engine, raw workers `one` and `two` on it, and real ones if need be."""

    db: TestDatabase
    workers: Workers
    env: dict[str, str]
    engines: list[Engine] = field(default_factory=list)

    def engine(self) -> Engine:
        made = Engine(self.db)
        self.engines.append(made)
        made.register()
        return made

    def start_worker(self) -> None:
        settings = {"ONCEFLOW_POLL_S": "0.2", "ONCEFLOW_LEASE_S": "3", "ONCEFLOW_SUSPEND_AFTER_S": "0.1", "FAULT_GATES": "/nowhere"}
        self.workers.start(FLOWS, concurrency=2 * GOOD, env=self.env | settings)

    def run_workflow(self, name: str, args: str, timeout_s: float = 5) -> None:
        """Start it without telling anybody, and give it its time; what has not come to its end then is for the checker to see."""
        self.db.sql("select onceflow.start_run(%s, %s::jsonb, 'run', notify => false)", name, args)
        with suppress(AssertionError):
            self.db.wait_for("select state from onceflow.run", timeout=timeout_s)

    def write_effect(self, engine: Engine, task: Task, note: str) -> None:
        """An external step's late commit: its effect and its record in one transaction."""
        engine.begin()
        try:
            engine.sql("select set_config('application_name', %s, true)", f"onceflow-step:{engine.worker}:x")
            engine.sql("insert into effect (step, key, note) values ('pay_late', 'k', %s)", note)
            engine.complete_step(task, "pay_late-1")
            engine.commit()
        except OnceflowError:
            engine.rollback()


@contextmanager
def open_play(db: TestDatabase, workers: Workers, env: dict[str, str]) -> Iterator[Play]:
    db.sql(TABLES)
    play = Play(db, workers, env)
    try:
        yield play
    finally:
        for engine in play.engines:
            engine.close()


def end_side_by_side(play: Play, one: Engine, two: Engine, first: Callable[[], object], second: Callable[[], object]) -> None:
    """The second ends while the first has ended and not committed: it waits for it, or does not."""
    one.begin()
    first()
    other = two.later(second)
    while not other.done() and not play.db.sql(BLOCKED, two.pid)[0][0]:
        time.sleep(POLL_S)
    one.commit()
    other.result(20)


def commit_after_a_rescue(play: Play) -> None:
    """Paused past its lease, a worker commits when another is at it."""
    one, two = play.engine(), play.engine()
    held = one.start_and_claim()
    make_silent(play.db, one)
    two.rescue()
    again = two.claim_one()
    play.write_effect(one, held, "of the paused")
    play.write_effect(two, again, "of the rescuer")
    two.complete(again)
    checker.check_nothing_left(play.db)
    checker.check_exactly_once(play.db)


def arrive_side_by_side(play: Play) -> None:
    """The two last upstream tasks of a join end at the same moment."""
    one, two = play.engine(), play.engine()
    nodes = {"a": Node(), "b": Node(), "join": Node(("a", "b"))}
    register(one, nodes)
    register(two, nodes)
    begin_run(one)
    (a,), (b,) = one.claim(1), two.claim(1)
    end_side_by_side(play, one, two, lambda: end(one, a, "success"), lambda: end(two, b, "success"))
    for task in one.claim(5):
        end(one, task, "success")
    checker.check_nothing_left(play.db)
    checker.check_all_succeeded(play.db)


def complete_one(play: Play) -> None:
    """A task ends."""
    one = play.engine()
    one.complete(one.start_and_claim())
    checker.check_nothing_left(play.db)


def be_silent_within_the_lease(play: Play) -> None:
    """A worker is not heard of for most of its lease, and then never again."""
    one, two = play.engine(), play.engine()
    one.start_and_claim()
    for silent_s in (0.6 * LEASE_S, 1.1 * LEASE_S):
        play.db.sql("update onceflow.worker set heartbeat_at = onceflow.now() - make_interval(secs => %s) where id = %s", silent_s, one.worker)
        two.rescue()
        checker.check_rescues(play.db)
    two.complete(two.claim_one())
    checker.check_nothing_left(play.db)


def commit_after_it_was_resolved(play: Play) -> None:
    """A worker is told that its lost attempt was not committed, and does the step again; then the first attempt arrives."""
    one, delayed = play.engine(), play.engine()
    held = one.start_and_claim()
    answer = one.resolve(held, "pay_late-1")
    assert answer["outcome"] == "not_committed"
    play.write_effect(delayed, held, "of the lost attempt")
    again = Task(**{name: getattr(held, name) for name in Task.__slots__} | {"token": answer["token"]})
    play.write_effect(one, again, "of the second")
    one.complete(again)
    checker.check_nothing_left(play.db)
    checker.expect_none(play.db.sql("select * from effect where note <> 'of the second'"), "effects of an attempt that was said to be lost")
    assert play.db.sql("select count(*) from effect") == [(1,)]


def end_last_tasks_side_by_side(play: Play) -> None:
    """The body has ended; its last two tasks end at the same moment."""
    one, two = play.engine(), play.engine()
    body = one.start_and_claim()
    for number in range(2):
        one.start_task(body, f"work:start-{number}")
    one.complete(body)
    first, second = one.claim(2)
    end_side_by_side(play, one, two, lambda: one.complete(first), lambda: two.complete(second))
    one.tick()
    checker.check_nothing_left(play.db)


def retry_what_failed(play: Play) -> None:
    """A step of a run has failed for good, and so the run: it is tried again, and goes well."""
    one = play.engine()
    held = one.start_and_claim()
    one.fail_step(held, "pay-1", True)
    one.fail(held)
    one.retry(held.run)
    again = one.claim_one()
    with suppress(OnceflowError):
        one.complete_step(again, "pay-1")
        one.complete(again)
    checker.check_nothing_left(play.db)
    checker.check_all_succeeded(play.db)


def hear_nothing(play: Play) -> None:
    """Nobody tells an idle worker of a run."""
    play.start_worker()
    for _ in range(2):  # it has made its first claim, and waits
        before = play.db.sql("select heartbeat_at from onceflow.worker")[0][0]
        play.db.wait_for("select heartbeat_at > %s from onceflow.worker", before)
    play.run_workflow("one_payment", '["k"]', timeout_s=3)
    checker.check_nothing_left(play.db)
    checker.check_exactly_once(play.db)


def pay_once(play: Play) -> None:
    """A step pays: no fault at all."""
    play.start_worker()
    play.run_workflow("one_payment", '["k"]')
    checker.check_nothing_left(play.db)
    assert checker.check_exactly_once(play.db) == 1


def poison_a_group(play: Play) -> None:
    """Among 49 good members of a group one fails for good, and one in its first two tries."""
    play.start_worker()
    play.run_workflow("poison_among_many", f'["k", {GOOD}]', timeout_s=20)
    checker.check_nothing_left(play.db)
    effects = checker.check_exactly_once(play.db)
    assert effects == GOOD + 1, f"{effects} effects, not one of each of the {GOOD} and one of the third try of the poison"
    tries = "select to_state, count(*), min(try_number), max(try_number) from onceflow.step_ledger where step_name = %s group by 1 order by 1"
    assert play.db.sql(tries, "pay_poisoned") == [("success", 1, 3, 3), ("up_for_retry", 2, 1, 2)], "the poison did not follow its own retry policy"
    assert play.db.sql(tries, "pay_unless_poisoned") == [("failed", 1, 1, 1), ("success", GOOD, 1, 1)], "others had to do with the poison's failure"


# Each broken engine, what it does not survive, and what the checker then says.
CAUGHT: dict[str, tuple[Callable[[Play], None], str]] = {
    "early_rescue": (be_silent_within_the_lease, "rescued before their lease was over"),
    "group_without_replay": (poison_a_group, "not one of each"),
    "lease_not_dropped": (complete_one, "left in lease"),
    "lost_update_in_join": (arrive_side_by_side, "left in join_count"),
    "no_fence": (commit_after_a_rescue, "another worker than the one that wrote them"),
    "notify_only": (hear_nothing, "left in ready"),
    "retry_in_old_epoch": (retry_what_failed, "left in lease"),
    "run_end_by_siblings": (end_last_tasks_side_by_side, "runs that never ended"),
    "token_not_rotated": (commit_after_it_was_resolved, "said to be lost"),
    "two_commits": (pay_once, "not as many effects as successes"),
}
