"""`dag.test(...)` and `onceflow dags test`: a run of a dag in this process, on a database that is gone afterwards."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onceflow import DAG, AuthoringError, EmptyOperator, InvalidArgument, Param, dag, task
from onceflow.errors import InvalidTransition
from tests.database import TestDatabase
from tests.engine.test_cli import Cli, cli
from tests.engine.test_trial import bundled, folder

__all__ = ["bundled", "cli", "folder"]
CALLED: list[str] = []


@task
def list_days(ds: str, params: dict[str, int]) -> list[str]:
    CALLED.append(threading.current_thread().name)
    return [f"{ds}/{number}" for number in range(params["days"])]


@task(retries=1)
def load(day: str) -> str:
    if day.endswith("/7"):
        raise ValueError(f"no data for {day}")
    return day.upper()


@task(trigger_rule="all_done", queue="slow")
def report(days: list[str]) -> int:
    return len(days)


@task
def only() -> int:
    return 7


@dag(
    schedule="0 6 * * *",
    start_date=datetime(2026, 1, 1),
    params={"days": Param(2, type="integer")},
    on_success_callback=lambda context: CALLED.append("success"),
)
def tried():
    days = load.expand(day=list_days())
    report(days) >> EmptyOperator("end")


def test_a_dag_runs_and_tells_of_its_tasks() -> None:
    """Its states, what its tasks returned, by id and index; params and date reach the tasks; a scheduled dag need not be unpaused; callbacks are called."""
    CALLED.clear()
    run = tried.test(logical_date=datetime(2026, 3, 4, tzinfo=UTC))
    assert run.state == "success" and run.errors == {}
    assert run.tasks == {"list_days": "success", "load[0]": "success", "load[1]": "success", "report": "success", "end": "success"}
    assert run.outputs["load[1]"] == "2026-03-04/1" and run.outputs["report"] == 2
    assert len(CALLED) == 2 and CALLED[1] == "success"


def test_a_failed_run_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The states of all tasks and what was raised; retries were made without waiting; params that do not fit are refused before anything is started."""
    run = tried.test(params={"days": 8})
    assert (run.tasks["load[7]"], run.tasks["load[6]"]) == ("failed", "success")
    assert isinstance(run.errors["load[7]"], ValueError) and "no data for" in str(run.errors["load[7]"])
    assert "no data for" in capsys.readouterr().err
    with pytest.raises(InvalidArgument, match="days"):
        tried.test(params={"days": "many"})


def test_on_a_real_database(db: TestDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so; the run stays, with type test. Neither a setup nor a dag of another version fits."""
    with DAG("real") as made:
        only()
    run = made.test(dsn=db.dsn)
    assert (run.state, run.outputs) == ("success", {"only": 7}) and "its effects are real" in capsys.readouterr().err
    assert db.sql("select run_type, state from onceflow.dag_run where run_id = %s", run.run_id) == [("test", "success")]
    with pytest.raises(AuthoringError, match="Drop one"):
        made.test(dsn=db.dsn, setup="select 1")
    with made:
        EmptyOperator("more")
    with pytest.raises(InvalidTransition, match="another version"):
        made.test(dsn=db.dsn)


def test_the_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`onceflow dags test`: a table or JSON, exit code 1 if the run failed; what is wrong with the file is told."""
    monkeypatch.setenv("ONCEFLOW_EMBEDDED_DIR", str(folder / ".onceflow"))
    (tmp_path / "steps.py").write_text(
        "from onceflow import dag, task\n\n@task\ndef one(params) -> int:\n    return 1 // params['by']\n\n@dag(params={'by': 1})\ndef divides():\n    one()\n"
    )
    (tmp_path / "broken.py").write_text("raise RuntimeError('half done')")
    done = cli("dags", "test", "divides", "--dags", str(tmp_path), "--logical-date", "2026-01-02", "--json")
    assert json.loads(done.stdout)["outputs"] == {"one": 1}
    failed = cli("dags", "test", "divides", "--dags", str(tmp_path), "--params", '{"by": 0}', code=1)
    assert "divides: failed" in failed.stdout and "ZeroDivisionError" in failed.stderr
    assert "half done" in cli("dags", "test", "nothing", "--dags", str(tmp_path), code=2).stderr


SHOP = """
from onceflow import BashOperator, dag, task

@dag(params={"by": 2})
def shop():
    @task
    def fetch() -> list[int]:
        raise RuntimeError("never called here")

    @task(trigger_rule="all_done")
    def divide(items, ti, params, extra=None) -> list[float]:
        return [item / params["by"] for item in items] + [extra]

    @task
    def each(item: int) -> int:
        return item + 1

    @task.branch
    def way(items) -> str:
        return "right" if items else "left"

    @task
    def left() -> None: ...

    @task
    def right() -> None: ...

    items = fetch()
    divide(items, extra=items["first"])
    each.expand(item=items)
    way(items) >> [left(), right()]
    items >> BashOperator(task_id="bash", bash_command=items)

shop()
"""


def test_one_task_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`onceflow tasks test`: nothing before and after it runs; what those before would have given is given, or None."""
    monkeypatch.setenv("ONCEFLOW_EMBEDDED_DIR", str(folder / ".onceflow"))
    (tmp_path / "shop.py").write_text(SHOP)

    def try_task(task: str, *options: str, code: int = 0) -> Any:
        answer = cli("tasks", "test", "shop", task, "--dags", str(tmp_path), *options, "--json", code=code)
        return json.loads(answer.stdout) if code < 2 else answer.stderr

    divided = try_task("divide", "--given", '{"fetch": [2, 4]}', "--params", '{"by": 4}')
    assert (divided["tasks"], divided["outputs"]) == ({"divide": "success"}, {"divide": [0.5, 1.0, None]})
    assert try_task("divide", code=1)["tasks"] == {"divide": "failed"}
    assert try_task("each", "--given", '{"fetch": [5, 6]}')["outputs"] == {"each[0]": 6, "each[1]": 7}
    assert try_task("way", "--given", '{"fetch": [1]}')["tasks"] == {"way": "success", "left": "skipped", "right": "success"}
    assert try_task("bash", "--given", '{"fetch": "echo hello"}')["outputs"] == {"bash": "hello"}
    assert "expanded over item" in try_task("each", code=2)
    assert "dag shop has no task 'nothing'" in try_task("nothing", code=2)
