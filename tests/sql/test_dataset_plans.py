"""What dag files say of datasets, as rows: subscriptions, references, orphans, lineage; and who may tell of a dataset."""

from __future__ import annotations

from tests.database import TestDatabase
from tests.sql.dag_plans import Node
from tests.sql.dataset_dags import queue, register_dag, register_producer, runs, taken
from tests.sql.engine_calls import Engine, sqlstate_of

A, B, C = "s3://a/", "s3://b/", "s3://c/"


def test_a_dropped_subscription_takes_its_queue_along(one: Engine, two: Engine) -> None:
    """A plan without a dataset deletes what waited for it, in the transaction that saves the plan; what remains may be a run now."""
    register_dag(one, "report", by=[A, B])
    register_producer(one, "etl", A, B)
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    one.tick()
    one.begin()
    register_dag(one, "report", by=[B, C])
    assert queue(two, "report") == [A]
    one.commit()
    assert queue(two, "report") == [] and one.db.sql("select count(*) from onceflow.waiting_event") == [(0,)]
    assert one.db.sql("select d.uri from onceflow.dag_schedule_dataset_reference s join onceflow.dataset d on d.id = s.dataset_id order by 1") == [(B,), (C,)]


def test_a_looser_condition_is_met_by_what_waits(one: Engine) -> None:
    """From all to any: what had gathered makes a run with the next tick."""
    register_dag(one, "report", by=[A, B])
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    one.tick()
    register_dag(one, "report", by={"any": [{"uri": A}, {"uri": B}]})
    one.tick()
    assert len(runs(one, "report")) == 1


def test_what_no_dag_names_is_orphaned(one: Engine) -> None:
    """The flag follows what dags declare; the events stay."""
    register_dag(one, "report", by=A)
    register_producer(one, "etl", B)
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    register_dag(one, "report", by=C)
    one.sql("select onceflow.mark_orphans()")
    assert one.db.sql("select uri, is_orphaned from onceflow.dataset order by 1") == [(A, True), (B, False), (C, False)]
    register_dag(one, "report", by=A)
    one.sql("select onceflow.mark_orphans()")
    assert one.db.sql("select uri, is_orphaned from onceflow.dataset order by 1") == [(A, False), (B, False), (C, True)]
    assert one.db.sql("select count(*) from onceflow.dataset_event") == [(1,)]


def test_references_follow_the_plan(one: Engine) -> None:
    """Outlets and inlets of tasks, as long as the plan has them."""
    register_dag(one, "etl", nodes={"load": Node(options={"outlets": [A], "inlets": [B]}), "other": Node(options={"outlets": [A]})})
    text = "select 'out', task_id from onceflow.task_outlet_dataset_reference union all select 'in', task_id from onceflow.task_inlet_dataset_reference order by 1, 2"
    assert one.db.sql(text) == [("in", "load"), ("out", "load"), ("out", "other")]
    register_dag(one, "etl", nodes={"load": Node()})
    assert one.db.sql(text) == []


def test_a_dag_that_was_deleted_leaves_no_subscription(one: Engine) -> None:
    """Its references and its queue go; the events stay."""
    register_dag(one, "report", by=[A, B])
    one.sql("select onceflow.emit_dataset_event(%s)", A)
    one.tick()
    one.db.sql("update onceflow.dag set is_active = false where dag_id = 'report'")
    one.db.sql("select onceflow.delete_dag('report')")
    counts = "select (select count(*) from onceflow.dag_schedule_dataset_reference), (select count(*) from onceflow.dataset_dag_run_queue), (select count(*) from onceflow.waiting_event)"
    assert one.db.sql(counts) == [(0, 0, 0)]
    assert len(taken(one, "report")) == 1


def test_cleaning_leaves_what_waits(one: Engine) -> None:
    """Old events go, with the note of which run took them; those that wait for their run stay."""
    register_dag(one, "report", by=A)
    register_dag(one, "joined", by=[B, C])
    for uri in (A, B):
        one.sql("select onceflow.emit_dataset_event(%s)", uri)
    one.tick()
    assert one.sql("select onceflow.clean_leftovers('dataset_event', -1)") == [(1,)]
    assert one.db.sql("select dataset_uri from onceflow.dataset_event") == [(B,)]
    assert one.db.sql("select count(*) from onceflow.dagrun_dataset_event") == [(0,)]


def test_who_may_tell(db: TestDatabase, one: Engine) -> None:
    """An application and a step may tell of a dataset in their own transactions; neither writes the tables itself."""
    register_dag(one, "report", by=A)
    for login in ("app", "step", "worker"):
        with db.connect(login) as conn:
            conn.execute("select onceflow.emit_dataset_event(%s)", (A,))
            assert sqlstate_of(lambda conn=conn: conn.execute("insert into onceflow.dataset_dag_run_queue values (1, 'x')")) == "42501"  # type: ignore[misc]
    with db.connect("auditor") as conn:
        assert sqlstate_of(lambda: conn.execute("select onceflow.emit_dataset_event(%s)", (A,))) == "42501"


def test_where_data_went(one: Engine) -> None:
    """From dataset over task to dataset across dags: by inlets, or by what the dag runs by; a circle is followed once."""
    register_dag(one, "clean", nodes={"load": Node(options={"inlets": [A], "outlets": [B]}), "other": Node(options={"outlets": ["s3://x/"]})})
    register_dag(one, "report", by=[B], nodes={"build": Node(options={"outlets": [C]}), "again": Node(options={"outlets": [A]})})
    register_dag(one, "read", nodes={"look": Node(options={"inlets": [C]})})
    one.db.sql("update onceflow.dataset set classification = 'personal' where uri = %s", A)
    assert one.db.sql("select depth, source_uri, dag_id, task_id, target_uri, target_classification from onceflow.trace_dataset(%s)", A) == [
        (1, A, "clean", "load", B, None),
        (2, B, "report", "again", A, "personal"),
        (2, B, "report", "build", C, None),
        (3, C, "read", "look", None, None),
    ]
    assert one.db.sql("select dag_id, task_id, target_uri from onceflow.dataset_lineage where source_uri is null") == [("clean", "other", "s3://x/")]
