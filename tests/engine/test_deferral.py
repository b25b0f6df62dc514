"""Tasks that wait without a slot: deferred to triggers, and as sensors in their three modes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.engine.local_worker import FLOWS, Engine, wait_until
from tests.processes import WorkerProcess, start_process, worker_environment

DAGS = FLOWS / "deferral_flows.py"
LEASE_S = "2"


def start_triggerer(engine: Engine) -> WorkerProcess:
    """An `onceflow triggerer`; it ends with the module's workers."""
    log = engine.folder / f"triggerer-{len(engine.workers.started)}.log"
    environment = {**worker_environment(engine.db), "ONCEFLOW_LEASE_S": LEASE_S, "ONCEFLOW_POLL_S": "0.3"}
    process = start_process([sys.executable, "-m", "onceflow", "triggerer", "--dags", str(DAGS)], env=environment, log=log)
    engine.workers.started.append(process)
    engine.db.wait_for("select count(*) from onceflow.triggerer where pid = %s", process.pid, timeout=30, unless=process._exit_report)
    return process


@pytest.fixture(scope="module")
def triggerer(engine: Engine) -> Iterator[WorkerProcess]:
    yield start_triggerer(engine)


def start(engine: Engine, dag_id: str, **params: Any) -> int:
    return int(engine.db.sql("select (onceflow.start_run(%s, %s::jsonb) ->> 'run')::bigint", dag_id, json.dumps(params))[0][0])


def await_end(engine: Engine, run: int, timeout: float = 30) -> str:
    return str(engine.db.wait_for("select state from onceflow.run where id = %s", run, timeout=timeout))


def states(engine: Engine, run: int) -> dict[str, str]:
    return dict(engine.db.sql("select task_id, state from onceflow.task_instance where run = %s", run))


def output(engine: Engine, run: int, task_id: str) -> Any:
    return engine.db.sql("select output from onceflow.step_ledger where dag_run = %s and task_id = %s and final", run, task_id)[0][0]


def error(engine: Engine, run: int, task_id: str) -> tuple[str, str]:
    return engine.db.sql(
        "select error ->> '$error', error ->> 'message' from onceflow.step_ledger where dag_run = %s and task_id = %s and final", run, task_id
    )[0]


def wait_deferred(engine: Engine, run: int) -> None:
    engine.db.wait_for("select count(*) from onceflow.task_instance where run = %s and state = 'deferred'", run)


def test_an_operator_goes_on_with_the_event(engine: Engine, triggerer: WorkerProcess) -> None:
    """While it is deferred it holds no lease; what it wrote before is gone; it goes on in the same try, once."""
    gate = engine.make_gate()
    run = start(engine, "deferred_operator", path=str(gate))
    wait_deferred(engine, run)
    assert engine.db.sql("select count(*) from onceflow.lease where run = %s", run) == [(0,)]
    assert (
        engine.db.sql("select classpath, kwargs, triggerer_id is not null or true from onceflow.trigger where run = %s", run)[0][0]
        == "deferral_flows:GateTrigger"
    )
    gate.write_text("open")
    assert await_end(engine, run) == "success"
    assert output(engine, run, "wait")[0] == "open" and output(engine, run, "wait")[2] == 1
    (run_id,) = engine.db.sql("select run_id from onceflow.run where id = %s", run)[0]
    assert engine.db.sql("select note from effect where what = %s", run_id) == [("open",)]
    assert engine.db.sql("select state, event, classpath from onceflow.deferred_event where run_id = %s", run_id) == [
        ("fired", "open", "deferral_flows:GateTrigger")
    ]
    assert engine.db.sql("select count(*) from onceflow.verify_ledger()") == [(0,)]


def test_a_function_is_called_again_with_the_event(engine: Engine, triggerer: WorkerProcess) -> None:
    gate = engine.make_gate()
    run = start(engine, "deferred_function", path=str(gate))
    wait_deferred(engine, run)
    gate.write_text("it")
    assert await_end(engine, run) == "success"
    assert output(engine, run, "ask") == "saw it"


def test_the_time_limit_of_a_wait(engine: Engine, triggerer: WorkerProcess) -> None:
    """Each of its two tries fails with WaitTimeout, and nothing of the trigger is left."""
    run = start(engine, "deferred_for_a_moment", path="/nowhere")
    assert await_end(engine, run) == "failed"
    assert error(engine, run, "wait")[0] == "onceflow.errors:WaitTimeout"
    assert engine.db.sql("select try_number from onceflow.task_instance where run = %s", run) == [(2,)]
    assert engine.db.sql("select count(*) from onceflow.trigger where run = %s", run) == [(0,)]
    assert engine.db.sql("select count(*) from onceflow.timer where run = %s", run) == [(0,)]


def test_the_time_limit_of_the_try_goes_on_while_it_waits(engine: Engine, triggerer: WorkerProcess) -> None:
    run = start(engine, "deferred_past_its_limit", path="/nowhere")
    assert await_end(engine, run) == "failed"
    assert error(engine, run, "wait")[0] == "onceflow.errors:StepTimeout"
    took = engine.db.sql("select extract(epoch from end_date - start_date)::float8 from onceflow.task_instance where run = %s", run)[0][0]
    assert 1 <= took < 5


@pytest.mark.parametrize(("how", "told"), [("raise", "ValueError: no such thing"), ("unrecordable", "EncodingError"), ("nothing", "ended without an event")])
def test_a_trigger_that_fails_fails_the_try(engine: Engine, triggerer: WorkerProcess, how: str, told: str) -> None:
    run = start(engine, "broken_trigger", how=how)
    assert await_end(engine, run) == "failed"
    name, message = error(engine, run, "ask_broken")
    assert name == "onceflow.errors:TriggerFailed" and told in message


def test_a_trigger_that_blocks_the_loop_is_named(engine: Engine, triggerer: WorkerProcess) -> None:
    run = start(engine, "broken_trigger", how="block")
    assert await_end(engine, run) == "success"
    wait_until(lambda: "deferral_flows:Broken blocks the event loop" in triggerer.log_text(), 10)


def test_sensors_in_three_modes(engine: Engine, triggerer: WorkerProcess) -> None:
    """All see the file; only the poking one holds a lease meanwhile, and the rescheduled one has an entry for each look."""
    gate = engine.make_gate()
    run = start(engine, "sensors", path=str(gate))
    wait_deferred(engine, run)
    engine.db.wait_for("select count(*) >= 2 or null from onceflow.step_ledger where dag_run = %s and to_state = 'up_for_reschedule'", run)
    engine.db.wait_for("select state = 'up_for_reschedule' or null from onceflow.task_instance where run = %s and task_id = 'reschedule'", run)
    gate.write_text("there")
    assert await_end(engine, run) == "success"
    assert [output(engine, run, mode) for mode in ("poke", "reschedule", "deferrable")] == ["there"] * 3
    assert engine.db.sql("select distinct try_number from onceflow.task_instance where run = %s", run) == [(1,)]
    assert engine.db.sql("select count(*) from onceflow.verify_ledger()") == [(0,)]


def test_sensors_that_wait_in_vain(engine: Engine, triggerer: WorkerProcess) -> None:
    """They fail for good, whatever their retries; with soft_fail they are skipped."""
    run = start(engine, "sensors_in_vain")
    assert await_end(engine, run) == "failed"
    for mode in ("poke", "reschedule", "deferrable"):
        assert states(engine, run)[mode] == "failed" and states(engine, run)[f"{mode}_soft"] == "skipped"
        assert error(engine, run, mode)[0] == "onceflow.errors:SensorTimeout"
    assert engine.db.sql("select max(try_number) from onceflow.task_instance where run = %s", run) == [(1,)]


def test_a_function_as_a_sensor(engine: Engine) -> None:
    run = start(engine, "function_sensor")
    (run_id,) = engine.db.sql("select run_id from onceflow.run where id = %s", run)[0]
    engine.db.wait_for("select count(*) from onceflow.step_ledger where dag_run = %s and to_state = 'up_for_reschedule'", run)
    engine.db.sql("insert into effect (what, note) values (%s, 'x')", run_id)
    assert await_end(engine, run) == "success"


def test_two_triggerers_of_which_one_is_killed(engine: Engine, triggerer: WorkerProcess) -> None:
    """Triggers that fire at once, while a triggerer is killed: each task resumes once, in its first try."""
    second = start_triggerer(engine)
    run = start(engine, "deferred_many", count=120)
    engine.db.wait_for("select count(*) > 20 or null from onceflow.step_ledger where dag_run = %s and to_state = 'deferred'", run)
    second.kill()
    assert await_end(engine, run, 60) == "success"
    tis = "select count(*), min(try_number), max(try_number) from onceflow.task_instance where run = %s and task_id = 'ask_at_once'"
    assert engine.db.sql(tis, run) == [(120, 1, 1)]
    resumed = "select count(*), count(distinct ti) from onceflow.step_ledger where dag_run = %s and from_state = 'deferred' and to_state = 'queued'"
    assert engine.db.sql(resumed, run) == [(120, 120)]
    assert engine.db.sql("select count(*) from onceflow.trigger where run = %s", run) == [(0,)]


@pytest.mark.parametrize("act", ["cancel", "clear"])
def test_what_is_deferred_is_taken_back(engine: Engine, triggerer: WorkerProcess, act: str) -> None:
    """A cancelled run leaves no trigger; a cleared task begins anew, and an event for the old wait reaches nobody."""
    gate = engine.make_gate()
    run = start(engine, "deferred_operator", path=str(gate))
    wait_deferred(engine, run)
    (trigger,) = engine.db.sql("select id from onceflow.trigger where run = %s", run)[0]
    if act == "cancel":
        engine.db.sql("select onceflow.cancel_run(%s, 'enough', 'me')", run)
        assert engine.db.sql("select count(*) from onceflow.trigger where run = %s", run) == [(0,)]
        assert engine.db.sql("select state from onceflow.run where id = %s", run) == [("cancelled",)]
        return
    (run_id,) = engine.db.sql("select run_id from onceflow.run where id = %s", run)[0]
    engine.db.sql("select * from onceflow.clear_tasks('deferred_operator', run_id => %s)", run_id)
    engine.db.wait_for("select id from onceflow.trigger where run = %s and id <> %s", run, trigger)
    gate.write_text("late")
    assert await_end(engine, run) == "success"
    assert output(engine, run, "wait")[0] == "late"


def test_files_and_rows(engine: Engine, triggerer: WorkerProcess) -> None:
    """The sensors that come along for a file and for a query, looked for by the triggerer."""
    gate = engine.make_gate()
    run = start(engine, "file_and_sql", path=str(gate))
    wait_deferred(engine, run)
    gate.write_text("x")
    (run_id,) = engine.db.sql("select run_id from onceflow.run where id = %s", run)[0]
    engine.db.sql("insert into effect (what, note) values (%s, 'x')", run_id)
    assert await_end(engine, run) == "success"
    assert output(engine, run, "file") == [str(gate)] and output(engine, run, "rows") == 1


def test_moments_need_no_triggerer(engine: Engine) -> None:
    run = start(engine, "moments")
    assert await_end(engine, run) == "success"
    assert engine.db.sql("select count(*) from onceflow.deferred_event where run_id = (select run_id from onceflow.run where id = %s)", run) == [(0,)]


def test_a_task_and_a_run_of_another_dag(engine: Engine, triggerer: WorkerProcess) -> None:
    """They are awaited by logical date; a run that never was is waited for in vain."""
    moment = "2026-03-01T00:00:00Z"
    gate = engine.make_gate()
    text = "select (onceflow.start_run(%s, %s::jsonb, logical_date => %s) ->> 'run')::bigint"
    (waiting,) = engine.db.sql(text, "awaiting_another", "{}", moment)[0]
    engine.db.wait_for("select count(*) >= 2 or null from onceflow.step_ledger where dag_run = %s and to_state = 'up_for_reschedule'", waiting)
    (other,) = engine.db.sql(text, "sensors", json.dumps({"path": str(gate)}), moment)[0]
    gate.write_text("x")
    assert await_end(engine, other) == "success" and await_end(engine, waiting) == "success"
    assert states(engine, waiting) == {"task": "success", "run": "success", "earlier": "skipped"}


def test_what_cannot_come_is_told_at_once(engine: Engine) -> None:
    run = start(engine, "awaiting_nobody")
    assert await_end(engine, run) == "failed"
    assert "there is no dag no_such_dag" in error(engine, run, "dag")[1] and "has no task no_such_task" in error(engine, run, "task")[1]


def ask(engine: Engine, dag_id: str = "asking") -> int:
    run = start(engine, dag_id)
    wait_deferred(engine, run)
    return run


def test_a_person_approves(engine: Engine) -> None:
    """Only who is asked may answer, with one of the options, once; the ledger says who. No triggerer has a part in it."""
    run = ask(engine)
    answer = "select onceflow.answer_approval(%s, %s, %s, actor => %s, comment => 'fine')"
    for wrong, told in [
        ((run, "ask", "maybe", "ann"), "no answer"),
        ((run, "ask", "approve", "bob"), "not asked"),
        ((run, "other", "approve", "ann"), "asks nothing"),
    ]:
        with pytest.raises(psycopg.Error, match=told):
            engine.db.sql(answer, *wrong)
    engine.db.sql(answer, run, "ask", "approve", "ann")
    with pytest.raises(psycopg.Error, match="not waiting"):
        engine.db.sql(answer, run, "ask", "reject", "ann")
    assert await_end(engine, run) == "success"
    assert output(engine, run, "ask")["answer"] == "approve"
    assert engine.db.sql("select actor, output ->> 'answer' from onceflow.step_ledger where dag_run = %s and kind = 'human'", run) == [("ann", "approve")]
    assert engine.db.sql("select count(*) from onceflow.verify_ledger()") == [(0,)]


def test_a_person_rejects(engine: Engine) -> None:
    run = ask(engine)
    engine.db.sql("select onceflow.answer_approval(%s, 'ask', 'reject', actor => 'bob', roles => '{treasury}')", run)
    assert await_end(engine, run) == "failed"
    assert "bob answered reject" in error(engine, run, "ask")[1]


def test_nobody_answers(engine: Engine) -> None:
    """After the timeout the default counts; without one the task fails."""
    run = start(engine, "asking_for_a_moment")
    assert await_end(engine, run) == "success" and output(engine, run, "ask")["answer"] == "approve"
    run = start(engine, "asking_in_vain")
    assert await_end(engine, run) == "failed" and error(engine, run, "ask")[0] == "onceflow.errors:WaitTimeout"


def test_an_answer_beside_the_timeout(engine: Engine) -> None:
    """Answers that come about when the time is over: one outcome each, and it is what the ledger says of the wait."""
    runs = [start(engine, "asking_for_a_moment") for _ in range(12)]
    for run in runs:
        engine.db.wait_for("select count(*) from onceflow.step_ledger where dag_run = %s and to_state = 'deferred'", run)
        due = engine.db.sql("select due_at from onceflow.approval where run = %s", run)[0][0]
        engine.db.wait_for("select onceflow.now() >= %s::timestamptz - interval '5 ms' or null", due)
        try:
            engine.db.sql("select onceflow.answer_approval(%s, 'ask', 'reject', actor => 'ann')", run)
        except psycopg.Error as refused:
            assert "not waiting" in str(refused)
    for run in runs:
        state = await_end(engine, run)
        events = engine.db.sql("select output from onceflow.step_ledger where dag_run = %s and from_state = 'deferred' and to_state = 'queued'", run)
        assert len(events) == 1
        assert state == ("failed" if events[0][0].get("answer") == "reject" else "success")


def test_a_run_of_another_dag_is_awaited(engine: Engine) -> None:
    """The run fails, so this task's try does; its retry retries that run, the same one. No slot is held meanwhile."""
    gate = engine.make_gate()
    run = start(engine, "starting_another", path=str(gate))
    assert await_end(engine, run) == "success"
    assert engine.db.sql("select try_number from onceflow.task_instance where run = %s", run) == [(2,)]
    assert engine.db.sql("select run_id like 'triggered\\_\\_%%', state from onceflow.run where dag_id = 'failing_once'") == [(True, "success")]
