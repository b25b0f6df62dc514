"""Connections and variables of the database, set by the command line and read by real workers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.fernet import Fernet
from typer.testing import CliRunner, Result

from onceflow.cli.app import app
from tests.engine.local_worker import FLOWS, Engine
from tests.engine.test_dags import outputs

DAGS = FLOWS / "named_flows.py"
KEY, OLD_KEY = Fernet.generate_key().decode(), Fernet.generate_key().decode()
URI = "http://me:p%40ss@bank.example:8080/books?region=eu&api_key=k-e-y"


def ask(engine: Engine, *command: str, key: str | None = KEY, input: str | None = None) -> Result:
    env = {"ONCEFLOW_DSN": engine.db.app_dsn, "ONCEFLOW_FERNET_KEY": key}
    return CliRunner().invoke(app, list(command), env=env, input=input)


def run_at(engine: Engine, day: int, dag_id: str = "named") -> int:
    """A run of that day, to its end."""
    run = engine.db.sql("select (onceflow.start_run(%s, logical_date => %s) ->> 'run')::bigint", dag_id, datetime(2026, 1, day, tzinfo=UTC))[0][0]
    engine.db.wait_for("select state from onceflow.run where id = %s", run)
    return int(run)


def test_secrets_are_set_once_and_read_by_tasks_alone(idle_engine: Engine) -> None:
    """By templates and Python; in the database they are encrypted, in the ledger and on the command line masked."""
    engine = idle_engine
    assert ask(engine, "connections", "set", "bank", "-", key=OLD_KEY, input=f"{URI}\n").output == "connection bank is set\n"
    assert ask(engine, "variables", "set", "rates", '{"USD": 1.08}').exit_code == 0
    assert ask(engine, "variables", "set", "api_token", "tok-123").exit_code == 0
    engine.start_worker(env={"ONCEFLOW_FERNET_KEY": f"{KEY},{OLD_KEY}"})
    first, second = run_at(engine, 1), run_at(engine, 2)
    assert outputs(engine, first, "templated") == [["bank.example", 4, 1.08, "nothing"]]
    shown = engine.db.sql("select inputs from onceflow.step_ledger where dag_run = %s and task_id = 'templated' and final", first)[0][0]
    assert (shown["host"], shown["password"]) == ("bank.example", "***")
    python = ["bank.example", 8080, "me", True, "eu", 1.08, "<connection bank: http at bank.example>"]
    assert outputs(engine, first, "in_python") == [python] and outputs(engine, first, "in_async") == [["books", 7, "7"]]
    assert outputs(engine, first, "before") == [[None, None, "None"]] and outputs(engine, first, "bash") == ["7 True"]
    (before,) = outputs(engine, second, "before")
    assert before == [True, {"$datetime": "2026-01-01T00:00:00+00:00"}, "2026-01-01 00:00:00+00:00"] and outputs(engine, second, "bash") == ["7 False"]
    kept = json.dumps(engine.db.sql("select to_jsonb(c)::text from onceflow.connection c union all select to_jsonb(v)::text from onceflow.variable v"))
    entries = json.dumps(engine.db.sql("select inputs::text, output::text from onceflow.step_ledger"))
    for secret in ("p@ss", "p%40ss", "k-e-y", "tok-123"):
        assert secret not in kept and secret not in entries


def test_the_command_line_masks_and_deletes(idle_engine: Engine) -> None:
    """list and get show what is not secret."""
    ask(idle_engine, "connections", "set", "books", URI, "--description", "the books")
    ask(idle_engine, "variables", "set", "limit", "5")
    ask(idle_engine, "variables", "set", "hidden", "7", "--secret")
    listed: dict[str, Any] = json.loads(ask(idle_engine, "connections", "get", "books", "--json").output)[0]
    assert listed == {
        "conn_id": "books",
        "conn_type": "http",
        "host": "bank.example",
        "port": 8080,
        "schema": "books",
        "login": "me",
        "description": "the books",
    }
    assert ask(idle_engine, "variables", "get", "limit").output == "5\n" and ask(idle_engine, "variables", "get", "hidden").output == "***\n"
    assert "p@ss" not in ask(idle_engine, "connections", "list").output and "hidden" in ask(idle_engine, "variables", "list").output
    assert ask(idle_engine, "connections", "delete", "books").exit_code == ask(idle_engine, "variables", "delete", "hidden").exit_code == 0
    gone = ask(idle_engine, "connections", "get", "books")
    assert gone.exit_code == 2 and "there is no connection 'books'" in gone.output


@pytest.mark.parametrize(
    "command", [("connections", "set", "b", "http://me:pw@h"), ("variables", "set", "api_token", "x"), ("variables", "set", "x", "y", "--secret")]
)
def test_secrets_are_refused_without_a_key(idle_engine: Engine, command: tuple[str, ...]) -> None:
    """By name, with how to make a key; what is not secret needs none."""
    refused = ask(idle_engine, *command, key=None)
    assert refused.exit_code == 2 and "set ONCEFLOW_FERNET_KEY" in refused.output and repr(command[2]) in refused.output
    wrong = ask(idle_engine, *command, key="no key")
    assert wrong.exit_code == 2 and "no Fernet key" in wrong.output
    assert ask(idle_engine, "connections", "set", "plain", "http://host", key=None).exit_code == 0


def test_what_is_not_there_fails_the_task_by_name(idle_engine: Engine) -> None:
    """The error says where to set it."""
    if not idle_engine.workers.started:
        idle_engine.start_worker()
    run = run_at(idle_engine, 3, "named_in_vain")
    (error,) = idle_engine.db.sql("select error from onceflow.task_instance where run = %s", run)[0]
    assert error.startswith(
        "there is no variable 'nowhere': set ONCEFLOW_VAR_NOWHERE in the environment of the workers, or run: onceflow variables set nowhere"
    )
