"""What a client asks, without I/O: each request is a generator that yields calls (and pauses) and returns the answer.

The same requests drive the blocking client and the async one; only the two runners differ.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from onceflow.authoring.graph import plan
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.decorator import DagFunction
from onceflow.authoring.graph.param import check_params
from onceflow.authoring.schedule import unpack_schedule
from onceflow.authoring.step import Step
from onceflow.authoring.timetable import DataInterval, Timetable
from onceflow.authoring.workflow import Workflow, file_version
from onceflow.checks import MOST_INT, MOST_NOTE, check_moment, check_note, check_queue, check_seconds, check_text, check_whole, show
from onceflow.codec import decode, decode_error, encode
from onceflow.db import calls
from onceflow.db.calls import Call
from onceflow.engine.arguments import fit_arguments
from onceflow.errors import AuthoringError, InvalidArgument, RunCancelled, RunFailed, RunStopped, WaitTimeout

ENDED = ("success", "failed", "cancelled", "needs_code")


@dataclass(frozen=True, slots=True)
class Pause:
    """The runner should wait that many seconds."""

    seconds: float


Request = Generator[Call | Pause, Any, Any]
Startable = Workflow[..., Any] | Step[..., Any] | DAG | DagFunction[...] | str


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start. `run_id` is the idempotency key; made up by the client when not given. `deduplicate` holds while the run lives."""

    run_id: str | None = None
    conn: Any = None
    queue: str | None = None
    priority: int = 0
    delay: float | timedelta | None = None
    timeout: float | timedelta | None = None
    deduplicate: str | None = None
    logical_date: datetime | None = None
    code_version: str | None = None
    run_type: str = "manual"
    interval: DataInterval | None = None

    def __post_init__(self) -> None:
        """Refuses what no run can have, before anything is sent."""
        for name in ("run_id", "deduplicate", "code_version", "run_type"):
            if getattr(self, name) is not None:
                check_text(getattr(self, name), name)
        if self.queue is not None:
            check_queue(self.queue)
        check_whole(self.priority, "priority", -MOST_INT)
        if self.delay is not None:
            check_seconds(self.delay, "delay", zero=True)
        if self.timeout is not None:
            check_seconds(self.timeout, "timeout")
        if self.logical_date is not None:
            check_moment(self.logical_date, "logical_date")


def make_run_id(kind: str = "manual") -> str:
    """A run id made before the first attempt, so that a repeated attempt finds the same run."""
    return f"{kind}__{datetime.now(UTC).isoformat()}_{secrets.token_hex(4)}"


def name_of(target: Startable) -> str:
    """The dag_id of its runs."""
    return target if isinstance(target, str) else target.dag_id if isinstance(target, DAG | DagFunction) else target.name


def dag_row(dag: DAG, code_version: str | None = None, pause_new: bool = True) -> dict[str, Any]:
    """What the database keeps of a dag, its plan with it. One that comes by a schedule is paused when it is new, unless it or `pause_new` says otherwise."""
    row = {
        "dag_id": dag.dag_id,
        "kind": "dag",
        "fileloc": dag.fileloc,
        "description": dag.description,
        "code_version": code_version or file_version(dag.fileloc),
        "timeout_s": seconds_of(dag.dagrun_timeout),
        "plan": plan.describe_dag(dag),
    }
    paused = dag.is_paused_upon_creation if pause_new or dag.is_paused_upon_creation is not None else False
    return row if paused is None else {**row, "is_paused": paused}


def describe_dag(target: Workflow[..., Any] | Step[..., Any] | DAG | DagFunction[...], pause_new: bool = True) -> str:
    """The dag row of what is started before any worker has told of it."""
    if isinstance(target, DAG | DagFunction):
        return json.dumps([dag_row(_dag_of(target), pause_new=pause_new)])
    kind = "workflow" if isinstance(target, Workflow) else "step"
    version = target.source_version() if isinstance(target, Workflow) else "any"
    return json.dumps([{"dag_id": target.name, "kind": kind, "code_version": version, "fileloc": target.fn.__code__.co_filename, **declared_options(target)}])


def declared_options(target: Workflow[..., Any] | Step[..., Any]) -> dict[str, Any]:
    """What a start that says nothing else takes from the declaration."""
    if not isinstance(target, Workflow):
        return {"retries": target.retry.retries}
    return {"retries": target.retry.retries, "timeout_s": seconds_of(target.timeout), "queue": target.queue}


def start_call(target: Startable, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> Call:
    """The call that starts a run; arguments are checked against the signature before anything is sent."""
    if isinstance(target, str):
        check_text(target, "the name of what to start")
        if args and kwargs:
            raise AuthoringError(f"start({target!r}, ...): by name, give the arguments either all by position or all by name")
        values: Any = list(args) if args else kwargs
        name, retries, kind, timeout, queue = target, None, None, None, None
    elif isinstance(target, DAG | DagFunction):
        dag = _dag_of(target)
        if args:
            raise AuthoringError(f"start({dag!r}, …): a dag takes params by name, not by position")
        check_params({**dag.params, **kwargs}, dag.param_schemas, f"dag {dag.dag_id}")
        name, values, retries, kind, timeout, queue = dag.dag_id, kwargs, None, None, None, None
    else:
        if not isinstance(target, Workflow | Step):
            raise AuthoringError(f"start({show(target)}): pass a @workflow, a @step, a @dag, or the name of one")
        values = target.bind(args, kwargs)
        fit_arguments(values, target.signature, target.hints, target.name)  # a worker will; what does not fit is told here
        name, retries = target.name, target.retry.retries
        kind = "body" if isinstance(target, Workflow) else "step"
        timeout = target.timeout if isinstance(target, Workflow) else None
        queue = target.queue if isinstance(target, Workflow) else None
    date = options.logical_date
    return calls.start_run(
        name,
        encode(values, where=name),
        make_run_id() if options.run_id is None else options.run_id,
        logical_date=check_moment(date, "logical_date").isoformat() if date is not None else None,
        queue=queue if options.queue is None else options.queue,
        priority=options.priority,
        delay_s=seconds_of(options.delay),
        timeout_s=seconds_of(options.timeout if options.timeout is not None else timeout),
        retries=retries,
        task_kind=kind,
        run_type=options.run_type,
        code_version=options.code_version,
        deduplicate=options.deduplicate,
        interval=None if options.interval is None else (options.interval.start.isoformat(), options.interval.end.isoformat()),
        fn=target.reference if isinstance(target, Step) else None,
    )


def read_trigger(target: Startable, params: dict[str, Any] | None, options: StartOptions) -> Request:
    """The target, positional and named arguments of a start with params, and its options, with the data interval that the dag's timetable gives for its
    logical date, or for now. Params of a dag named by its id are checked by what the database knows of it."""
    name = name_of(target) if isinstance(target, Workflow | Step | DAG | DagFunction) else check_text(target, "dag_id")
    if params is not None and not (isinstance(params, dict) and all(isinstance(key, str) for key in params)):
        raise InvalidArgument(f"params of {name} must be a dict of its arguments by name, not {show(params)}")
    if not isinstance(target, str | DAG | DagFunction):
        return target, (), params or {}, options
    found = yield calls.read_params(name)
    if isinstance(target, str):
        check_params({**decode(json.dumps(found["params"])), **(params or {})}, found["schemas"], f"dag {name}")
        timetable = _find_timetable(found["schedule"])
    else:
        timetable = _dag_of(target).timetable
    if timetable is None or not timetable.makes_runs:
        return target, (), params or {}, options
    date = options.logical_date
    interval = timetable.infer_interval(datetime.fromisoformat(found["now"])) if date is None else timetable.find_interval(date)
    return target, (), params or {}, replace(options, interval=interval)


def _find_timetable(schedule: dict[str, Any] | None) -> Timetable | None:
    """None also for a class that this process cannot import: a run can be started all the same."""
    try:
        return None if schedule is None else unpack_schedule(json.dumps(schedule)).timetable
    except AuthoringError:
        return None


def _dag_of(target: DAG | DagFunction[...]) -> DAG:
    return target.dag if isinstance(target, DagFunction) else target


def seconds_of(value: float | timedelta | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value


def read_state(run: int) -> Request:
    return (yield calls.read_run(run))["state"]


def await_result(run: int, timeout_s: float | None) -> Request:
    """The run's result; raises its error, or WaitTimeout. Follows continue_as to the last run."""
    if timeout_s is not None:
        timeout_s = check_seconds(timeout_s, "timeout_s", zero=True)
    waited, pause = 0.0, 0.005
    while True:
        answer = yield calls.read_run(run)
        if answer["state"] in ENDED:
            if answer["state"] != "success":
                raise _failure(answer)
            next_run = find_continuation(answer)
            if next_run is None:
                return decode(answer["output"]) if answer["output"] is not None else answer["state"]  # a dag has no output of its own
            run = next_run
            continue
        if timeout_s is not None and waited >= timeout_s:
            where = f"run {answer['run_id']} of {answer['dag_id']}"
            raise WaitTimeout(f"{where} is still {answer['state']} after {timeout_s} s; it goes on. Is there a worker? Ask: onceflow doctor")
        yield Pause(pause)
        waited += pause
        pause = min(pause * 1.5, 0.25)


def find_continuation(answer: dict[str, Any]) -> int | None:
    """The run in which one that ended with continue_as goes on."""
    value = json.loads(answer["output"] or "null") if answer["state"] == "success" else None
    return int(value["$continued"]["run"]) if isinstance(value, dict) and set(value) == {"$continued"} else None


def _failure(answer: dict[str, Any]) -> BaseException:
    where = f"run {answer['run_id']} of {answer['dag_id']}"
    shown = f"onceflow runs show {answer['dag_id']}/{answer['run_id']}"
    if answer["error"]:
        error = decode_error(answer["error"])
        error.add_note(f"Raised on a worker, in {where}. See it with: {shown}")
        return error
    if answer["state"] == "cancelled":
        return RunCancelled(f"{where} was cancelled: {answer['stop_reason']}")
    if answer["state"] == "needs_code":
        return RunStopped(f"{where} is stopped: {answer['stop_reason']}")
    return RunFailed(f"{where} failed: {answer['stop_reason'] or 'a task of it failed'}. See it with: {shown}")


def send_message(run: int, message: Any, topic: str, key: str | None) -> Request:
    """Whether it was sent. Without a key of the sender's it gets one here, so that a repeated attempt delivers nothing twice."""
    check_text(topic, "topic", may_be_empty=True)
    if key is not None:
        check_text(key, "key")
    body = encode(message, where="message")
    sent = yield calls.send_message(run, topic, body, key if key is not None else f"once-{secrets.token_hex(8)}")
    return key is None or bool(sent)


def cancel_call(run: int, reason: str | None, actor: str | None) -> Call:
    return calls.cancel_run(run, check_note(reason, "reason"), check_note(actor, "actor"))


def retry_call(run: int, actor: str | None) -> Call:
    return calls.retry_run(run, check_note(actor, "actor"))


def fork_call(run: int, from_step: str, run_id: str | None, actor: str | None) -> Call:
    new_id = make_run_id("fork") if run_id is None else check_text(run_id, "run_id")
    return calls.fork_run(run, check_text(from_step, "from_step", most=MOST_NOTE), new_id, check_note(actor, "actor"))


def event_call(run: int, key: str) -> Call:
    return calls.read_run_event(run, check_text(key, "key"))


def find_call(run_id: str, dag_id: str | None) -> Call:
    return calls.find_run(None if dag_id is None else check_text(dag_id, "dag_id"), check_text(run_id, "run_id"))


def list_steps(run: int) -> Request:
    return (yield calls.list_entries(run))
