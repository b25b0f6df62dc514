"""`DAG`: a graph of tasks, described by the code inside it."""

from __future__ import annotations

import inspect
from contextvars import Token
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onceflow.authoring import registry
from onceflow.authoring.context_names import bind_task
from onceflow.authoring.dataset import read_condition, read_time
from onceflow.authoring.graph.deadline import DeadlineAlert, read_deadlines
from onceflow.authoring.graph.mapping import check_expand
from onceflow.authoring.graph.param import read_params
from onceflow.authoring.graph.step_operator import StepOperator
from onceflow.authoring.graph.xcom_arg import XComArg
from onceflow.authoring.reading import declaring_file
from onceflow.authoring.schedule import resolve_schedule
from onceflow.authoring.task_options import TaskOptions, check_callbacks
from onceflow.authoring.testing import Setup, TrialRun, run_test
from onceflow.authoring.timetable import Timetable
from onceflow.authoring.trace import Tracer, tracer
from onceflow.checks import MOST_INT, check_duration, check_flag, check_name, check_whole, show
from onceflow.errors import AuthoringError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceflow.authoring.graph.group import TaskGroup
    from onceflow.authoring.graph.operator import BaseOperator
    from onceflow.authoring.step import Step


class DAG:
    """A workflow whose graph is known up front. Inside `with DAG(...)`, or the function under @dag, calls of steps add tasks.

    `schedule`: a cron text, preset, timedelta, timetable or datasets; None: it runs when it is told to. Naive dates are UTC. Plain cron texts are in `timezone`,
    else in that of the start date, else in UTC. `is_paused_upon_creation`: what a scheduled dag is at first, whatever the setting pause_new_dags says.
    `default_args` are TaskOptions for all its tasks. `params` are the defaults of a run's parameters, plain values or `Param(...)` with a schema.
    `render_template_as_native_obj`: what {{ }} gives stays a list, dict or number where it is alone in its text. `user_defined_macros` are names for
    templates. `team`: whose dag it is; teams share the workers (see "Fair share" in docs/dags.md). `deadline`: who is called when a run takes too long. The callbacks get the context once a run has ended: at least once, after the commit, and they change no state.
    """

    def __init__(
        self,
        dag_id: str,
        *,
        schedule: Any = None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
        catchup: bool = False,
        max_active_runs: int = 16,
        max_active_tasks: int = 16,
        default_args: dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
        tags: list[str] | None = None,
        description: str | None = None,
        owner: str | None = None,
        timezone: str | None = None,
        is_paused_upon_creation: bool | None = None,
        dagrun_timeout: timedelta | None = None,
        deadline: DeadlineAlert | list[DeadlineAlert] | None = None,
        priority: int = 0,
        team: str | None = None,
        fileloc: str | None = None,
        render_template_as_native_obj: bool = False,
        user_defined_macros: dict[str, Any] | None = None,
        on_success_callback: Any = None,
        on_failure_callback: Any = None,
    ) -> None:
        self.dag_id = check_name(dag_id, "a dag", error=AuthoringError)
        defaults = dict(default_args or {})
        dates = {name: defaults.pop(name, None) for name in ("start_date", "end_date")}
        self.schedule, self.catchup, self.timezone = schedule, check_flag(catchup, f"dag {dag_id}: catchup", error=AuthoringError), timezone
        self.start_date = _read_date(dates["start_date"] if start_date is None else start_date, f"dag {dag_id}: start_date")
        self.end_date = _read_date(dates["end_date"] if end_date is None else end_date, f"dag {dag_id}: end_date")
        self.timetable = self._resolve_timetable()
        limit = self.timetable.active_runs_limit or MOST_INT
        self.max_active_runs = min(check_whole(max_active_runs, f"dag {dag_id}: max_active_runs", 1, error=AuthoringError), limit)
        self.max_active_tasks = check_whole(max_active_tasks, f"dag {dag_id}: max_active_tasks", 1, error=AuthoringError)
        self.is_paused_upon_creation = is_paused_upon_creation
        self.default_args = defaults
        self.default_options = TaskOptions().replaced(defaults, f"default_args of dag {dag_id}")
        self.params, self.param_schemas = read_params(params, f"dag {dag_id}")
        if (self.timetable.makes_runs or self.condition) and (lacking := sorted(self.param_schemas.keys() - self.params.keys())):
            raise AuthoringError(f"dag {dag_id} runs by a schedule, but param {lacking[0]!r} has no default; give it one")
        self.tags = list(tags or [])
        self.description, self.owner, self.dagrun_timeout, self.priority = description, owner or defaults.get("owner"), dagrun_timeout, priority
        if dagrun_timeout is not None:
            check_duration(dagrun_timeout, f"dag {dag_id}: dagrun_timeout", error=AuthoringError)
        self.deadlines = read_deadlines(deadline, f"dag {dag_id}")
        self.team = None if team is None else check_name(team, f"dag {dag_id}: team", error=AuthoringError)
        self.fileloc = fileloc or declaring_file(_caller_file())
        self.render_template_as_native_obj = check_flag(render_template_as_native_obj, f"dag {dag_id}: render_template_as_native_obj", error=AuthoringError)
        self.user_defined_macros = dict(user_defined_macros or {})
        self.on_success_callback, self.on_failure_callback = on_success_callback, on_failure_callback
        check_callbacks({"on_success_callback": on_success_callback, "on_failure_callback": on_failure_callback}, f"dag {dag_id}")
        self.tasks: dict[str, BaseOperator] = {}
        self.groups: dict[str, TaskGroup] = {}
        self.open_group: TaskGroup | None = None  # the one being described
        self.labels: dict[tuple[str, str], str] = {}  # beside arrows
        self._token: Token[Tracer | None] | None = None
        registry.add_dag(self)

    def _resolve_timetable(self) -> Timetable:
        try:
            self.condition = read_condition(self.schedule)  # on datasets
            timetable = resolve_schedule(read_time(self.schedule), timezone=self.timezone, start_date=self.start_date)
        except AuthoringError as error:
            raise AuthoringError(f"dag {self.dag_id}: {error}") from error
        if self.catchup and timetable.periodic and self.start_date is None:
            raise AuthoringError(f"dag {self.dag_id} has catchup, but no start_date from which on runs were missed; give it one, or leave catchup out")
        if self.start_date is not None and self.end_date is not None and self.end_date < self.start_date:
            raise AuthoringError(f"dag {self.dag_id}: end_date {self.end_date.isoformat()} lies before start_date {self.start_date.isoformat()}; change one")
        return timetable

    def __enter__(self) -> DAG:
        self._token = tracer.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._token is not None:
            tracer.reset(self._token)
            self._token = None
        if error is None:
            for task in self.tasks.values():
                task.follow_fields()

    def name_task(self, name: str, *, may_repeat: bool) -> str:
        """The id of a new task or group, with its group's prefix. Where calls in a loop give one name again, the second is name__1."""
        wanted = f"{self.open_group.prefix if self.open_group else ''}{name}"
        taken = self.tasks.keys() | self.groups.keys()
        if wanted not in taken:
            return wanted
        if not may_repeat:
            raise AuthoringError(f"dag {self.dag_id} in {self.fileloc} has two tasks or groups {wanted!r}; give one another id")
        return next(free for number in range(1, len(taken) + 2) if (free := f"{wanted}__{number}") not in taken)

    def merge_options(self, options: dict[str, Any], where: str) -> TaskOptions:
        """A task's own options over those of its group and of the dag."""
        return self.default_options.replaced({**(self.open_group.default_args if self.open_group else {}), **options}, where)

    @property
    def listens(self) -> list[str]:
        """The ends of a run after which somebody wants to be called."""
        return [state for state, called in (("success", self.on_success_callback), ("failed", self.on_failure_callback)) if called]

    def add_task(self, task: BaseOperator) -> None:
        self.tasks[task.task_id] = task

    def add_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> XComArg:
        """A call of a step while this dag is described."""
        return StepOperator(step, bind_task(step.signature, step.name, args, kwargs), options).output

    def map_step(self, step: Step[..., Any], fixed: dict[str, Any], mapped: dict[str, Any], options: dict[str, Any]) -> XComArg:
        """`step.partial(**fixed).expand(**mapped)`: one instance for each item, or each combination of items."""
        check_expand(step.name, fixed, mapped)
        bind_task(step.signature, step.name, (), {**fixed, **mapped})
        return StepOperator(step, fixed, options, list(mapped.items())).output

    def map_step_kwargs(self, step: Step[..., Any], fixed: dict[str, Any], mapped: Any, options: dict[str, Any]) -> XComArg:
        """`step.expand_kwargs(list_of_dicts)`: one instance for each dict."""
        return StepOperator(step, fixed, options, [("", mapped)]).output

    def test(
        self,
        *,
        logical_date: datetime | None = None,
        params: dict[str, Any] | None = None,
        setup: Setup | Sequence[Setup] = (),
        dsn: str | None = None,
    ) -> TrialRun:
        """Runs the dag once in this process, on a throw-away database, and answers what came of it: state, tasks (their states), outputs, errors.

        A failed run is an answer too: assert its `state`. What tasks raised is printed to stderr as well. `setup` prepares the database, as for
        `workflow.test`; waits for a time (retry delays) are skipped, and breakpoints work. With `dsn`: on that database, for real and in real time, as a
        run of type test beside the workers that are there. Raises InvalidArgument for params that do not fit.

        >>> run = fx_close.test(logical_date=datetime(2026, 1, 2), params={"limit": 3})  # doctest: +SKIP
        >>> run.state, run.tasks["report"], run.outputs["report"]  # doctest: +SKIP
        ('success', 'success', 12)
        """
        return run_test("dag", self, logical_date=logical_date, params=params, setup=setup, dsn=dsn)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<dag {self.dag_id} of {len(self.tasks)} tasks>"


def _read_date(moment: Any, where: str) -> datetime | None:
    if moment is not None and not isinstance(moment, datetime):
        raise AuthoringError(f"{where} must be a datetime, not {show(moment)}; write for example datetime(2026, 1, 1)")
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _caller_file() -> str | None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("onceflow."):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else None
