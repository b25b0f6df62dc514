"""Why is nothing running? Facts in, findings out: the one cause first. Pure: no database, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceflow.cli.dataset_diagnosis import find_dataset_waits
from onceflow.cli.finding import Finding, Severity
from onceflow.db.facts import Facts, LaneFacts, TimerFacts, WaitFacts

TICK_LATE_S = 15.0
SEAL_LATE_S = 60.0
MOST_ERRORS = 5


def diagnose(facts: Facts, earlier: Facts | None = None) -> list[Finding]:
    """All findings, causes first, in the order in which to look at them. `earlier`: the same facts of some seconds ago, to see what does not move."""
    found = [
        *_dag(facts),
        *_files(facts),
        *_workers(facts),
        *_code(facts),
        *_lanes(facts, earlier),
        *_overdue(facts),
        *_datasets(facts),
        *_roles(facts),
        *_upkeep(facts),
    ]
    causes = [f for f in found if f.severity == "cause"]
    return causes + ([] if causes else _state(facts)) + [f for f in found if f.severity != "cause"]


def _dag(facts: Facts) -> Iterator[Finding]:
    if facts.dag_id is not None and not facts.dags:
        yield Finding(
            "dag_unknown",
            "cause",
            f"there is no dag or workflow {facts.dag_id!r} in this database: no worker or scheduler has loaded its file",
            "Check the name with `onceflow dags list`, and that its file is in the folder given by --dags.",
        )
    for dag in facts.dags:
        severity: Severity = "cause" if facts.dag_id else "warning"
        if dag.has_import_errors and not facts.import_errors:
            yield Finding("import_error", severity, f"the file of dag {dag.dag_id} cannot be imported: {dag.fileloc}", "Mend the file.")
        if facts.dag_id and not dag.is_active:
            gone = f"dag {dag.dag_id} is inactive: its file {dag.fileloc} is gone"
            yield Finding("dag_inactive", "cause", gone, "Put the file back, or start a worker that has it.")
        if facts.dag_id and dag.is_paused:
            yield Finding("dag_paused", "cause", f"dag {dag.dag_id} is paused: its schedule starts no runs", "Unpause it.")


def _files(facts: Facts) -> Iterator[Finding]:
    """What files say wrong: of one dag, why it does not run; of all of them, beside the point."""
    errors = [error for error in facts.import_errors if not error.is_warning]
    for error in errors[:MOST_ERRORS]:
        yield Finding("import_error", "cause" if facts.dag_id else "warning", error.what, "Mend the file; the traceback: onceflow dags errors")
    if len(errors) > MOST_ERRORS:
        yield Finding("import_error", "warning", f"{len(errors) - MOST_ERRORS} more import errors", "See them with: onceflow dags errors")
    for error in facts.import_errors:
        if error.is_warning and facts.dag_id:
            yield Finding("unstable_dag", "warning", error.what)


def _workers(facts: Facts) -> Iterator[Finding]:
    alive = [w for w in facts.workers if w.state == "alive"]
    silent = [w for w in facts.workers if w.state == "silent"]
    if not alive:
        wanted = facts.lanes or facts.running or facts.timers or facts.waits or facts.dag_id
        last = f"; the last one, {silent[0].host} pid {silent[0].pid}, sent its last heartbeat {silent[0].heartbeat_age_s:.0f} s ago" if silent else ""
        start = "Start one: onceflow worker --dags FOLDER (or onceflow dev FOLDER)."
        yield Finding("no_worker", "cause" if wanted else "info", f"no worker is alive{last}", start)
        return
    if facts.engine.tick_age_s > TICK_LATE_S:
        yield Finding(
            "no_tick",
            "cause",
            f"a worker is alive, but nothing has ticked for {facts.engine.tick_age_s:.0f} s: timers, retries and rescues stand still",
            "Look for errors of run_tick in the workers' logs.",
        )
    for worker in silent:
        if worker.held:
            when = f"; rescues begin in {facts.engine.rescues_off_s:.0f} s" if facts.engine.rescues_off_s > 0 else ""
            yield Finding(
                "worker_silent",
                "warning",
                f"worker {worker.host} pid {worker.pid} holds {worker.held} tasks and has sent no heartbeat for {worker.heartbeat_age_s:.0f} s{when}",
                "Another worker takes them over. If it was only slow, raise lease_s.",
            )


def _code(facts: Facts) -> Iterator[Finding]:
    for wait in facts.waits:
        if wait.kind == "code" and wait.workers == 0:
            yield Finding(
                "needs_code",
                "cause" if facts.dag_id else "warning",
                f"{wait.count} runs of {wait.dag_id} are stopped: they need code version {wait.target}, which no living worker has",
                f"Start a worker with that code; `onceflow runs show {wait.example}` says what differs.",
            )


def _lanes(facts: Facts, earlier: Facts | None) -> Iterator[Finding]:
    before = {(lane.queue, lane.dag_id, lane.version): lane.first_seq for lane in earlier.lanes} if earlier else {}
    if not any(w.state == "alive" for w in facts.workers):
        return
    for lane in facts.lanes:
        tasks = f"{lane.ready} tasks of {lane.dag_id} are ready on queue {lane.queue}"
        if lane.alive == 0:
            yield _unclaimable(lane, tasks)
        elif before.get((lane.queue, lane.dag_id, lane.version)) == lane.first_seq:
            yield Finding(
                "workers_busy",
                "cause",
                f"{tasks}, but the {lane.alive} workers that may take them hold {lane.held} others and took none in the last seconds",
                "Start more workers or raise --concurrency; `onceflow runs list --state running` shows what they do.",
            )


def _unclaimable(lane: LaneFacts, tasks: str) -> Finding:
    if lane.silent:
        return Finding("worker_silent", "cause", f"{tasks}, but the {lane.silent} workers that could take them send no heartbeat", "Restart them.")
    if lane.on_queue == 0:
        start = f"Start one: onceflow worker --dags FOLDER --queues {lane.queue}"
        return Finding("no_worker_for_queue", "cause", f"{tasks}, but no living worker serves that queue", start)
    if lane.version is not None:
        wanted = f"{tasks} for code version {lane.version}, which no living worker on that queue has"
        return Finding("needs_code", "cause", wanted, "Start a worker with that version.")
    missing = f"{tasks}, but no living worker on that queue has loaded {lane.dag_id}"
    return Finding("no_worker_for_dag", "cause", missing, "Put its file into the folder of --dags and restart the worker.")


def _overdue(facts: Facts) -> Iterator[Finding]:
    for timer in facts.timers:
        if timer.overdue and any(w.state == "alive" for w in facts.workers):
            yield Finding(
                "timer_overdue",
                "cause",
                f"{timer.overdue} tasks of {timer.dag_id} {_timed(timer)}, and that is over",
                "A tick moves them: see whether the workers log errors of run_tick.",
            )


def _datasets(facts: Facts) -> Iterator[Finding]:
    return find_dataset_waits(facts.dataset_waits, facts.dag_id, is_busy=bool(facts.running))


def _state(facts: Facts) -> list[Finding]:
    """Nothing stands in the way: then how does it stand?"""
    if facts.running:
        return [Finding("running", "info", f"{facts.running} tasks are running")]
    if facts.lanes:
        return [Finding("ready", "info", f"{sum(lane.ready for lane in facts.lanes)} tasks are ready and being taken")]
    if facts.timers or any(w.kind != "code" for w in facts.waits):
        timed = [f"{t.count} tasks of {t.dag_id} {_timed(t)}; the next is due at {t.next_at:%Y-%m-%d %H:%M:%S %Z}" for t in facts.timers]
        awaited = [_describe_wait(w) for w in facts.waits if w.kind != "code"]
        return [Finding("all_wait", "info", text) for text in timed + awaited]
    of = f" of {facts.dag_id}" if facts.dag_id else ""
    start = f"Start one: onceflow runs start {facts.dag_id or 'NAME'}"
    return [] if facts.waits else [Finding("nothing_to_do", "info", f"there is no living run{of}", start)]


def _timed(timer: TimerFacts) -> str:
    what = {
        "retry": "their next try",
        "start": "their delayed start",
        "reschedule": "their next look",
        "wait": "a time (a sleep, a retry of a step, a time limit)",
    }
    return f"wait for {what[timer.kind]}"


def _describe_wait(wait: WaitFacts) -> str:
    if wait.kind == "past":
        return f"{wait.count} tasks of {wait.dag_id} wait for the run before (depends_on_past), the first of them for {wait.example}"
    if wait.kind in ("trigger", "answer"):
        what = {"trigger": "their triggers (onceflow triggers list)", "answer": "a person's answer (onceflow approvals list)"}[wait.kind]
        return f"{wait.count} tasks of {wait.dag_id} wait for {what}, such as {wait.example}"
    return f"{wait.count} bodies of {wait.dag_id} wait for {_awaited(wait)}, such as {wait.example}"


def _awaited(wait: WaitFacts) -> str:
    topic = f" on topic {wait.target!r}" if wait.target else ""
    return {"message": f"a message{topic}", "event": f"event {wait.target!r}", "task": "a task to end", "run": "a child run to end"}[wait.kind]


def _roles(facts: Facts) -> Iterator[Finding]:
    mighty = sorted({w.login for w in facts.workers if w.state == "alive" and w.is_superuser})
    if mighty:
        yield Finding(
            "roles_not_separated",
            "warning",
            f"workers log in as superuser ({', '.join(mighty)}): nothing keeps them off the ledger",
            "Give workers a login with role onceflow_worker, and their steps ONCEFLOW_STEP_DSN with login onceflow_step.",
        )
    if facts.engine.mighty_step_logins:
        yield Finding(
            "roles_not_separated",
            "warning",
            f"steps log in as {', '.join(facts.engine.mighty_step_logins)}, which may also claim and end tasks",
            "Set ONCEFLOW_STEP_DSN to the same database with login onceflow_step.",
        )


def show_seal_lag(lag: dict[str, Any]) -> str:
    """How far the seals are behind the ledger."""
    if not lag["unsealed"]:
        return "every ledger entry is sealed"
    return f"{lag['unsealed']} ledger entries are not sealed yet; the oldest is {lag['lag_s']:.0f} s old"


def _hurry_seals(held_by: dict[str, Any] | None) -> str:
    if held_by is None:
        return "Any worker or scheduler seals every few seconds: start one, or see whether those that run log errors of run_tick."
    who = f"pid {held_by['pid']} (login {held_by['usename']}, {held_by['application_name'] or 'no name'}, database {held_by['datname']})"
    return f"They wait for the transaction of {who}, open since {held_by['xact_start']}: end it, if need be with select pg_terminate_backend({held_by['pid']})."


def _upkeep(facts: Facts) -> Iterator[Finding]:
    engine = facts.engine
    if (engine.seal_lag["lag_s"] or 0) > SEAL_LATE_S:
        yield Finding("seal_lag", "warning", show_seal_lag(engine.seal_lag), _hurry_seals(engine.seal_lag["held_by"]))
    if not engine.has_partition:
        yield Finding(
            "no_partition",
            "warning",
            "this month has no partition: its runs go to the default one, which is never archived",
            "A tick makes partitions ahead of time: see whether the workers log errors of run_tick.",
        )
