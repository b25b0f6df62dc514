"""What may be said of a task beside its work; the same options on @task, operators, override() and default_args."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

from onceflow.authoring.dataset import check_datasets
from onceflow.authoring.retry import RetryPolicy
from onceflow.checks import check_choice, check_duration, check_flag, check_queue, check_text, check_whole, show
from onceflow.errors import AuthoringError

TRIGGER_RULES = (
    "all_success",
    "all_failed",
    "all_done",
    "all_done_min_one_success",
    "one_success",
    "one_failed",
    "one_done",
    "none_failed",
    "none_failed_min_one_success",
    "none_skipped",
    "all_skipped",
    "always",
    "all_done_setup_success",
)
WEIGHT_RULES = ("downstream", "upstream", "absolute")
FLAGS = (
    "depends_on_past",
    "wait_for_downstream",
    "multiple_outputs",
    "retry_exponential_backoff",
    "do_xcom_push",
    "is_setup",
    "is_teardown",
    "on_failure_fail_dagrun",
)
CALLBACKS = ("on_execute_callback", "on_success_callback", "on_failure_callback", "on_retry_callback", "on_skipped_callback")

EXECUTORS = ("postgres",)  # workers that claim; an unkept promise is refused, not ignored


@dataclass(frozen=True)
class TaskOptions:
    """One task's options, all with their defaults. Durations are timedeltas; `pool_slots` counts slots of `pool`."""

    retries: int = 0
    retry_delay: timedelta = timedelta(0)
    retry_exponential_backoff: bool = False
    max_retry_delay: timedelta | None = None
    retry_on: Any = None
    execution_timeout: timedelta | None = None
    trigger_rule: str = "all_success"
    pool: str = "default_pool"
    pool_slots: int = 1
    priority_weight: int = 1
    weight_rule: str = "downstream"
    queue: str | None = None
    max_active_tis_per_dag: int | None = None
    max_active_tis_per_dagrun: int | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    multiple_outputs: bool = False
    do_xcom_push: bool = True
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    on_execute_callback: Any = None
    on_success_callback: Any = None
    on_failure_callback: Any = None
    on_retry_callback: Any = None
    on_skipped_callback: Any = None
    executor: str | None = None
    executor_config: dict[str, Any] = field(default_factory=dict)
    inlets: tuple[Any, ...] = ()
    outlets: tuple[Any, ...] = ()
    map_index_template: str | None = None
    doc: str | None = None
    owner: str | None = None

    @classmethod
    def names(cls) -> frozenset[str]:
        return frozenset(f.name for f in fields(cls))

    def replaced(self, given: dict[str, Any], where: str) -> TaskOptions:
        """These with some others, checked; an unknown name or a wrong value raises AuthoringError."""
        if unknown := given.keys() - self.names():
            raise AuthoringError(f"{where}: there is no option {sorted(unknown)[0]!r}; tasks have {', '.join(sorted(self.names()))}")
        for name in ("inlets", "outlets"):
            if name in given:
                given = given | {name: check_datasets(given[name], f"{where}: {name}", may_alias=name == "outlets")}
        found = replace(self, **given)
        found._check(where)
        return found

    def retry_policy(self) -> RetryPolicy:
        """The policy these options spell, with the field's names (retry_exponential_backoff, max_retry_delay)."""
        retry_on = RetryPolicy().retry_on if self.retry_on is None else self.retry_on
        return RetryPolicy(self.retries, self.retry_delay, self.retry_exponential_backoff, self.max_retry_delay, retry_on=retry_on)

    def _check(self, where: str) -> None:
        if self.executor is not None and self.executor not in EXECUTORS:
            raise AuthoringError(f"{where}: executor {show(self.executor)} is not there; tasks run on {EXECUTORS[0]!r}, the workers, so leave it out")
        if not isinstance(self.executor_config, dict):
            raise AuthoringError(f"{where}: executor_config must be a dict, not {show(self.executor_config)}")
        check_choice(self.trigger_rule, f"{where}: trigger_rule", TRIGGER_RULES, error=AuthoringError)
        check_choice(self.weight_rule, f"{where}: weight_rule", WEIGHT_RULES, error=AuthoringError)
        check_whole(self.pool_slots, f"{where}: pool_slots", least=1, error=AuthoringError)
        check_whole(self.priority_weight, f"{where}: priority_weight", least=-(2**20), most=2**20, error=AuthoringError)
        check_whole(self.retries, f"{where}: retries", least=0, error=AuthoringError)
        for name in ("max_active_tis_per_dag", "max_active_tis_per_dagrun"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), f"{where}: {name}", least=1, error=AuthoringError)
        if self.execution_timeout is not None:
            check_duration(self.execution_timeout, f"{where}: execution_timeout", error=AuthoringError)
        if self.queue is not None:
            check_queue(self.queue, f"{where}: queue", error=AuthoringError)
        for name in FLAGS:
            check_flag(getattr(self, name), f"{where}: {name}", error=AuthoringError)
        check_callbacks({name: getattr(self, name) for name in CALLBACKS}, where)
        self._check_teardown(where)
        check_text(self.pool, f"{where}: pool", error=AuthoringError)

    def _check_teardown(self, where: str) -> None:
        if self.is_setup and self.is_teardown:
            raise AuthoringError(f"{where} is marked as both a setup and a teardown; make two tasks of it")
        if self.on_failure_fail_dagrun and not self.is_teardown:
            raise AuthoringError(f"{where}: on_failure_fail_dagrun is for teardowns; the failure of another task fails the run anyway")

    def listens(self) -> list[str]:
        """The events after which somebody wants to be called, as the database names them."""
        events = {"success": self.on_success_callback, "failed": self.on_failure_callback, "up_for_retry": self.on_retry_callback}
        return [event for event, called in (events | {"skipped": self.on_skipped_callback}).items() if called]


def check_callbacks(given: dict[str, Any], where: str) -> None:
    """Callbacks are functions of the context, or lists of these."""
    for name, called in given.items():
        for one in called if isinstance(called, list | tuple) else [called]:
            if called is not None and not callable(one):
                raise AuthoringError(f"{where}: {name} must be a function of the context, or a list of these, not {show(one)}")
