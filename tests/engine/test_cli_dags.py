"""Commands about dags, tasks and pools against a real database."""

from __future__ import annotations

import json

from tests.database import TestDatabase
from tests.engine.test_cli import Cli, cli
from tests.sql.dag_plans import Node, begin_run, end, register, states
from tests.sql.engine_calls import Engine

__all__ = ["cli"]


def test_clear_shows_first_and_then_runs_again(cli: Cli, db: TestDatabase) -> None:
    """A dry run and a clear name the same tasks; a day as end date counts whole; without --yes it asks."""
    engine = Engine(db)
    engine.register()
    register(engine, {"a": Node(), "b": Node(("a",))})
    run = begin_run(engine)
    for _ in range(2):
        end(engine, engine.claim_one(), "success")
    (day,) = engine.sql("select to_char(logical_date at time zone 'UTC', 'YYYY-MM-DD') from onceflow.run where id = %s", run)[0]
    asked = ("tasks", "clear", "graph", "--start-date", day, "--end-date", day, "--task-regex", "^a$", "--downstream")
    shown = cli(*asked, "--dry-run", "--json")
    assert [(row["task_id"], row["state"]) for row in json.loads(shown.stdout)] == [("a", "success"), ("b", "success")]
    cli(*asked, typed="n\n", code=1)
    assert states(engine, run) == {"a": "success", "b": "success"}
    cli(*asked, "--yes")
    engine.tick()
    assert states(engine, run) == {"a": "queued", "b": "no_status"}
    end(engine, engine.claim_one(), "failed")
    cli("tasks", "mark", run, "a", "success", "--actor", "ada")
    engine.tick()
    assert states(engine, run) == {"a": "success", "b": "queued"}
    wrong = cli("tasks", "clear", "graph", "--start-date", "yesterday", code=2)
    assert "--start-date 'yesterday' is no moment" in wrong.stderr
    engine.close()


def test_ageing_is_switched(cli: Cli, db: TestDatabase) -> None:
    """On with a number of seconds, off with 0; what it is now stands in the database."""
    assert cli("pools", "ageing", "60").stdout == "a waiting task gains a point of priority every 60 s\n"
    assert db.sql("select ageing_s from onceflow.engine") == [(60,)]
    assert json.loads(cli("pools", "ageing", "0", "--json").stdout) == {"ageing_s": None}
    assert "gain no priority" in cli("pools", "ageing", "0").stdout
    assert db.sql("select ageing_s from onceflow.engine") == [(None,)]


def test_pools_are_made_resized_and_removed(cli: Cli, db: TestDatabase) -> None:
    """What is used cannot be removed; the error says by what."""
    assert {row["pool_name"] for row in json.loads(cli("pools", "list", "--json").stdout)} == {"default_pool", "etl_pool", "api_pool"}
    cli("pools", "set", "narrow", "2", "--description", "few")
    assert json.loads(cli("pools", "set", "narrow", "3", "--json").stdout)["description"] == "few"
    engine = Engine(db)
    engine.register()
    register(engine, {"a": Node(options={"pool": "narrow"})})
    refused = cli("pools", "delete", "narrow", code=2)
    assert "used by task a of dag graph" in refused.stderr
    register(engine, {"a": Node()})
    cli("pools", "delete", "narrow")
    cli("pools", "delete", "narrow", code=2)
    engine.close()
