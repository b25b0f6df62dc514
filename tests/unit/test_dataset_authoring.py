"""Datasets in dag files: what may be said, what is refused, and what the plan keeps of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceflow import DAG, Asset, AuthoringError, Dataset, DatasetAlias, DatasetAll, DatasetAny, DatasetOrTime, EmptyOperator, InvalidArgument, Metadata, step
from onceflow.authoring.graph.plan import describe_dag
from onceflow.codec import decode
from onceflow.engine.outlet_events import OUTLET_EVENTS, OutletEvents, read_triggering_events

A, B, C = Dataset("s3://a/"), Dataset("s3://b/"), Dataset("s3://c/")
ALIAS = DatasetAlias("exports")


def plan_of(**options: Any) -> dict[str, Any]:
    with DAG("d", **options) as dag:
        EmptyOperator("one")
    return describe_dag(dag)


CONDITIONS: list[tuple[Any, Any]] = [
    (A, {"uri": "s3://a/"}),
    ([A], {"all": [{"uri": "s3://a/"}]}),
    ([A, B], {"all": [{"uri": "s3://a/"}, {"uri": "s3://b/"}]}),
    (A & B & C, {"all": [{"uri": "s3://a/"}, {"uri": "s3://b/"}, {"uri": "s3://c/"}]}),
    (A | B & C, {"any": [{"uri": "s3://a/"}, {"all": [{"uri": "s3://b/"}, {"uri": "s3://c/"}]}]}),
    (DatasetAll(A, DatasetAny(B, ALIAS)), {"all": [{"uri": "s3://a/"}, {"any": [{"uri": "s3://b/"}, {"alias": "exports"}]}]}),
    (DatasetOrTime([A], "0 6 * * *"), {"all": [{"uri": "s3://a/"}]}),
]


@pytest.mark.parametrize(("schedule", "condition"), CONDITIONS)
def test_a_schedule_of_datasets(schedule: Any, condition: Any) -> None:
    """A list is all of them; & and | nest; the plan has the condition and the datasets, and a schedule of time only with DatasetOrTime."""
    plan = plan_of(schedule=schedule)
    assert plan["condition"] == condition
    assert (plan["schedule"] is None) == (not isinstance(schedule, DatasetOrTime))
    assert all(row.keys() == {"uri"} for row in plan["datasets"])


def test_a_dag_without_datasets_says_nothing_of_them() -> None:
    """Its plan is what it was before there were any, so it makes no new version."""
    assert not {"datasets", "condition"} & plan_of(schedule="@daily").keys() and not {"outlets", "inlets"} & plan_of()["tasks"][0].keys()


def test_outlets_and_inlets() -> None:
    """One or a list, each once; aliases are kept apart; those of default_args hold for all tasks."""
    with DAG("d", default_args={"outlets": A}) as dag:
        EmptyOperator("one")
        EmptyOperator("two", outlets=[B, B, ALIAS], inlets=A)
    tasks = {t["task_id"]: t for t in describe_dag(dag)["tasks"]}
    assert tasks["one"]["outlets"] == ["s3://a/"] and tasks["one"]["operator"] == "EmptyOperator with outlets"
    assert (tasks["two"]["outlets"], tasks["two"]["outlet_aliases"], tasks["two"]["inlets"]) == (["s3://b/"], ["exports"], ["s3://a/"])


def test_what_is_known_of_a_dataset_is_gathered() -> None:
    """Declared in several places, it is described once, with what each of them says."""
    with DAG("d", schedule=Dataset("x", extra={"k": 1})) as dag:
        EmptyOperator("one", outlets=Dataset("x", classification="personal"))
    assert describe_dag(dag)["datasets"] == [{"uri": "x", "extra": {"k": 1}, "classification": "personal"}]


def test_the_same_uri_is_the_same_dataset() -> None:
    """Whatever its extra; Asset is another name."""
    assert Dataset("x", extra={"a": 1}) == Asset("x") and Asset is Dataset and len({Dataset("x", {"a": 1}), Dataset("x")}) == 1
    assert repr(A | (B & C)) == "Dataset('s3://a/') | (Dataset('s3://b/') & Dataset('s3://c/'))"


REFUSED: list[tuple[Any, str]] = [
    (lambda: Dataset(""), "a dataset's URI must have 1 to 3000 characters"),
    (lambda: Dataset("x" * 3001), "it has 3001"),
    (lambda: Dataset("a\nb"), "control character"),
    (lambda: Dataset(" a"), "begin or end with a space"),
    (lambda: Dataset(7), "must be a text, not 7"),  # type: ignore[arg-type]
    (lambda: Dataset("a", extra=[1]), "extra must be a dict"),  # type: ignore[arg-type]
    (lambda: Dataset("a", classification=""), "dataset a: classification must have"),
    (lambda: DatasetAlias(""), "a dataset alias must have"),
    (lambda: A & "s3://b/", "joins datasets"),
    (lambda: DatasetAll(), "at least one dataset"),
    (lambda: DatasetOrTime("0 6 * * *", A), "takes a dataset"),
    (lambda: DatasetOrTime(A, B), "a schedule of time second"),
    (lambda: DatasetOrTime(A, None), "a schedule of time second"),
    (lambda: DAG("d", schedule=DatasetOrTime(A, "not cron")), "not cron"),
    (lambda: DAG("d", schedule=[A, "0 6 * * *"]), "for both write DatasetOrTime"),
    (lambda: DAG("d", default_args={"outlets": ["s3://a/"]}), "outlets must be datasets"),
    (lambda: DAG("d", default_args={"inlets": [ALIAS]}), "inlets must be datasets"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_mistakes_are_refused_at_once(make: Any, said: str) -> None:
    """By an AuthoringError that says what is accepted."""
    with pytest.raises(AuthoringError, match=said):
        make()


def test_a_generator_needs_outlets() -> None:
    """Only a task with outlets has something to yield; an async one says it through outlet_events."""

    def yields() -> Any:
        yield Metadata(A)

    async def yields_async() -> Any:
        yield Metadata(A)

    with DAG("d"):
        step(outlets=[A])(yields)
        with pytest.raises(AuthoringError, match="is a generator"):
            step()(yields)
        with pytest.raises(AuthoringError, match="is a generator"):
            step(outlets=[A])(yields_async)


def test_what_a_task_says_is_packed() -> None:
    """Extras of datasets, and datasets of aliases, each once, the last word counts; nothing is packed where nothing was said."""
    events, pushed = OutletEvents("t", (A, B, ALIAS)), dict[str, str]()
    events.save(pushed)
    assert pushed == {}
    events[A].extra["wait"] = timedelta(seconds=1)
    events["s3://b/"].extra |= {"rows": 2}
    events["exports"].add("s3://x/", {"n": 1})
    events[ALIAS].add(C)
    events[ALIAS].add(C, {"n": 2})
    events.save(pushed)
    assert decode(pushed[OUTLET_EVENTS]) == [
        {"uri": "s3://a/", "alias": None, "extra": {"wait": timedelta(seconds=1)}},
        {"uri": "s3://b/", "alias": None, "extra": {"rows": 2}},
        {"uri": "s3://x/", "alias": "exports", "extra": {"n": 1}},
        {"uri": "s3://c/", "alias": "exports", "extra": {"n": 2}},
    ]
    assert list(events) == [A, B, ALIAS] and len(events) == 3


WRONG: list[tuple[Any, str]] = [
    (lambda e: e[C], "task t has no outlet Dataset\\('s3://c/'\\)"),
    (lambda e: e["nothing"], "has no outlet"),
    (lambda e: e[7], "has no outlet 7"),
    (lambda e: e[A].add(C), "add works for aliases"),
    (lambda e: e[ALIAS].add(7), "takes a dataset, not 7"),
    (lambda e: e.collect(x for x in [7]), "task t yielded 7"),
    (lambda e: e.collect(x for x in [Metadata(A, extra=[1])]), "extra must be a dict"),  # type: ignore[arg-type]
    (lambda e: e.collect(x for x in [Metadata(C, {}, alias=DatasetAlias("other"))]), "has no outlet DatasetAlias"),
]


@pytest.mark.parametrize(("work", "said"), WRONG)
def test_what_cannot_be_said_is_refused(work: Any, said: str) -> None:
    """By name, in the task that says it."""
    with pytest.raises(InvalidArgument, match=said):
        work(OutletEvents("t", (A, ALIAS)))


def test_in_another_database_nothing_is_promised() -> None:
    """The extra would not be in the transaction of the effect; it is refused, the event itself comes with the task's record."""
    events = OutletEvents("t", (A,))
    events.is_elsewhere = True
    events.save({})
    events[A].extra["n"] = 1
    with pytest.raises(InvalidArgument, match="in another database"):
        events.save({})


def test_triggering_events_are_found_by_uri_or_dataset() -> None:
    """A Dataset is as good as its URI."""
    row = {
        "uri": "s3://a/",
        "extra": None,
        "timestamp": "2026-01-01T00:00:00+01:00",
        "source_dag_id": "d",
        "source_task_id": "t",
        "source_run_id": "r",
        "source_map_index": -1,
    }
    found = read_triggering_events([row, row])
    assert found[A] == found["s3://a/"] and len(found[A]) == 2 and A in found and B not in found and found.get(B, []) == []
    assert found[A][0].timestamp.isoformat() == "2025-12-31T23:00:00+00:00"
