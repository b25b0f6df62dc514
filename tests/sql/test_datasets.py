"""Datasets in SQL: the event, the queue and the consumer's run commit with the task that wrote; each event goes to exactly one run of each subscriber."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import psycopg
import pytest

from onceflow.db import calls
from tests.database import TestDatabase
from tests.sql.dag_plans import Node
from tests.sql.dataset_dags import end, post, produce, queue, register_dag, register_producer, runs, taken
from tests.sql.engine_calls import Engine

ROUNDS = int(os.environ.get("ONCEFLOW_DATASET_ROUNDS", "40"))  # 200 for the full proof
A, B, C = "s3://a/", "s3://b/", "s3://c/"


def test_the_run_is_there_in_the_transaction_that_completes_the_task(one: Engine, two: Engine) -> None:
    """Event, and consumer's run with its event, become visible at once, by the commit of the completion; no tick is needed."""
    register_dag(one, "report", by=[A])
    register_producer(one, "etl", A)
    task = produce(one, "etl")
    one.begin()
    end(one, task)
    assert (taken(two, "report"), runs(two, "report")) == ([], [])
    one.commit()
    (run,) = runs(two, "report")
    assert taken(two, "report") == [(A, [run])]
    assert queue(two, "report") == [] and one.db.sql("select count(*) from onceflow.unspread_event") == [(0,)]
    assert one.db.sql("select source_dag_id, source_task_id, source_map_index, dataset_uri from onceflow.dataset_event") == [("etl", "load", -1, A)]
    row = one.db.sql("select run_id like 'dataset_triggered__%%', run_type, state, actor from onceflow.dag_run where id = %s", run)
    assert row == [(True, "dataset_triggered", "queued", "datasets")]


def test_nothing_is_there_when_the_completion_is_rolled_back(one: Engine) -> None:
    """A producer that dies before its commit has told nobody anything."""
    register_dag(one, "report", by=[A])
    register_producer(one, "etl", A)
    task = produce(one, "etl")
    one.begin()
    end(one, task)
    one.rollback()
    assert (taken(one, "report"), runs(one, "report"), queue(one, "report")) == ([], [], [])
    end(one, task)
    assert len(runs(one, "report")) == 1


def test_a_task_that_fails_or_is_skipped_tells_nothing(one: Engine) -> None:
    """Only success is an event."""
    register_dag(one, "report", by=[A])
    register_producer(one, "etl", A)
    one.fail(produce(one, "etl"))
    one.call(calls.skip_task(*(task := produce(one, "etl")).owner, task.task_id, "external", "{}", "h", '{"$error": "x", "message": "", "args": []}', 0))
    assert taken(one, "report") == []


def test_a_list_waits_for_all_of_it(one: Engine) -> None:
    """Two of three, one of them twice, are no run yet; the third makes one that takes all four events."""
    register_dag(one, "report", by=[A, B, C])
    for dag_id, uri in (("a", A), ("b", B), ("c", C)):
        register_producer(one, dag_id, uri)
    post(one, "a")
    post(one, "b")
    post(one, "a")
    one.tick()
    assert runs(one, "report") == [] and queue(one, "report") == [A, B]
    post(one, "c")
    (run,) = runs(one, "report")
    assert taken(one, "report") == [(A, [run]), (B, [run]), (A, [run]), (C, [run])]
    post(one, "c")
    assert runs(one, "report") == [run] and queue(one, "report") == [C]


CONDITIONS = [
    ({"any": [{"uri": A}, {"uri": B}]}, [A], True),
    ({"any": [{"uri": A}, {"all": [{"uri": B}, {"uri": C}]}]}, [B], False),
    ({"any": [{"uri": A}, {"all": [{"uri": B}, {"uri": C}]}]}, [B, C], True),
    ({"all": [{"any": [{"uri": A}, {"uri": B}]}, {"uri": C}]}, [A, B], False),
    ({"all": [{"any": [{"uri": A}, {"uri": B}]}, {"uri": C}]}, [B, C], True),
]


@pytest.mark.parametrize(("condition", "posted", "is_met"), CONDITIONS)
def test_conditions_nest(one: Engine, condition: object, posted: list[str], is_met: bool) -> None:
    """& and | to any depth decide whether there is a run."""
    register_dag(one, "report", by=condition)
    for uri in posted:
        one.db.sql("select onceflow.emit_dataset_event(%s)", uri)
    one.tick()
    assert len(runs(one, "report")) == is_met


def test_an_event_goes_to_each_subscriber(one: Engine) -> None:
    """Three dags that run by one dataset have a run each, with the same event."""
    for dag_id in ("x", "y", "z"):
        register_dag(one, dag_id, by=A)
    register_producer(one, "etl", A, B)
    post(one, "etl")
    for dag_id in ("x", "y", "z"):
        (run,) = runs(one, dag_id)
        assert taken(one, dag_id) == [(A, [run]), (B, None)]


def test_four_events_of_which_three_come_during_a_run_make_two_runs(one: Engine) -> None:
    """max_active_runs=1: one event before, three during the first run; every event is taken by exactly one run of each subscriber, the queue is empty at the end."""
    register_dag(one, "report", by=[A], max_active_runs=1)
    register_dag(one, "audit", by=[A])
    register_producer(one, "etl", A)
    post(one, "etl")
    (first,) = runs(one, "report")
    one.tick()
    (asleep,) = [t for t in one.claim(10) if t.run == first]
    for _ in range(3):
        post(one, "etl")
    one.tick()
    assert runs(one, "report") == [first] and queue(one, "report") == [A]
    end(one, asleep)
    one.tick()
    _, second = runs(one, "report")
    assert taken(one, "report") == [(A, [first]), (A, [second]), (A, [second]), (A, [second])]
    assert queue(one, "report") == [] == queue(one, "audit")
    assert [len(found or []) for _, found in taken(one, "audit")] == [1, 1, 1, 1]
    assert one.db.sql("select count(*) from onceflow.waiting_event") == [(0,)]


def test_a_paused_consumer_keeps_its_queue(one: Engine) -> None:
    """What came while it was paused makes one run once it is unpaused."""
    register_dag(one, "report", by=A, is_paused=True)
    register_producer(one, "etl", A)
    post(one, "etl")
    post(one, "etl")
    one.tick()
    assert runs(one, "report") == [] and queue(one, "report") == [A]
    one.db.sql("select onceflow.pause_dag('report', false)")
    one.tick()
    (run,) = runs(one, "report")
    assert taken(one, "report") == [(A, [run]), (A, [run])]


def test_two_producers_at_once_make_one_run_of_both(one: Engine, two: Engine) -> None:
    """The second waits for the first to commit, and then sees its event: neither misses the other's."""
    register_dag(one, "report", by=[A, B])
    register_producer(one, "a", A)
    register_producer(one, "b", B)
    first, second = produce(one, "a"), produce(one, "b")
    one.begin()
    end(one, first)
    future = two.blocks(lambda: end(two, second))
    one.commit()
    future.result(20)
    (run,) = runs(one, "report")
    assert taken(one, "report") == [(A, [run]), (B, [run])]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_other_isolation_levels_leave_it_to_the_tick(one: Engine, isolation: str) -> None:
    """Their snapshot may lack what others have told: the next tick makes the run."""
    register_dag(one, "report", by=A)
    register_producer(one, "etl", A)
    task = produce(one, "etl")
    one.begin(isolation)
    end(one, task)
    one.commit()
    assert runs(one, "report") == [] and len(taken(one, "report")) == 1
    one.tick()
    assert len(runs(one, "report")) == 1


def test_tasks_that_end_together_are_told_once_all_have(one: Engine) -> None:
    """In a batch the dags come after all runs, in the order of their names: two batches never wait for each other in a circle."""
    register_dag(one, "report", by=[A, B])
    register_dag(one, "audit", by=[B])
    register_producer(one, "a", A)
    register_producer(one, "b", B)
    tasks = [produce(one, "b"), produce(one, "a")]
    batch = [["complete_task", t.run, t.ti, t.token, t.task_id, "external", "{}", "h", "null", 0, None] for t in tasks]
    one.call(calls.run_batch(json.dumps(batch)))
    (run,) = runs(one, "report")
    assert sorted(taken(one, "report")) == [(A, [run]), (B, [run])]
    assert len(runs(one, "audit")) == 1


def test_an_event_from_sql_is_spread_by_the_tick(one: Engine, two: Engine) -> None:
    """emit_dataset_event only inserts: an open transaction that called it keeps nobody, and what it told comes with its commit."""
    register_dag(one, "report", by=A)
    register_producer(one, "etl", A)
    two.begin()
    assert two.sql("select onceflow.emit_dataset_event(%s, %s)", A, json.dumps({"rows": 7})) != [(None,)]
    one.tick()
    assert runs(one, "report") == []
    post(one, "etl")
    assert len(runs(one, "report")) == 1
    two.commit()
    one.tick()
    assert len(runs(one, "report")) == 2
    assert one.db.sql("select extra from onceflow.dataset_event where source_dag_id is null") == [({"rows": 7},)]


def test_an_event_from_sql_that_is_rolled_back_never_was(one: Engine, two: Engine) -> None:
    """It belongs to the caller's transaction."""
    register_dag(one, "report", by=A)
    two.begin()
    two.sql("select onceflow.emit_dataset_event(%s)", A)
    two.rollback()
    one.tick()
    assert taken(one, "report") == [] and runs(one, "report") == []


@pytest.mark.parametrize("uri", ["s3://typo/", None, ""])
def test_an_unknown_dataset_is_refused(one: Engine, uri: str | None) -> None:
    """A mistyped URI would be lost without a sound."""
    with pytest.raises(psycopg.Error, match="there is no dataset"):
        one.sql("select onceflow.emit_dataset_event(%s)", uri)


def test_an_event_from_sql_wakes_the_tick(one: Engine, db: TestDatabase) -> None:
    """It notifies the channel that workers listen on, with its commit; with notify => false it does not."""
    register_dag(one, "report", by=A)
    with db.connect() as listener:
        listener.execute("listen onceflow_ready")
        one.sql("select onceflow.emit_dataset_event(%s, notify => false)", A)
        assert list(listener.notifies(timeout=0.2, stop_after=1)) == []
        one.sql("select onceflow.emit_dataset_event(%s)", A)
        assert [n.channel for n in listener.notifies(timeout=10, stop_after=1)] == ["onceflow_ready"]


def test_queue_rows_put_there_by_hand_are_honoured(one: Engine) -> None:
    """As people repair it: an event and its fan-out inserted by hand make a run that takes the event, and only once."""
    register_dag(one, "report", by=A)
    one.db.sql("insert into onceflow.dataset_event (dataset_id) select id from onceflow.dataset where uri = %s", A)
    by_hand = """insert into onceflow.dataset_dag_run_queue (dataset_id, target_dag_id)
        select s.dataset_id, s.dag_id from onceflow.dag_schedule_dataset_reference s on conflict (dataset_id, target_dag_id) do nothing"""
    one.db.sql(by_hand)
    one.tick()
    (run,) = runs(one, "report")
    assert queue(one, "report") == []
    assert one.db.sql("select dag_run, event_id from onceflow.dagrun_dataset_event") == [(run, one.db.sql("select id from onceflow.dataset_event")[0][0])]
    one.db.sql(by_hand)
    one.tick()
    assert len(runs(one, "report")) == 2
    assert one.db.sql("select count(*) from onceflow.dagrun_dataset_event") == [(1,)]


def test_the_tick_waits_for_nobody_who_holds_a_queue_row(one: Engine, two: Engine) -> None:
    """An operator's open transaction with a queue row in it holds that dag up, not the tick; the next one goes on."""
    register_dag(one, "report", by=A)
    two.begin()
    two.sql("insert into onceflow.dataset_dag_run_queue (dataset_id, target_dag_id) select id, 'report' from onceflow.dataset where uri = %s", A)
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    one.later(one.tick).result(20)
    assert runs(one, "report") == []
    two.rollback()
    one.tick()
    assert len(runs(one, "report")) == 1


def test_a_dag_in_anothers_hands_is_left_to_the_next_tick(one: Engine, two: Engine) -> None:
    """While a producer that waits for its commit holds the consumer, the tick passes it over and loses nothing."""
    register_dag(one, "report", by=A)
    register_producer(one, "etl", A)
    task = produce(one, "etl")
    two.begin()
    end(two, task)
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    one.later(one.tick).result(20)
    assert runs(one, "report") == []
    two.commit()
    one.tick()
    assert [found for _, found in taken(one, "report")] == [[run] for run in runs(one, "report")]
    assert len(runs(one, "report")) == 2


def test_a_mapped_task_tells_once_for_each_instance(one: Engine) -> None:
    """source_map_index says which."""
    register_dag(one, "report", by=A, max_active_runs=1)
    register_dag(one, "etl", nodes={"load": Node(mapping=(("x", [1, 2, 3]),), options={"outlets": [A]})})
    one.start("etl")
    one.tick()
    for task in one.claim(10):
        end(one, task)
    assert one.db.sql("select source_map_index from onceflow.dataset_event order by id") == [(0,), (1,), (2,)]


def test_what_a_task_said_goes_with_its_event(one: Engine) -> None:
    """The extra that came beside what it pushed is the event's, and no value of the task any more."""
    register_producer(one, "etl", A, B)
    task = produce(one, "etl")
    pushed = json.dumps({"$outlet_events": [{"uri": B, "alias": None, "extra": {"rows": 7}}], "k": 1})
    one.call(calls.complete_task(*task.owner, task.task_id, "external", "{}", "h", "null", 0, pushed))
    assert one.db.sql("select dataset_uri, extra from onceflow.dataset_event order by id") == [(A, None), (B, {"rows": 7})]
    assert one.db.sql("select key from onceflow.pushed") == [("k",)]


def test_an_alias_stands_for_what_the_task_says(one: Engine) -> None:
    """A new dataset is made known; who runs by the alias runs by it, from this very event on, and after the dag is parsed anew."""
    register_dag(one, "report", by={"alias": "exports"})
    register_dag(one, "etl", nodes={"load": Node(options={"outlet_aliases": ["exports"]})})
    for uri in (A, B, A):
        task = produce(one, "etl")
        pushed = json.dumps({"$outlet_events": [{"uri": uri, "alias": "exports", "extra": None}]})
        one.call(calls.complete_task(*task.owner, task.task_id, "external", "{}", "h", "null", 0, pushed))
    assert [len(found or []) for _, found in taken(one, "report")] == [1, 1, 1] and len(runs(one, "report")) == 3
    register_dag(one, "report", by={"alias": "exports"}, description="anew")
    assert one.db.sql("select count(*) from onceflow.dag_schedule_dataset_reference") == [(2,)]


def test_the_interval_spans_the_producers_intervals(one: Engine) -> None:
    """From the earliest start to the latest end of the runs that wrote."""
    register_dag(one, "report", by=[A, B])
    register_producer(one, "a", A)
    register_producer(one, "b", B)
    for dag_id, day in (("a", 2), ("b", 1)):
        one.sql(
            "select onceflow.start_run(%s, logical_date => %s, interval_start => %s, interval_end => %s)",
            dag_id,
            f"2026-01-0{day}",
            f"2026-01-0{day}",
            f"2026-01-0{day + 1}",
        )
    one.tick()
    for task in one.claim(10):
        end(one, task)
    found = one.db.sql("select data_interval_start::date::text, data_interval_end::date::text from onceflow.run where id = %s", runs(one, "report")[0])
    assert found == [("2026-01-01", "2026-01-03")]


def test_three_datasets_at_once_make_one_run_a_round(db: TestDatabase, make_engine: Callable[..., Engine], rounds: int = ROUNDS) -> None:
    """Three producers end at the same moment, beside two that tick: each round is exactly one run, with three datasets."""
    uris = {"a": A, "b": B, "c": C}
    engines = {name: make_engine() for name in uris}
    first = engines["a"]
    for engine in engines.values():
        register_dag(engine, "report", by=list(uris.values()), max_active_runs=100_000)
        for name, uri in uris.items():
            register_producer(engine, name, uri)
    tickers, stop = [make_engine(), make_engine()], threading.Event()
    db.sql("update onceflow.worker set heartbeat_at = heartbeat_at + interval '1 hour'")  # it may take longer than a lease

    def tick(engine: Engine) -> None:
        while not stop.is_set():
            engine.tick()

    ticking = [ticker.later(lambda ticker=ticker: tick(ticker)) for ticker in tickers]  # type: ignore[misc]
    try:
        for number in range(1, rounds + 1):
            tasks = {}
            for name in uris:
                run = first.start(name)
                db.wait_for("select count(*) from onceflow.ready where run = %s", run)
                (tasks[name],) = [t for t in first.claim(100) if t.run == run]
            for future in [engines[name].later(lambda e=engines[name], t=tasks[name]: end(e, t)) for name in uris]:  # type: ignore[misc]
                future.result(20)
            assert len(runs(first, "report")) == number
            for table in ("ready", "lease"):  # nobody works on them: they would fill the pool
                db.sql(f"delete from onceflow.{table} where run = any(%s)", runs(first, "report"))
    finally:
        stop.set()
    for future in ticking:
        future.result(20)
    each = db.sql(
        "select count(*), count(distinct e.dataset_id) from onceflow.dagrun_dataset_event x join onceflow.dataset_event e on e.id = x.event_id group by x.dag_run"
    )
    assert each == [(3, 3)] * rounds
    assert db.sql("select count(*) from onceflow.dataset_dag_run_queue") == [(0,)]
