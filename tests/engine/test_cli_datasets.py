"""`onceflow datasets`: what people and programs see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from onceflow.cli.app import app
from tests.database import TestDatabase
from tests.sql.dag_plans import Node
from tests.sql.dataset_dags import post, register_dag
from tests.sql.engine_calls import Engine

ORDERS = "s3://warehouse/orders/"


@pytest.fixture
def shop(db: TestDatabase) -> Iterator[Engine]:
    """A dag that has written the orders once, one that has run by it, and one that is paused."""
    one = Engine(db)
    one.register()
    register_dag(one, "report", by=[ORDERS])
    register_dag(one, "audit", by=[ORDERS], is_paused=True)
    register_dag(one, "etl", nodes={"load": Node(options={"outlets": [ORDERS], "inlets": ["s3://raw/"]})})
    post(one, "etl")
    yield one
    one.close()


def run(db: TestDatabase, *words: str) -> Result:
    return CliRunner().invoke(app, ["datasets", *words], env={"ONCEFLOW_DSN": db.app_dsn})


def read(db: TestDatabase, *words: str) -> Any:
    found = run(db, *words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_the_list(shop: Engine, db: TestDatabase) -> None:
    """Each dataset with who writes it and what runs by it."""
    rows = {row["uri"]: row for row in read(db, "list")}
    assert set(rows) == {ORDERS, "s3://raw/"}
    assert (rows[ORDERS]["producers"], rows[ORDERS]["consumers"], rows[ORDERS]["events"], rows[ORDERS]["waiting"]) == (["etl.load"], ["audit", "report"], 1, 1)
    assert rows["s3://raw/"]["readers"] == ["etl.load"]
    shown = run(db, "list").stdout
    assert ORDERS in shown and "etl.load" in shown


def test_one_dataset(shop: Engine, db: TestDatabase) -> None:
    """Its latest events with the runs that took them, and why others wait."""
    found = read(db, "show", ORDERS)
    (event,) = found["latest"]
    assert event["source_dag_id"] == "etl" and event["waiting_for"] == ["audit"]
    assert [run.split("__")[0] for run in event["runs"]] == ["report/dataset_triggered"]
    assert [(wait["dag_id"], wait["reason"]) for wait in found["waits"]] == [("audit", "paused")]
    shown = run(db, "show", ORDERS).stdout
    assert "Latest events" in shown and "paused" in shown


def test_emit_tells_and_events_shows(shop: Engine, db: TestDatabase) -> None:
    """The event is there with what was said, and makes a run with the next tick."""
    told = read(db, "emit", ORDERS, "--extra", '{"rows": 7}')
    assert told["uri"] == ORDERS
    shop.tick()
    latest = read(db, "events", ORDERS)[0]
    assert latest["extra"] == {"rows": 7} and latest["source_dag_id"] is None and len(latest["runs"]) == 1
    assert len(read(db, "events", "--limit", "1")) == 1
    assert "SQL" in run(db, "events").stdout
    assert run(db, "emit", ORDERS).stdout.startswith("event ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "s3://typo/"), "there is no dataset 's3://typo/'; there are"),
        (("events", "s3://typo/"), "there is no dataset"),
        (("emit", "s3://typo/"), "there is no dataset 's3://typo/'"),
        (("emit", ORDERS, "--extra", "7"), "must be a JSON object"),
        (("emit", ORDERS, "--extra", "{"), "is not JSON"),
        (("events", "--limit", "0"), "--limit"),
    ],
)
def test_mistakes_are_told(shop: Engine, db: TestDatabase, words: tuple[str, ...], said: str) -> None:
    """Code 2, what is wrong, and nothing was told."""
    found = run(db, *words)
    assert found.exit_code == 2 and said in found.output
    assert db.sql("select count(*) from onceflow.dataset_event") == [(1,)]
