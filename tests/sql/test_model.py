"""Random moves against a simple model: whatever happens in whatever order, no task is lost and none is in two places."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, make_silent, move_clock, sqlstate_of, stop_clock
from tests.sql.model import ENDED, Model, ModelTask

DATA = "step_ledger, ti, run, run_key, ready, lease, timer, wait, wake_up, message, message_key, worker"
DELAYS = st.sampled_from([0.0, 5.0, 20.0])
PLACES = """
    select t.id, coalesce(t.state, ''), (select count(*) from onceflow.ready where ti = t.id), (select count(*) from onceflow.lease where ti = t.id),
        (select count(*) from onceflow.timer where ti = t.id and kind in ('start', 'retry')),
        (select count(*) from onceflow.timer where ti = t.id and kind = 'wait'),
        (select count(*) from onceflow.wait where ti = t.id), coalesce((select entries from onceflow.lease where ti = t.id), t.entries),
        (select count(*) from onceflow.step_ledger where ti = t.id), t.try_number, t.rescues
    from onceflow.ti t"""
STRAYS = "select 'ready', ti from onceflow.ready union all select 'lease', ti from onceflow.lease union all select 'timer', ti from onceflow.timer"


class Moves(RuleBasedStateMachine):
    """Each rule makes a move in the database and in the model; the invariants compare the two."""

    db: ClassVar[TestDatabase]
    engine: ClassVar[Engine]

    @initialize()
    def begin(self) -> None:
        self.db.sql("truncate " + ", ".join(f"onceflow.{table}" for table in DATA.split(", ")))
        self.db.sql("update onceflow.sealer set last_seal = 0")
        self.engine.register()
        self.model = Model()
        self.steps = 0
        self.stale: list[Any] = []

    def pick(self, data: Any, tasks: list[ModelTask]) -> ModelTask:
        return data.draw(st.sampled_from(tasks), label="task")  # type: ignore[no-any-return]

    @rule(retries=st.integers(0, 2), delay=DELAYS)
    def start(self, retries: int, delay: float) -> None:
        # A date of our own: those that start_run makes up would let claims take other tasks in a repetition of the same moves.
        date = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=len(self.model.runs))
        self.model.start(self.engine.start(retries=retries, delay_s=delay, logical_date=date.isoformat()), retries, delay)

    @rule(retries=st.integers(0, 2), tasks=st.integers(0, 2), wait=st.sampled_from(["no", "message", "task"]), delay=DELAYS)
    def start_many(self, retries: int, tasks: int, wait: str, delay: float) -> None:
        """The usual beginning at one go: a run, its tasks, all claimed, and the body may wait."""
        self.start(retries, 0.0)
        run = self.model.runs[-1]
        self.claim(50)
        for _ in range(tasks):
            self.steps += 1
            self.model.start_task(run.body, self.engine.start_task(run.body.claim, f"work:start-{self.steps}", retries), retries, 0.0)  # type: ignore[arg-type]
        self.claim(50)
        if wait == "message" or (wait == "task" and tasks):
            self.suspend(run.body, ("message", "t") if wait == "message" else ("task", str(run.tasks[1].ti)), delay)

    @precondition(lambda self: any(t.is_body for t in self.model.in_state("running")))
    @rule(data=st.data(), retries=st.integers(0, 2), delay=DELAYS)
    def start_task(self, data: Any, retries: int, delay: float) -> None:
        body = self.pick(data, [t for t in self.model.in_state("running") if t.is_body])
        self.steps += 1
        self.model.start_task(body, self.engine.start_task(body.claim, f"work:start-{self.steps}", retries, delay), retries, delay)  # type: ignore[arg-type]

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        expected = [r[0] for r in self.db.sql("select ti from onceflow.ready order by rank, logical_date, seq limit %s", limit)]
        claimed = self.engine.claim(limit)
        assert sorted(t.ti for t in claimed) == sorted(expected), "not the first in order, or not as many as asked for"
        self.model.claim(claimed)
        self.stale += claimed

    @precondition(lambda self: self.model.in_state("running"))
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        task = self.pick(data, self.model.in_state("running"))
        self.engine.complete(task.claim)  # type: ignore[arg-type]
        task.tries += 1
        task.end("success")

    @precondition(lambda self: self.model.in_state("running"))
    @rule(data=st.data(), retry=st.booleans(), delay=DELAYS)
    def fail(self, data: Any, retry: bool, delay: float) -> None:
        task = self.pick(data, self.model.in_state("running"))
        assert self.engine.fail(task.claim, retry, delay) == self.model.fail(task, retry, delay)  # type: ignore[arg-type]

    @precondition(lambda self: self.model.in_state("running"))
    @rule(data=st.data())
    def unclaim(self, data: Any) -> None:
        task = self.pick(data, self.model.in_state("running"))
        assert self.engine.unclaim(task.claim) == 1  # type: ignore[arg-type]
        task.queue()

    @rule(max_rescues=st.sampled_from([0, 1, 5]), claims_again=st.booleans())
    def rescue(self, max_rescues: int, claims_again: bool) -> None:
        make_silent(self.db, self.engine)
        self.engine.rescue(max_rescues=max_rescues)
        self.model.rescue(max_rescues)
        move_clock(self.db, 0)
        if claims_again:
            self.claim(50)

    @precondition(lambda self: any(t.is_body for t in self.model.in_state("running")))
    @rule(data=st.data(), message=st.booleans(), delay=DELAYS)
    def defer(self, data: Any, message: bool, delay: float) -> None:
        body = self.pick(data, [t for t in self.model.in_state("running") if t.is_body])
        others = [("task", str(t.ti)) for t in body.run.tasks[1:]]
        self.suspend(body, ("message", "t") if message or not others else data.draw(st.sampled_from(others), label="awaited"), delay)

    def suspend(self, body: ModelTask, wait: tuple[str, str], delay: float) -> None:
        """Defer a body until a fact is there, or until a time limit too."""
        due = self.model.now + delay if delay else None
        moment = self.db.sql("select (at + make_interval(secs => %s))::text from public.clock", delay)[0][0]
        self.engine.defer(body.claim, (wait[0], body.run.run, wait[1]), *([("time", 0, moment)] if delay else []))  # type: ignore[arg-type]
        self.model.defer(body, [wait], due)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def send(self, data: Any) -> None:
        run = data.draw(st.sampled_from(self.model.runs), label="run")
        self.engine.send(run.run, "t")
        run.messages += 1

    @rule(seconds=st.sampled_from([0.0, 5.0, 30.0]))
    def tick(self, seconds: float) -> None:
        move_clock(self.db, seconds)
        self.model.now += seconds
        self.engine.fire_timers()
        self.engine.drain_wake_ups()
        self.model.fire_timers()
        self.model.drain_wake_ups()

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        run = data.draw(st.sampled_from(self.model.runs), label="run")
        error = sqlstate_of(lambda: self.engine.cancel(run.run))
        assert error == ("OF005" if run.state in ("success", "failed") else None)
        if run.state is None:
            self.model.cancel(run)

    @precondition(lambda self: any(r.state for r in self.model.runs))
    @rule(data=st.data())
    def retry(self, data: Any) -> None:
        run = data.draw(st.sampled_from([r for r in self.model.runs if r.state]), label="run")
        error = sqlstate_of(lambda: self.engine.retry(run.run))
        assert error == ("OF005" if run.state == "success" else None)
        if error is None:
            self.model.retry(run)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def come_late(self, data: Any) -> None:
        """Whoever holds a token that is not the present one can end nothing."""
        present = {t.claim.token for t in self.model.in_state("running") if t.claim}
        if old := [t for t in self.stale if t.token not in present]:
            task = data.draw(st.sampled_from(old), label="stale")
            assert sqlstate_of(lambda: self.engine.complete(task)) == "OF001"

    @invariant()
    def every_task_is_in_one_place(self) -> None:
        expected = {task.ti: task for task in self.model.tasks}
        rows = self.db.sql(PLACES)
        assert {row[0] for row in rows} == set(expected)
        for ti, state, ready, lease, timer, wait_timer, wait, counted, entries, tries, rescues in rows:
            task = expected[ti]
            places = {"ready": ready, "lease": lease, "timer": timer, "wait": int(state == "deferred")}
            assert {name for name, count in places.items() if count} == ({task.home} if task.home else set()), (task, places)
            assert max(places.values()) <= 1
            assert state == (task.state if task.state in (*ENDED, "deferred") else ""), task
            assert (wait_timer + wait > 0) == (task.state == "deferred"), "asleep with nothing to wake it, or awake and waiting"
            assert counted == entries, "the ledger holds another number of entries than the task has counted"
            assert (tries, rescues) == (task.tries, task.rescues)
        assert {ti for _, ti in self.db.sql(STRAYS)} <= set(expected)

    @invariant()
    def runs_end_when_they_should(self) -> None:
        assert dict(self.db.sql("select id, state from onceflow.run")) == {run.run: run.state for run in self.model.runs}

    def teardown(self) -> None:
        """Nothing is stuck: given time, messages and workers, every run comes to its end. And the ledger agrees."""
        if not hasattr(self, "model"):
            return
        for run in self.model.runs:
            if run.state is None:
                self.engine.send(run.run, "t")
        for _ in range(20):
            move_clock(self.db, 100)
            self.engine.fire_timers()
            self.engine.drain_wake_ups()
            for task in [*self.engine.claim(50), *(t.claim for t in self.model.in_state("running") if t.claim)]:
                sqlstate_of(partial(self.engine.complete, task))
            if self.db.sql("select count(*) from onceflow.run where state is null") == [(0,)]:
                break
        assert self.db.sql("select id from onceflow.run where state is null") == [], self.db.dump()
        assert self.db.sql("select * from onceflow.verify_ledger()") == []


def test_no_work_is_lost(db: TestDatabase, one: Engine) -> None:
    """Starts, claims, ends, retries, rescues, cancels, waits, wake-ups and a moving clock, in any order, agree with the model after every step."""
    stop_clock(db)
    Moves.db, Moves.engine = db, one
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    # Without shrinking, which would take minutes: the moves of a failure are printed as they were.
    phases = [Phase.explicit, Phase.generate]
    run_state_machine_as_test(Moves, settings=settings(max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=checks, phases=phases))
