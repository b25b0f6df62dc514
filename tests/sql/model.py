"""What a simple mind expects of the state machine: dictionaries, no locks, no tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sql.engine_calls import Task

ENDED = ("success", "failed", "skipped")
HOMES = {"scheduled": "timer", "queued": "ready", "running": "lease", "up_for_retry": "timer", "deferred": "wait"}


@dataclass(eq=False)
class ModelTask:
    """A task as it should be."""

    ti: int
    run: ModelRun
    retries: int
    state: str = "queued"
    claim: Task | None = None
    tries: int = 0
    max_tries: int = 0
    rescues: int = 0
    due: float | None = None
    waits: list[tuple[str, str]] = field(default_factory=list)  # (kind, target) of a deferred body

    @property
    def is_body(self) -> bool:
        return self.ti == self.run.run

    @property
    def is_living(self) -> bool:
        return self.state not in ENDED

    @property
    def home(self) -> str | None:
        """The one table it lies in."""
        return HOMES.get(self.state)

    def queue(self) -> None:
        self.state, self.claim, self.due, self.waits = "queued", None, None, []

    def end(self, state: str) -> None:
        self.state, self.claim, self.due, self.waits = state, None, None, []
        self.run.settle()


@dataclass(eq=False)
class ModelRun:
    """A run as it should be. `state` is None while it lives."""

    run: int
    tasks: list[ModelTask] = field(default_factory=list)
    state: str | None = None
    messages: int = 0

    @property
    def body(self) -> ModelTask:
        return self.tasks[0]

    def settle(self) -> None:
        """It ends with its last task, in the state of its body."""
        if self.state is None and not any(t.is_living for t in self.tasks):
            self.state = self.body.state


@dataclass
class Model:
    """All runs, and the one clock."""

    now: float = 0.0
    runs: list[ModelRun] = field(default_factory=list)

    @property
    def tasks(self) -> Iterator[ModelTask]:
        return (task for run in self.runs for task in run.tasks)

    def in_state(self, *states: str) -> list[ModelTask]:
        return [task for task in self.tasks if task.state in states]

    def start(self, run: int, retries: int, delay: float) -> None:
        made = ModelRun(run)
        self._begin(made, run, retries, delay)
        self.runs.append(made)

    def start_task(self, body: ModelTask, ti: int, retries: int, delay: float) -> None:
        self._begin(body.run, ti, retries, delay)

    def _begin(self, run: ModelRun, ti: int, retries: int, delay: float) -> None:
        task = ModelTask(ti, run, retries, max_tries=retries)
        if delay:
            task.state, task.due = "scheduled", self.now + delay
        run.tasks.append(task)

    def claim(self, claimed: list[Task]) -> None:
        by_ti = {task.ti: task for task in self.tasks}
        for one in claimed:
            task = by_ti[one.ti]
            assert task.state == "queued"
            assert one.try_number == task.tries + 1
            task.state, task.claim = "running", one

    def fail(self, task: ModelTask, retry: bool, delay: float) -> str:
        task.tries += 1
        if not retry or task.tries > task.max_tries + task.rescues:
            task.end("failed")
        elif delay:
            task.state, task.claim, task.due = "up_for_retry", None, self.now + delay
        else:
            task.queue()
        return "failed" if task.state == "failed" else "up_for_retry"

    def rescue(self, max_rescues: int) -> None:
        for task in self.in_state("running"):
            task.tries += 1
            if task.rescues >= max_rescues:
                task.end("failed")
            else:
                task.rescues += 1
                task.queue()

    def defer(self, task: ModelTask, waits: list[tuple[str, str]], due: float | None) -> None:
        task.state, task.claim, task.waits, task.due = "deferred", None, waits, due
        if self.is_over(task):
            task.queue()

    def is_over(self, task: ModelTask) -> bool:
        """Is any of its waits over?"""
        ended = {str(t.ti) for t in task.run.tasks if not t.is_living}
        facts = [task.run.messages > 0 if kind == "message" else target in ended for kind, target in task.waits]
        return any(facts) or (task.due is not None and task.due <= self.now)

    def fire_timers(self) -> None:
        for task in self.in_state("scheduled", "up_for_retry", "deferred"):
            if task.due is not None and task.due <= self.now:
                task.queue()

    def drain_wake_ups(self) -> None:
        for task in self.in_state("deferred"):
            if any(self.is_over(task) for _ in task.waits):
                task.queue()

    def cancel(self, run: ModelRun) -> None:
        run.state = "cancelled"
        for task in run.tasks:
            if task.state == "running":
                task.tries += 1
            if task.is_living:
                task.end("failed" if task.state == "running" else "skipped")

    def retry(self, run: ModelRun) -> None:
        run.state = None
        for task in run.tasks:
            if task.is_body or task.state != "success":
                task.queue()
                task.rescues, task.max_tries = 0, task.tries + task.retries
