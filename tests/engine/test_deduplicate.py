"""`deduplicate`: one living run for each text, from every door."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import psycopg
import pytest
from typer.testing import CliRunner

from onceflow import AsyncClient, InvalidArgument, RunConflict
from onceflow.cli.app import app
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "deduplicate_flows.py"
flows = load_flows("deduplicate_flows")


def test_clients_are_answered_the_living_run(engine: Engine) -> None:
    """By option or by using, with whatever run id: the same run while it lives, RunConflict for other arguments, a new run afterwards."""
    first = engine.client.start(flows.refresh, "monday", deduplicate="rates")
    again = engine.client.using(deduplicate="rates", run_id="not needed").start(flows.refresh, "monday")
    assert (first.created, again.created) == (True, False)
    assert (again.run, again.run_id) == (first.run, first.run_id)
    with pytest.raises(RunConflict, match=r"is alive with deduplicate 'rates' and other arguments"):
        engine.client.start(flows.refresh, "tuesday", deduplicate="rates")
    first.send("done", topic="word")
    assert again.result(20) == "monday 1: done"
    other = engine.client.start(flows.refresh, "tuesday", deduplicate="rates")
    assert other.created and other.run != first.run
    other.cancel()
    assert engine.client.start("refresh", "tuesday", deduplicate="rates").created
    with pytest.raises(InvalidArgument, match="deduplicate"):
        engine.client.start(flows.refresh, "tuesday", deduplicate="")


@pytest.mark.parametrize("commits", [True, False])
async def test_in_the_callers_transaction(engine: Engine, commits: bool) -> None:
    """A start on the caller's own connection takes the text with its commit, and not without; async clients as blocking ones."""
    text = f"mine {commits}"
    async with AsyncClient(engine.db.app_dsn) as client:
        conn = await asyncpg.connect(engine.db.app_dsn)
        transaction = conn.transaction()
        await transaction.start()
        run = await client.start(flows.refresh, "monday", conn=conn, deduplicate=text)
        assert (await client.using(conn=conn, deduplicate=text).start(flows.refresh, "monday")).run == run.run
        await (transaction.commit() if commits else transaction.rollback())
        await conn.close()
        again = await client.start(flows.refresh, "monday", deduplicate=text)
        assert again.created is not commits and (again.run == run.run) is commits
    with psycopg.connect(engine.db.app_dsn) as mine:
        assert engine.client.start(flows.refresh, "monday", deduplicate=text, conn=mine).run == again.run


def test_parents_share_a_child(engine: Engine) -> None:
    """Two bodies start a child with one text: it runs once, and both have its result, over their own suspensions."""
    parents = [engine.client.start(flows.wants, "monday", "shared") for _ in range(2)]
    for parent in parents:
        engine.wait_for_entry(parent, "refresh:start#0", "success")
    child = engine.client.start(flows.refresh, "monday", deduplicate="shared")
    assert not child.created
    child.send("both", topic="word")
    assert [parent.result(20) for parent in parents] == [["monday 1: both", child.run_id]] * 2


def test_a_run_that_goes_on_is_the_same_to_its_starters(engine: Engine) -> None:
    """After continue_as the text leads to the run that goes on, which has other arguments by now."""
    first = engine.client.start(flows.refresh, "monday", deduplicate="loop")
    first.send("again", topic="word")
    engine.db.wait_for("select continued_by is not null from onceflow.run where id = %s", first.run)
    later = engine.client.start(flows.refresh, "monday", deduplicate="loop")
    assert not later.created and later.run != first.run
    later.send("done", topic="word")
    assert first.result(20) == "monday 2: done"


def test_on_the_command_line(engine: Engine) -> None:
    """`runs start --deduplicate` answers the living run, and fails by name when the arguments differ."""

    def start(args: list[Any]) -> Any:
        command = ["runs", "start", "refresh", "--args", json.dumps(args), "--deduplicate", "shell"]
        return CliRunner().invoke(app, command, env={"ONCEFLOW_DSN": engine.db.app_dsn})

    first, again = start(["monday"]), start(["monday"])
    assert again.stdout.strip() == f"{first.stdout.strip()}  (was there already)"
    refused = start(["tuesday"])
    assert refused.exit_code != 0 and "deduplicate 'shell'" in refused.output
