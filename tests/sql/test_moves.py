"""Every function on a task in every state: an arrow of its header is made, anything else is refused by name or changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from onceflow.db import calls
from tests.database import TestDatabase
from tests.sql.engine_calls import OWN_ERROR, Engine, look, make_silent, sqlstate_of
from tests.sql.headers import DAG_STATES, RUN_STATES, TASK_STATES, Header, read_headers
from tests.sql.states import PUTS, Put

Action = Callable[[Engine, Put], Any]
DUE = "update onceflow.timer set due_at = clock_timestamp() - interval '1 second' where run = %s"
FACTS = "insert into onceflow.wake_up (kind, target_run, target) select kind, target_run, target from onceflow.wait where run = %s"
CLEAR = "truncate " + ", ".join(f"onceflow.{table}" for table in ("ti", "run", "run_key", "ready", "lease", "timer", "wait", "wake_up", "message"))
SNAPSHOT = """
    select jsonb_build_object('ti', (select jsonb_agg(to_jsonb(t) order by t.id) from onceflow.ti t),
        'run', (select jsonb_agg(to_jsonb(r) order by r.id) from onceflow.run r),
        'ready', (select jsonb_agg(to_jsonb(r)) from onceflow.ready r), 'lease', (select jsonb_agg(to_jsonb(l)) from onceflow.lease l),
        'wait', (select jsonb_agg(to_jsonb(w)) from onceflow.wait w), 'entries', (select count(*) from onceflow.step_ledger))"""


def fire_timers(engine: Engine, put: Put) -> None:
    """When all timers of the run are due."""
    engine.db.sql(DUE, put.run)
    engine.fire_timers()


def drain_wake_ups(engine: Engine, put: Put) -> None:
    """When whatever the run waits for has come true."""
    engine.db.sql(FACTS, put.run)
    engine.drain_wake_ups()


def rescue_tasks(engine: Engine, put: Put, max_rescues: int = 5) -> None:
    """When the worker was lost."""
    make_silent(engine.db, engine)
    engine.rescue(max_rescues=max_rescues)


def take_ready(engine: Engine, put: Put) -> None:
    lane = engine.lanes[0]
    text = "select onceflow.take_ready(w, 99, n, null::onceflow.ready, 5) from onceflow.worker w, onceflow.lane n where n.id = %s and w.id = %s"
    engine.sql(text, lane, engine.worker)


def in_step(work: Action) -> Action:
    """The same in the open transaction of a step of the task."""

    def act(engine: Engine, put: Put) -> None:
        engine.begin_step(put.task, "pay#0")
        try:
            work(engine, put)
        except Exception:
            engine.rollback()
            raise
        engine.commit()

    return act


# How to try each function that moves a state, or says that a task must run; several ways where it has several arrows.
ACTIONS: list[tuple[str, str, Action]] = [
    ("cancel_run", "", lambda e, p: e.cancel(p.run)),
    ("claim_tasks", "", lambda e, p: e.claim(5)),
    ("take_ready", "", take_ready),
    ("complete_task", "", lambda e, p: e.complete(p.task)),
    ("complete_step", "", lambda e, p: e.complete_step(p.task, "second-0")),
    ("continue_run", "", lambda e, p: e.call(calls.continue_run(*p.task.owner, "flow", "{}", "h", '{"n": 2}', 0))),
    ("defer_task", "until a message", lambda e, p: e.defer(p.task, ("message", p.run, "never"))),
    ("defer_task", "until a moment passed", lambda e, p: e.defer(p.task, ("time", 0, "2020-01-01T00:00:00Z"))),
    ("drain_wake_ups", "", drain_wake_ups),
    ("end_worker", "", lambda e, p: e.sql("select onceflow.end_worker(%s)", e.worker)),
    ("fail_step", "", lambda e, p: e.fail_step(p.task, "second-0", final=True)),
    ("fail_task", "for good", lambda e, p: e.fail(p.task)),
    ("fail_task", "retry at once", lambda e, p: e.fail(p.task, retry=True)),
    ("fail_task", "retry later", lambda e, p: e.fail(p.task, retry=True, delay_s=60)),
    ("fire_timers", "", fire_timers),
    ("fork_run", "", lambda e, p: e.call(calls.fork_run(p.run, "first-0", "fork", "tester"))),
    ("heartbeat", "holding nothing", lambda e, p: e.heartbeat([])),
    ("receive_message", "none there", lambda e, p: e.receive(p.task, "recv-0", "nothing")),
    ("record_time", "", lambda e, p: e.call(calls.record_time(*p.task.owner, "now-0", "now", "{}", "h", 0.0))),
    ("rescue_tasks", "", rescue_tasks),
    ("rescue_tasks", "too often", lambda e, p: rescue_tasks(e, p, max_rescues=0)),
    ("resolve_commit", "", lambda e, p: e.resolve(p.task)),
    ("resume_task", "", lambda e, p: e.sql("select onceflow.resume_task(%s, %s)", p.run, p.run)),
    ("retry_run", "", lambda e, p: e.retry(p.run)),
    ("run_sql_steps", "", lambda e, p: e.run_sql(p.task, "select 1")),
    ("send_from_step", "", lambda e, p: e.call(calls.send_from_step(*p.task.owner, "send-0", "{}", "h", p.run, "other", "1"))),
    ("send_message", "", lambda e, p: e.send(p.run, "other")),
    ("set_run_event", "", lambda e, p: e.set_event(p.task, "set_event-0", "e")),
    ("start_child", "", lambda e, p: e.start_child(p.task, "flow:start-0")),
    ("start_step", "", lambda e, p: e.call(calls.start_step(*p.task.owner, "second-0", "second", "external", 1, "{}", "h"))),
    ("start_task", "", lambda e, p: e.start_task(p.task, "work:start-0")),
    ("start_task", "outbox", in_step(lambda e, p: e.start_task(p.task, None))),
    ("start_child_in_step", "", in_step(lambda e, p: e.start_child_in_step(p.task, "pay#0/flow:start#0"))),
    ("set_event_in_step", "", in_step(lambda e, p: e.set_event_in_step(p.task, "e"))),
    ("take_message", "none there", in_step(lambda e, p: e.take(p.task, "nothing"))),
    ("stop_run", "", lambda e, p: e.stop_run(p.task, "v0")),
    ("time_out_run", "", lambda e, p: e.sql("select onceflow.time_out_run(%s)", p.run)),
    ("unclaim_tasks", "", lambda e, p: e.unclaim(p.task)),
]
# What makes a new run or task leaves the one that asks as it is.
MAKERS = {"start_run", "start_task", "start_child", "start_child_in_step", "fork_run", "send_message", "resolve_commit"}
# Arrows that need a situation of their own; the name of the test that makes it.
ELSEWHERE = {"start_run", "run_batch", "run_tick", "complete_group"} | {
    *("schedule_runs", "create_backfill", "steer_backfill"),  # test_schedules, test_backfills
    *(
        "admit_runs",
        "plan_runs",
        "expand_task",
        "expand_group",
        "decide_instances",
        "release_tasks",
        "release_next_run",
        "release_waiting",
        "skip_task",
        "open_run",
        "reset_tasks",
        "clear_tasks",
        "mark_task",
        "defer_to_trigger",
        "reschedule_task",
        "fire_triggers",
        "answer_approval",
        "hold_for_past",
        "spread_events",
        "start_dataset_run",
        "emit_outlets",
        "ring_deadlines",
    ),  # of dags: test_dag_runs, test_dag_resets, engine/test_deferral, test_past, test_datasets, test_deadlines
}


def is_allowed(header: Header, task_state: str, run_state: str) -> bool:
    """Does the header name an arrow from here? What comes from nothing is another task than the one that asks."""
    of_task = {before for before, _ in header.task_arrows}
    of_run = {before for before, _ in header.run_arrows}
    return task_state != "none" and task_state in of_task and (not of_run or run_state in of_run)


@pytest.mark.parametrize(("task_state", "run_state"), PUTS, ids=lambda s: s)
def test_every_function_in_every_state(db: TestDatabase, make_engine: Callable[..., Engine], task_state: str, run_state: str) -> None:
    """Each function, tried on a task in this state, does what its header says, and nothing else."""
    wrong = []
    for name, way, action in ACTIONS:
        engine = make_engine()
        put = PUTS[task_state, run_state](engine)
        assert look(db, put.run) == (task_state, run_state), "not put where it should be"
        before = db.sql(SNAPSHOT)
        error = sqlstate_of(partial(action, engine, put))
        judged = judge(read_headers()[name], (task_state, run_state), look(db, put.run), error, before == db.sql(SNAPSHOT))
        wrong += [f"{name} {way}: {judged}"] if judged else []
        db.sql(CLEAR)
        engine.close()
    assert wrong == []


def judge(header: Header, before: tuple[str, str], after: tuple[str, str], error: str | None, is_unchanged: bool) -> str | None:
    """What is wrong with this outcome by the header; None if nothing is."""
    said = f"{before} -> {after}, error {error}"
    if error is not None:
        if error not in header.sqlstates:
            return f"{said}: the header does not name this error"
        if not is_unchanged:
            return f"{said}: raised, but changed something"
        return f"{said}: refused an arrow of the header" if is_allowed(header, *before) else None
    if header.name in MAKERS or not header.task_arrows:
        needs_lease = "OF001" in header.sqlstates and not header.is_race
        if before != after:
            return f"{said}: moved, but the header has no arrow for it"
        return f"{said}: not refused" if needs_lease and before[0] != "running" else None
    if is_allowed(header, *before):
        moved = (before[0], after[0]) in header.task_arrows and (not header.run_arrows or (before[1], after[1]) in header.run_arrows)
        return None if moved else f"{said}: not an arrow of the header"
    if not header.is_race:
        return f"{said}: neither refused nor a race"
    return None if is_unchanged else f"{said}: changed something"


def test_every_function_with_an_arrow_is_tried() -> None:
    """No header has an arrow that no action tries, and no action tries what has no header."""
    tried = {name for name, _, _ in ACTIONS}
    assert {h.name for h in read_headers().values() if h.task_arrows or h.run_arrows} - tried <= ELSEWHERE
    assert tried <= set(read_headers())


def test_every_state_is_reached() -> None:
    """The situations tried hold every state of the vocabulary, of tasks and of runs."""
    assert {task for task, _ in PUTS} == set(TASK_STATES) - set(DAG_STATES)
    assert {run for _, run in PUTS} == set(RUN_STATES)


@pytest.mark.parametrize(("task_state", "run_state"), PUTS, ids=lambda s: s)
def test_start_run_in_every_state(db: TestDatabase, one: Engine, task_state: str, run_state: str) -> None:
    """start_run makes a run where there is none; of a run in any other state it answers the id and changes nothing."""
    run = PUTS[task_state, run_state](one).run
    if task_state == "none":
        assert look(db, one.start())[0] == "queued"
        assert look(db, one.start(delay_s=5))[0] == "scheduled"
        return
    run_id, before = db.sql("select run_id from onceflow.run where id = %s", run)[0][0], db.sql(SNAPSHOT)
    assert one.start(run_id=run_id) == run
    assert db.sql(SNAPSHOT) == before


@pytest.mark.parametrize("member", ["start_step", "complete_step", "fail_step", "complete_task", "fail_task"])
def test_a_batch_is_refused_like_its_members(db: TestDatabase, one: Engine, member: str) -> None:
    """run_batch moves what its members move, and raises what they raise."""
    error = json.dumps(OWN_ERROR)
    rest: dict[str, list[Any]] = {
        "start_step": ["a-0", "a", "external", 1, "{}", "h"],
        "complete_step": ["a-0", "a", "external", 1, "{}", "h", "1", 0],
        "fail_step": ["a-0", "a", "external", 1, "{}", "h", error, True, 0, 0],
        "complete_task": ["flow", "body", "{}", "h", "1", 0],
        "fail_task": ["flow", "body", "{}", "h", error, False, 0, 0],
    }
    put = PUTS["running", "running"](one)
    text = json.dumps([[member, *put.task.owner, *rest[member]]])
    one.call(calls.run_batch(text))
    expected = {"complete_task": "success", "fail_task": "failed"}.get(member, "running")
    assert look(db, put.run)[0] == expected
    if expected == "running":
        one.cancel(put.run)
    assert sqlstate_of(lambda: one.call(calls.run_batch(text))) == "OF001"
    assert sqlstate_of(lambda: one.call(calls.run_batch('[["drop_table", 1, 1, null]]'))) == "OF008"
