"""Dags that decide on their way which tasks go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from onceflow import (
    BranchPythonOperator,
    EmptyOperator,
    FailTask,
    LatestOnlyOperator,
    ShortCircuitOperator,
    SkipTask,
    TaskGroup,
    dag,
    setup,
    task,
    teardown,
)


@task
def give(value: Any = None) -> Any:
    return value


@task.branch
def choose(answer: Any) -> Any:
    return answer


@dag(schedule=None)
def branches() -> None:
    """left -> below_left -> join; right -> join; the branch leads to `shortcut` and to the join directly, too."""
    branch = choose(_answer())
    left, right = give.override(task_id="left")("l"), give.override(task_id="right")("r")
    below, join, shortcut = EmptyOperator("below_left"), EmptyOperator("join", trigger_rule="none_failed_min_one_success"), EmptyOperator("shortcut")
    with TaskGroup("group") as group:
        first = EmptyOperator("first")
        first >> EmptyOperator("second")
    branch >> [left, right, shortcut, group, join]
    left >> below >> join
    right >> join


@task
def _answer(params: Any) -> Any:
    return params["to"]


@dag(schedule=None)
def classic_branch() -> None:
    BranchPythonOperator(task_id="branch", python_callable=lambda ds, params: params["to"]) >> [EmptyOperator("a"), EmptyOperator("b")]


def describe_short_circuit(ignore: bool) -> None:
    """check -> a -> last (all_done); made -> use -> removed, a teardown, all below the check."""
    check = ShortCircuitOperator(task_id="check", python_callable=lambda params: params["go"], ignore_downstream_trigger_rules=ignore)
    first, last = give.override(task_id="a")(), EmptyOperator("last", trigger_rule="all_done")
    clean = teardown(give).override(task_id="clean")()
    check >> first >> last >> clean


@dag(schedule=None)
def cut_all() -> None:
    describe_short_circuit(True)


@dag(schedule=None)
def cut_direct() -> None:
    describe_short_circuit(False)


@dag(schedule=None)
def cut_wide() -> None:
    """Below the check: a list to map over, a join with a task that goes on meanwhile, one that has run before."""

    @task
    def hold(file: str) -> None:
        while not Path(file).exists():
            time.sleep(0.02)

    check = ShortCircuitOperator(task_id="check", python_callable=lambda params: params["go"])
    beside, before = hold("{{ params.gate }}"), give.override(task_id="before")()
    mapped = give.override(task_id="mapped").expand(value=give.override(task_id="items")([1, 2]))
    early = give.override(task_id="early", trigger_rule="one_success")()
    before >> [early, check]
    check >> [mapped, early]
    joined = give.override(task_id="joined", trigger_rule="all_done")([mapped])
    beside >> joined >> EmptyOperator("end", trigger_rule="all_done")


@dag(schedule=None)
def branch_to_a_map() -> None:
    choose(_answer()) >> [give.override(task_id=name).expand(value=[1, 2]) for name in ("one", "two")]


@dag(schedule=None)
def cut_by_decorator() -> None:
    @task.short_circuit
    def is_wanted(params: Any) -> Any:
        return params["go"]

    is_wanted() >> give.override(task_id="after")()


@dag(schedule=None)
def skips_and_fails() -> None:
    @task(retries=3)
    def skip() -> None:
        raise SkipTask("no rates on a Sunday")

    @task(retries=3)
    def fail() -> None:
        raise FailTask("the account is closed")

    skip() >> EmptyOperator("after_skip")
    fail() >> EmptyOperator("after_fail")


@dag(schedule="@daily")
def latest() -> None:
    LatestOnlyOperator(task_id="is_latest") >> give.override(task_id="after")()


def describe_cleaning(setup_ends: str, work_fails: bool = False, clean_fails: bool = False, fails_run: bool = False) -> None:
    @setup
    def make() -> None:
        if setup_ends != "success":
            raise (SkipTask if setup_ends == "skipped" else ValueError)("as told")

    @task
    def work() -> None:
        if work_fails:
            raise ValueError("as told")

    @teardown(on_failure_fail_dagrun=fails_run)
    def clean() -> None:
        if clean_fails:
            raise ValueError("as told")

    made = make()
    made >> work() >> clean().operator.as_teardown(setups=made)


@dag(schedule=None)
def cleaning_after_success() -> None:
    describe_cleaning("success")


@dag(schedule=None)
def cleaning_after_failure() -> None:
    describe_cleaning("success", work_fails=True)


@dag(schedule=None)
def cleaning_without_setup() -> None:
    describe_cleaning("failed")


@dag(schedule=None)
def cleaning_after_skipped_setup() -> None:
    describe_cleaning("skipped")


@dag(schedule=None)
def cleaning_that_fails() -> None:
    describe_cleaning("success", clean_fails=True)


@dag(schedule=None)
def cleaning_that_must_not_fail() -> None:
    describe_cleaning("success", clean_fails=True, fails_run=True)


@dag(schedule=None)
def cleaning_around_a_block() -> None:
    made = setup(give).override(task_id="make")()
    with teardown(give).override(task_id="clean")().operator.as_teardown(setups=made):
        give.override(task_id="one")() >> give.override(task_id="two")()
        give.override(task_id="alone")()
