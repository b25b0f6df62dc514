"""What tasks of dags see of their run, give each other, and render."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onceflow import AsyncClient, InvalidArgument, RunFailed
from onceflow.codec import decode
from tests.engine.local_worker import Engine, load_flows, wait_until
from tests.engine.test_dag_operators import INPUTS, run_dag

DAGS = Path(__file__).parent / "flows" / "context_flows.py"
DATE = datetime(2026, 3, 1, 6, tzinfo=UTC)
PUSHED = "select t.task_id, p.key from onceflow.pushed p join onceflow.ti t on t.run = p.run and t.id = p.ti where p.run = %s order by 1, 2"


@pytest.fixture(scope="module")
def engine(idle_engine: Engine) -> Engine:
    """With a connection and variables in the worker's environment."""
    env = {"ONCEFLOW_CONN_BANK": "https://me:s3cret%40x@bank.example/api", "ONCEFLOW_VAR_API_KEY": "key-77", "ONCEFLOW_VAR_LIMITS": '{"most": 5}'}
    idle_engine.start_worker(env=env)
    return idle_engine


def outputs(engine: Engine, run: int, task_id: str) -> list[Any]:
    """What its instances returned, as Python values."""
    text = "select output::text from onceflow.step_ledger where dag_run = %s and task_id = %s and final order by map_index"
    return [decode(row[0]) for row in engine.db.sql(text, run, task_id)]


def test_a_task_sees_its_context_by_parameter_name(engine: Engine) -> None:
    """Parameters that are named as something of the context are filled in where the call leaves them out; **context gets the rest."""
    run = engine.client.trigger("context", logical_date=DATE, params={"count": 4}, run_id="seen")
    assert run.result(20) == "success"
    (seen,) = outputs(engine, run.run, "by_name")
    assert seen["task"] == ["by_name", "by_name", "context", -1, 1, 3]
    assert seen["dates"] == ["2026-03-01", "20260301", "2026-03-01T06:00:00+00:00", DATE, DATE, DATE]
    assert seen["run"] == ["seen", "seen", "manual"] and seen["params"] == {"region": "north", "count": 4}
    assert {"conn", "ti"} & set(seen["rest"]) == set() and {"dag_run", "map_index", "task_instance", "ts_nodash"} <= set(seen["rest"])
    assert outputs(engine, run.run, "by_asking") == ["2026-03-01"] and outputs(engine, run.run, "everything") == [True]
    assert engine.db.sql(INPUTS, run.run, "by_name") == [({"factor": 3},)]


def test_values_are_pushed_and_pulled_by_key(engine: Engine) -> None:
    """By the explicit form, by multiple_outputs, by references to keys; of a mapped task as a list in the order of its items."""
    found = run_dag(engine, "pushing")
    run = found["run"]
    assert found["state"] == "success", found
    assert outputs(engine, run, "pull_async") == [["none", [1, 2, (3, 4)]]]
    assert outputs(engine, run, "sum") == [[1, [2], 10, {"left": 1, "right": [2]}]]
    assert outputs(engine, run, "pull_mapped") == [[[10, 12, 14], 12, [14, 10], None, [2]]]


def test_nothing_is_left_of_a_try_that_failed(engine: Engine) -> None:
    """What is pushed is written in the transaction that completes the task."""
    run = run_dag(engine, "pushing")["run"]
    pushed = engine.db.sql(PUSHED, run)
    assert ("second_try", "kept") in pushed and ("second_try", "lost") not in pushed and ("transactional", "of_the_transaction") in pushed
    written = "select bool_and(p.xmin::text::bigint = l.xid::text::bigint %% 4294967296) from onceflow.pushed p join onceflow.step_ledger l on l.ti = p.ti and l.final"
    assert engine.db.sql(f"{written} where p.key = 'of_the_transaction' and p.run = %s", run) == [(True,)]
    view = (
        "select task_id, key, convert_from(value, 'UTF8')::jsonb, map_index from onceflow.xcom where run_id = (select run_id from onceflow.run where id = %s)"
    )
    rows = {(task, key, index): value for task, key, value, index in engine.db.sql(view, run)}
    assert rows["several", "left", -1] == 1 and rows["twice", "return_value", 2] == 14 and ("extract_classic", "return_value", -1) not in rows


def test_what_cannot_be_pushed_fails_by_name(engine: Engine) -> None:
    """Too large, or of a type that cannot be kept: the error names task, key and limit."""
    found = run_dag(engine, "too_much")
    errors = dict(engine.db.sql("select task_id, error from onceflow.task_instance where run = %s", found["run"]))
    assert "xcom_push('much') of task push_much" in errors["push_much"] and "8388608" in errors["push_much"].replace(",", "").replace("_", "")
    assert "xcom_push('odd') of task push_odd" in errors["push_odd"] and "object" in errors["push_odd"]


def test_templates_are_rendered_and_recorded(engine: Engine) -> None:
    """In texts of the dag's file, at any depth, never in data; what was rendered is the task's recorded input."""
    run = engine.client.trigger("templates", logical_date=DATE, params={"name": "Ada"}, run_id="tpl")
    run.result(20)
    assert outputs(engine, run.run, "text") == ["2026-03-01 Ada 2026-03-02 TPL 20260301T060000"]
    assert outputs(engine, run.run, "nested") == [{"a": ["20260301", 7, ("nested",)]}]
    assert outputs(engine, run.run, "data_is_no_template") == ["{{ ds }}"] == outputs(engine, run.run, "pulls")
    assert outputs(engine, run.run, "items") == ["2026-03-01", "plain"] and outputs(engine, run.run, "file") == [[{"day": "2026-03-01"}]]
    assert engine.db.sql(INPUTS, run.run, "text") == [({"value": "2026-03-01 Ada 2026-03-02 TPL 20260301T060000"},)]


def test_secrets_are_masked_in_what_is_recorded(engine: Engine) -> None:
    """A task gets the password; the ledger's inputs show ***."""
    run = engine.client.trigger("templates", params={"name": "Ada"})
    run.result(20)
    assert outputs(engine, run.run, "secret") == [["s3cret@x", "bank.example", "key-77", "5"]]
    assert engine.db.sql(INPUTS, run.run, "secret") == [({"value": ["***", "bank.example", "***", "5"]},)]


def test_native_templates_keep_types(engine: Engine) -> None:
    """With render_template_as_native_obj=True a lone {{ }} gives the list itself."""
    found = run_dag(engine, "native", rows=[1, 2])
    assert outputs(engine, found["run"], "kept") == [[1, 2]]


def test_an_undefined_name_is_told(engine: Engine) -> None:
    """By task and field, with what a template knows; the sandbox refuses the inner life of objects; nothing of it is tried again."""
    found = run_dag(engine, "undefined")
    rows = engine.db.sql("select task_id, try_number, error from onceflow.task_instance where run = %s", found["run"])
    errors = {task_id: error for task_id, _, error in rows}
    assert {tries for _, tries, _ in rows} == {1}
    assert errors["unknown"].startswith("task unknown of dag undefined, field value: 'dss' is undefined in '{{ dss }}'; a template knows conn, dag,")
    assert "unsafe" in errors["outside"] and "set ONCEFLOW_CONN_NOBODY" in errors["no_connection"]


async def test_params_are_checked_when_a_run_is_started(engine: Engine) -> None:
    """By the schema of the dag, whether it is named or given, by both clients, and no run is made; what SQL starts fails at its first task."""
    dag = load_flows("context_flows").context
    engine.client.trigger("context", params={"count": 2}).result(20)
    before = engine.db.sql("select count(*) from onceflow.run")
    for start in (
        lambda: engine.client.trigger("context", params={"count": 0}),
        lambda: engine.client.trigger(dag, params={"count": "2"}),
        lambda: engine.client.start(dag, count=-1),
    ):
        with pytest.raises(InvalidArgument, match=r"dag context: param 'count' is .*(minimum|not of type)"):
            start()
    async with AsyncClient(engine.db.app_dsn) as client:
        with pytest.raises(InvalidArgument, match="param 'count'"):
            await client.trigger("context", params={"count": 0})
        assert await (await client.trigger(dag, params={"count": 9})).result(20) == "success"
    assert engine.db.sql("select count(*) from onceflow.run") == [(before[0][0] + 1,)]
    run = engine.db.sql("select (onceflow.start_run('context', '{\"count\": 0}') ->> 'run')::bigint")[0][0]
    engine.db.wait_for("select state = 'failed' from onceflow.run where id = %s", run)
    assert "param 'count' is 0" in engine.db.sql("select error from onceflow.task_instance where run = %s and task_id = 'by_asking'", run)[0][0]


def test_a_run_is_triggered_in_a_transaction_of_ones_own(engine: Engine) -> None:
    """With conn= it is there when, and only when, that transaction commits."""
    with engine.db.connect("app") as conn:
        conn.autocommit = False
        engine.client.trigger("context", run_id="undone", conn=conn)
        conn.rollback()
        kept = engine.client.trigger("context", run_id="kept", conn=conn)
        conn.commit()
    assert kept.result(20) == "success"
    assert engine.db.sql("select count(*) from onceflow.run where run_id = 'undone'") == [(0,)]


def test_callbacks_are_called_after_the_commit(engine: Engine, tmp_path: Path) -> None:
    """Each sees what came of the task; one that raises is logged and changes nothing; the rows of the outbox go."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    assert run_dag(engine, "calling_back", file=str(good), fail=False)["state"] == "success"
    assert run_dag(engine, "calling_back", file=str(bad), fail=True)["state"] == "failed"
    wait_until(lambda: engine.db.sql("select count(*) from onceflow.callback") == [(0,)])
    assert sorted(good.read_text().splitlines()) == ["dag run success", "execute work running 1 '-'", "success work success 1 None"]
    called = [
        "dag run failed",
        "execute work running 1 '-'",
        "execute work running 2 '-'",
        "failure work failed 2 ValueError('as told')",
        "retry work up_for_retry 1 ValueError('as told')",
    ]
    assert sorted(bad.read_text().splitlines()) == called


def test_a_callback_outlives_its_worker(engine: Engine, tmp_path: Path) -> None:
    """Taken by a worker that died, it is called by another one: at least once."""
    file = tmp_path / "file"
    found = run_dag(engine, "calling_back", file=str(file), fail=False)
    wait_until(lambda: engine.db.sql("select count(*) from onceflow.callback") == [(0,)])
    ti = engine.db.sql("select id from onceflow.ti where run = %s", found["run"])[0][0]
    engine.db.sql(
        "insert into onceflow.callback (run, ti, dag_id, event, try_number, due_at) values (%s, %s, 'calling_back', 'success', 1, now() + interval '0.5 s')",
        found["run"],
        ti,
    )
    wait_until(lambda: file.read_text().count("success work success 1") == 2)


def test_groups_name_and_join_their_tasks(engine: Engine) -> None:
    """Nested, called twice; arrows to a group lead to its first tasks, from it leave its last ones; the plan keeps groups and labels."""
    found = run_dag(engine, "grouped")
    assert found["state"] == "success"
    prefixes = ("load", "load__1")
    assert set(found["tis"]) == {"begin", "end"} | {f"{p}.{name}" for p in prefixes for name in ("read", "check.one", "check.two", "write")}
    (plan,) = engine.db.sql("select plan from onceflow.dag_version where dag_id = 'grouped'")[0]
    tasks = {t["task_id"]: t for t in plan["tasks"]}
    names = {t["ix"]: t["task_id"] for t in plan["tasks"]}
    assert [names[ix] for ix in tasks["load.write"]["upstream"]] == ["load.check.one", "load.check.two"] and tasks["load.check.one"]["retries"] == 2
    assert sorted(names[ix] for ix in tasks["end"]["upstream"]) == ["load.write", "load__1.write"]
    assert [(names[a], names[b], text) for a, b, text in plan["labels"]] == [("begin", "load.read", "first")]
    assert {g["group_id"]: g["parent"] for g in plan["groups"]} == {"load": None, "load.check": "load", "load__1": None, "load__1.check": "load__1"}
    assert tasks["load.check.two"]["group"] == "load.check"


def test_a_failed_run_says_which_tasks_failed(engine: Engine) -> None:
    """result() raises RunFailed with their names and errors."""
    with pytest.raises(RunFailed, match="task no_connection failed: there is no connection 'nobody'"):
        engine.client.trigger("undefined").result(20)
