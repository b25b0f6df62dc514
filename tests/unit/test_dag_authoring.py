"""Describing dags: groups, labels, setups, params, context parameters; and what is refused while a dag is described."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from onceflow import (
    DAG,
    AuthoringError,
    BaseOperator,
    BashOperator,
    BranchPythonOperator,
    DeadlineAlert,
    DeadlineReference,
    EmptyOperator,
    InvalidArgument,
    Label,
    Param,
    PythonOperator,
    ShortCircuitOperator,
    SQLOperator,
    TaskGroup,
    TriggerDagRunOperator,
    setup,
    task,
    task_group,
    teardown,
)
from onceflow.authoring import registry
from onceflow.authoring.graph.param import check_params
from onceflow.authoring.graph.plan import describe_dag
from onceflow.codec import decode


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dags that a test describes are forgotten after it."""
    for name in ("_dags", "_dag_functions"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(registry, "_new", [])


@task
def give(value: Any = None) -> Any:
    return value


class Wrong(BaseOperator):
    def execute(self, context: dict[str, Any], more: int) -> None: ...


def arrows(dag: DAG) -> set[tuple[str, str]]:
    return {(name, below) for name, operator in dag.tasks.items() for below in operator.downstream}


def test_groups_lie_in_each_other() -> None:
    """Ids carry the groups' names, unless a group says no; default_args of the inner group win; a group is a node for arrows."""
    with DAG("d", default_args={"retries": 1, "pool": "etl_pool"}) as dag:
        with TaskGroup("a", default_args={"retries": 2}) as a:
            EmptyOperator("x")
            with TaskGroup("b", default_args={"retries": 3}):
                EmptyOperator("x") >> EmptyOperator("y")
        with TaskGroup("c", prefix_group_id=False) as c:
            EmptyOperator("z")
        [EmptyOperator("s1"), EmptyOperator("s2")] >> a >> c
    assert {name: operator.options.retries for name, operator in dag.tasks.items()} == {"a.x": 2, "a.b.x": 3, "a.b.y": 3, "z": 1, "s1": 1, "s2": 1}
    assert arrows(dag) == {("a.b.x", "a.b.y"), ("a.x", "z"), ("a.b.y", "z"), *((s, t) for s in ("s1", "s2") for t in ("a.x", "a.b.x"))}


def test_a_group_function_is_called_as_often_as_one_likes() -> None:
    """Each call is a group of its own; it answers what the function returns, or the group."""

    @task_group(tooltip="twice")
    def double(value: Any) -> Any:
        return give(value)

    @task_group
    def silent() -> None:
        give(1)

    with DAG("d") as dag:
        give.override(task_id="sum")([double(1), double.override(group_id="again")(2), double(3)])
        give.override(task_id="after")() << silent()
    assert set(dag.tasks) == {"double.give", "again.give", "double__1.give", "sum", "silent.give", "after"}
    assert set(dag.tasks["sum"].upstream) == {"double.give", "again.give", "double__1.give"} and set(dag.tasks["after"].upstream) == {"silent.give"}


def test_labels_stand_beside_arrows() -> None:
    """In both directions, and with lists; they draw the arrow too."""
    with DAG("d") as dag:
        a, b, c, d = (EmptyOperator(name) for name in "abcd")
        a >> Label("one") >> [b, c]
        d << Label("two") << b
        [b, c] >> Label("three") >> EmptyOperator("e")
    assert dag.labels == {("a", "b"): "one", ("a", "c"): "one", ("b", "d"): "two", ("b", "e"): "three", ("c", "e"): "three"}
    assert arrows(dag) == set(dag.labels)


def test_a_teardown_takes_its_setups_and_its_block() -> None:
    """as_teardown(setups=…) draws the arrow; as a context manager it lies around what is described inside; a group's end leaves it out."""
    with DAG("d") as dag:
        made = setup(give).override(task_id="make")()
        with teardown(give).override(task_id="clean")().operator.as_teardown(setups=made):
            EmptyOperator("one") >> EmptyOperator("two")
        with TaskGroup("g") as group:
            EmptyOperator("work") >> EmptyOperator("tidy").as_teardown()
        group >> EmptyOperator("after")
    assert arrows(dag) == {("make", "clean"), ("make", "one"), ("one", "two"), ("two", "clean"), ("g.work", "g.tidy"), ("g.work", "after")}
    plan = {t["task_id"]: t for t in describe_dag(dag)["tasks"]}
    assert plan["make"]["is_setup"] and plan["clean"]["is_teardown"] and plan["clean"]["trigger_rule"] == "all_done_setup_success"
    assert {name for name, t in plan.items() if t["is_leaf"]} == {"two", "after"}


def test_the_context_may_be_left_out_of_calls() -> None:
    """Wherever its parameters stand; what is given by position goes to the others."""

    with DAG("d") as dag:

        @task
        def work(ti: Any, x: int, ds: str | None = None, **context: Any) -> None: ...

        work(5)
        work(x=6, ds="2026-01-01")
        work.partial(ds="x").expand(x=[1])
    assert [operator.arguments for operator in dag.tasks.values()] == [{"x": 5}, {"x": 6, "ds": "2026-01-01"}, {"ds": "x"}]  # type: ignore[attr-defined]


def test_params_have_schemas() -> None:
    """Defaults and schemas stand in the plan; a value is checked by name; one without a default must be given."""
    with DAG("d", params={"plain": [1], "day": Param("2026-01-01", type="string", format="date"), "must": Param(type="integer")}) as dag:
        EmptyOperator("a")
    plan = describe_dag(dag)
    assert decode(json.dumps(plan["params"])) == {"plain": [1], "day": "2026-01-01"} and set(plan["param_schemas"]) == {"day", "must"}
    check_params({**dag.params, "must": 1}, dag.param_schemas, "d")
    for given, message in (
        ({}, "'must' is not given"),
        ({"must": "1"}, "'1' is not of type 'integer'"),
        ({"must": 1, "day": "soon"}, "'soon' is not a 'date'"),
    ):
        with pytest.raises(InvalidArgument, match=f"d: param .*{message}"):
            check_params({**dag.params, **given}, dag.param_schemas, "d")


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "two tasks of one id": (lambda: [EmptyOperator("a"), EmptyOperator("a")], "has two tasks or groups 'a'"),
    "two groups of one id": (lambda: [TaskGroup("a"), TaskGroup("a")], "has two tasks or groups 'a'"),
    "a default that does not fit": (lambda: DAG("e", params={"n": Param(0, minimum=1)}), "dag e: param 'n' is 0 .*minimum of 1: that is its default"),
    "a schema that is none": (lambda: DAG("e", params={"n": Param(0, type="whole")}), "param 'n' has no valid JSON schema"),
    "a mapped task in a mapped group": (lambda: task_group(lambda x: give.expand(value=[1]), group_id="g").expand(x=[1]), "is inside the mapped group g"),
    "a mapped group in a mapped group": (
        lambda: task_group(lambda x: _EACH.expand(y=[1]), group_id="g").expand(x=[1]),
        "g.each .* is inside the mapped group g",
    ),
    "an item that is tested": (
        lambda: task_group(lambda x: x and 1, group_id="g").expand(x=[1]),
        "'x' of mapped group g stands for one item, so it cannot be tested",
    ),
    "an item in a text": (lambda: task_group(lambda x: f"{x}", group_id="g").expand(x=[1]), "so it cannot stand inside a text"),
    "a group over nothing": (lambda: task_group(lambda x: None, group_id="g").expand(), "expand\\(\\) of task group g needs a parameter"),
    "a group over no list": (lambda: task_group(lambda x: None, group_id="g").expand(x=5), "takes a list, a dict or the output"),
    "a map with a task": (lambda: give().map(give), "map\\(\\) of the output of task give takes a plain function of one item"),
    "a mapped branch": (lambda: task.branch(give.fn).expand(value=[1]), "decides which tasks go on, so it cannot be expanded"),
    "a mapped branch operator": (lambda: BranchPythonOperator.partial("a").expand(python_callable=[len]), "cannot be expanded"),
    "a mapped short circuit": (lambda: ShortCircuitOperator.partial("a").expand(python_callable=[len]), "cannot be expanded"),
    "an argument given twice": (lambda: BashOperator.partial("a", bash_command="b").expand(bash_command=["c"]), "given to both partial"),
    "a setup that is a teardown": (lambda: setup(teardown(give))(), "both a setup and a teardown"),
    "a block without a teardown": (lambda: EmptyOperator("a").__exit__(None, None, None), "works for a teardown"),
    "a callback that is none": (lambda: EmptyOperator("a", on_failure_callback="mail"), "on_failure_callback must be a function of the context"),
    "execute with a parameter too many": (lambda: describe_dag(Wrong("a").dag), "must take the context and nothing else"),
    "a step as python_callable": (lambda: PythonOperator("a", python_callable=give), "python_callable is a step; call it in the dag"),
    "an async python_callable": (lambda: BranchPythonOperator("a", python_callable=_async), "is an async def; put @task above it"),
    "success as a code to skip on": (lambda: BashOperator("a", bash_command="true", skip_on_exit_code=0), "cannot be 0"),
    "a deadline that is none": (lambda: DAG("late", deadline=timedelta(hours=1)), "deadline must be a DeadlineAlert"),
    "a deadline without anybody to call": (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(1), None), "callback must be a function"),
    "a deadline that calls no function": (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(1), 5), "must be a function of the context"),
    "a deadline from nowhere": (lambda: DeadlineAlert(datetime(2026, 1, 1), timedelta(1), print), "one of DeadlineReference"),  # type: ignore[arg-type]
    "a deadline of minutes": (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, 15, print), "must be a timedelta"),  # type: ignore[arg-type]
    "a fixed date in words": (lambda: DeadlineReference.FIXED_DATETIME("tomorrow"), "takes a datetime"),  # type: ignore[arg-type]
    "a time limit in words": (lambda: DAG("slow", dagrun_timeout="1h"), "dagrun_timeout"),  # type: ignore[arg-type]
    "a team without a name": (lambda: DAG("ours", team=""), "dag ours: team: the name '' must have 1 to 250 characters"),
    "a team of two": (lambda: DAG("ours", team=["a", "b"]), "dag ours: team"),  # type: ignore[arg-type]
    "a run to be awaited": (lambda: TriggerDagRunOperator("a", trigger_dag_id="b", wait_for_completion=True, poke_interval=0), "poke_interval"),
    "a key of a key": (lambda: give()["a"]["b"], "has keys of one level"),
    "on_failure_fail_dagrun without a teardown": (lambda: EmptyOperator("a", on_failure_fail_dagrun=True), "is for teardowns"),
    "an unknown option": (lambda: SQLOperator("a", sql="select 1", retires=1), "there is no option 'retires'"),
}


async def _async() -> None: ...


_EACH = task_group(lambda y: None, group_id="each")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_while_the_dag_is_described(name: str) -> None:
    """By an AuthoringError that says where and what."""
    make, message = MISTAKES[name]
    with DAG("d"), pytest.raises(AuthoringError, match=message):
        make()


def test_only_executors_that_are_there_are_taken() -> None:
    """Another one is an error, never a promise that nobody keeps."""
    with DAG("early"):
        assert EmptyOperator("one", executor="postgres", executor_config={"note": 1}).options.executor == "postgres"
        for option in ({"executor": "celery"}, {"executor": 5}, {"executor_config": "x"}):
            with pytest.raises(AuthoringError, match=next(iter(option))):
                EmptyOperator("two", **option)
