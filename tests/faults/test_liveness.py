"""Who works is alive: computing steps are not rescued, idle transactions are named, a drained worker burns nothing."""

from __future__ import annotations

import signal

import pytest

from tests.faults.checker import count_entries
from tests.faults.conftest import FLOWS, Stage, wait_until
from tests.proxy import Link, Proxy

LEASE_S = 2.0
BODIES = ("one_payment", "nap", "body_fails_once")
ENDS = {  # a task's end: what to start, and what the message that commits it holds
    "step": ("pay", b"complete_task"),
    "blocking step": ("pay_blocking", b"complete_task"),
    "sql step": ("pay_sql", b"run_sql_steps"),
    "external step": ("fetch", b"complete_task"),
    "late commit": ("pay_late", b"complete_task"),
    "body": ("one_payment", b"complete_task"),
    "body that waits": ("nap", b"defer_task"),
    "body that fails": ("body_fails_once", b"fail_task"),
    "group": ("pay_in_group", b"complete_group"),
    "group of SQL": ("pay_sql_in_group", b"run_sql_steps"),
}


def test_a_step_that_computes_for_twice_its_lease_is_not_rescued(stage: Stage) -> None:
    """Pure Python loops that hold the interpreter, in async and def steps, transactional and external, one of which blocks
    the event loop: the heartbeat goes on from its own thread, and another worker that looks finds nobody dead."""
    first = stage.start_worker(lease_s=LEASE_S)
    names = ["burn", "burn_blocking", "burn_external", "burn_external_blocking"]
    # In one transaction, so that one claim takes all: the first one blocks the worker's event loop.
    sql = "select onceflow.start_run(name, jsonb_build_array(name, %s::float8), name, task_kind => 'step') from unnest(%s::text[]) name"
    stage.db.sql(sql, 2 * LEASE_S, names)
    stage.runs += [stage.client.find(name, name) for name in names]
    stage.db.wait_for("select count(*) = 4 from onceflow.lease")
    stage.start_worker(lease_s=LEASE_S)
    assert stage.check() == 2
    assert count_entries(stage.db, "rescued") == 0
    assert stage.db.sql("select distinct worker from onceflow.step_ledger") == [(stage.worker_id(first),)]


def test_sigterm_lets_steps_end_and_gives_back_what_waits(stage: Stage) -> None:
    """SIGTERM: running steps finish and commit, waiting bodies are unclaimed, no try is burnt, exit code 0; another worker
    goes on at once, without a rescue."""
    first = stage.start_worker(concurrency=8, suspend_after_s=60)
    inside = [stage.start(name, name, "in-step") for name in ("one_payment", "one_payment_blocking", "one_late_payment")]
    inside.append(stage.start_step("pay", "task", "in-step"))
    waiting = [stage.start("wait_message", f"waiting-{number}") for number in range(2)]
    stage.gates.wait_for("in-step", 4)
    stage.db.wait_for("select count(*) = 6 from onceflow.lease")
    first.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "drain" in first.log_text(), "the drain in the log")
    late = stage.start("one_payment", "late")
    stage.gates.open("in-step")
    assert first.process.wait(20) == 0
    for run in inside:
        assert run.state == "success"
    assert stage.db.sql("select count(*) from onceflow.lease") == [(0,)]
    assert stage.db.sql("select count(*) from onceflow.ready") == [(3,)]
    stage.start_worker()
    for run in waiting:
        run.send("now", topic="go")
    late.result(20)
    assert stage.check() == 7
    assert stage.db.sql("select distinct try_number from onceflow.ti") == [(1,)]
    assert count_entries(stage.db, "rescued") + count_entries(stage.db, "failed") == 0


def test_a_worker_told_to_stop_while_it_registers_ends_in_order(stage: Stage) -> None:
    """SIGTERM that comes as soon as others can know of the worker, or sooner: exit code 0, and it is not counted as alive."""
    with stage.db.connect() as holder:
        holder.execute("begin")
        holder.execute("lock table onceflow.worker")
        worker = stage.workers.start(FLOWS, wait_ready=False)
        stage.db.wait_for("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%%register_worker%%'")
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in worker.log_text(), "the drain in the log")
        holder.execute("commit")
    assert worker.process.wait(20) == 0
    assert stage.db.sql("select count(*) from onceflow.worker where ended_at is null") == [(0,)]


def test_what_does_not_end_within_the_drain_is_given_back(stage: Stage) -> None:
    """Past drain_s a running step is rolled back and its task unclaimed: the worker still exits with 0, and no try is burnt."""
    first = stage.start_worker(drain_s=0.5)
    for name in ("one_payment", "one_payment_blocking", "one_late_payment"):
        stage.start(name, name, "in-step")
    stage.gates.wait_for("in-step", 3)
    assert first.terminate(timeout=20) == 0
    assert stage.db.sql("select count(*) from onceflow.ready") == [(3,)]
    stage.gates.open("in-step")
    stage.start_worker()
    assert stage.check() == 3
    assert stage.db.sql("select distinct try_number from onceflow.ti") == [(1,)]
    assert count_entries(stage.db, "rescued") == 0


@pytest.mark.parametrize("workflow", ["idle", "idle_blocking", "idle_late"])
def test_an_idle_transaction_is_ended_with_a_named_error(stage: Stage, workflow: str) -> None:
    """A step that computes inside its transaction for longer than step_idle_s fails as StepIdle, which names the setting
    and the remedy; its writes are gone."""
    stage.start_worker(step_idle_s=0.5)
    run = stage.start(workflow, "idle", "in-step")
    stage.gates.wait_for("in-step")
    stage.db.wait_for("select not exists (select from pg_stat_activity where application_name like 'onceflow-step:%%' and state like 'idle in trans%%')")
    stage.gates.open("in-step")
    message = run.result(20)
    assert "StepIdle" in str(stage.db.sql("select error ->> '$error' from onceflow.step_ledger where to_state = 'failed'"))
    assert "step_idle_s (0.5 s)" in message and "commit_with" in message and "rolled back" in message
    assert stage.check() == 0


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_whose_reply_is_late_is_no_lost_lease(stage: Stage, kind: str) -> None:
    """A task's end has committed, so its lease is gone, and the worker's heartbeats say so before the reply does: nothing is lost, and the task
    goes on as if the reply had come at once."""
    name, needle = ENDS[kind]
    with Proxy(stage.db.superuser_dsn) as proxy:
        dsns = {"dsn": proxy.dsn(stage.db.worker_dsn), "step_dsn": proxy.dsn(stage.db.step_dsn)}
        worker = stage.start_worker(lease_s=1, suspend_after_s=0, **dsns)
        beat = "select heartbeat_at from onceflow.worker"

        def wait_for_two_beats(_: Link) -> bool:
            """The second is sent when the first's answer has been taken in."""
            for _ in range(2):
                before = stage.db.sql(beat)
                wait_until(lambda before=before: stage.db.sql(beat) != before, "a heartbeat")
            return True

        fault = proxy.cut_next(needle, when="answered", act=wait_for_two_beats)
        keys = ["late-1", "late-2"] if "group" in kind else ["late-1"]
        sql = "select onceflow.start_run(%s, jsonb_build_array(key), key, task_kind => %s) from unnest(%s::text[]) key"
        stage.db.sql(sql, name, "body" if name in BODIES else "step", keys)
        stage.runs += [stage.client.find(key, name) for key in keys]
        stage.check()
        fault.wait()
        for key in keys:
            what = f"task={name}/{key}/{name}"
            wait_until(lambda what=what: what in worker.log_text(), f"the end of {what} in the log")
    assert "LeaseLost" not in worker.log_text()


@pytest.mark.parametrize("suspend_after_s", [0, 60])
def test_the_end_of_a_detached_task_is_told_to_the_worker_that_waits(stage: Stage, suspend_after_s: float) -> None:
    """A task that a step has started ends on another worker than the body that waits for it: the body goes on at once, in memory or not, and
    not by the next poll."""
    options = {"poll_s": 60, "lease_s": 400, "suspend_after_s": suspend_after_s}  # no tick comes by itself
    stage.start_worker(concurrency=1, **options)
    stage.start("await_outbox", "outbox", "in-step")
    stage.gates.wait_for("in-step")
    blocker = stage.start("long_external", "blocker", "blocked", priority=10)
    stage.gates.open("in-step")
    stage.gates.wait_for("blocked")  # the one slot, which the waiting body has given up
    stage.start_worker(concurrency=1, **options)
    stage.runs[0].result(20)
    stage.gates.open("blocked")
    blocker.result(20)
    assert stage.check() == 2
