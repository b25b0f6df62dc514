"""Every command fails alike: one line on stderr, an exit code that tells why, {"error": …} with --json, and never a traceback."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from onceflow.authoring import registry
from onceflow.cli.app import app
from onceflow.db.migrate import migrate
from tests.database import TestDatabase

# Every command that uses a database, with arguments that are right.
COMMANDS: dict[str, list[str]] = {
    "runs start": ["pay"], "runs list": [], "runs show": ["r1"], "runs cancel": ["r1"], "runs retry": ["r1"], "runs fork": ["r1", "--from-step", "a#0"],
    "ledger show": ["r1"], "ledger verify": [], "ledger who-wrote": ["payment", "--where", "true"], "ledger export": ["-"], "dags list": [],
    "workers list": [], "db migrate": [], "db check": [], "db archive": [], "db clean": [], "doctor": [], "worker": ["--dags", "dags"],
    "scheduler": ["--dags", "dags"], "triggerer": ["--dags", "dags"], "approvals list": [], "approvals answer": ["r1", "ask", "approve"], "triggers list": [], "dev": ["dags"], "connections list": [], "connections get": ["bank"], "connections set": ["bank", "http://bank"],
    "connections delete": ["bank"], "variables list": [], "variables get": ["limit"], "variables set": ["limit", "5"], "variables delete": ["limit"],
    "pools list": [], "pools set": ["reports", "5"], "pools delete": ["reports"], "pools ageing": ["60"], "tasks list": ["r1"],
    "tasks clear": ["pay", "--yes"], "tasks mark": ["r1", "pay", "success"], "dags show": ["pay"], "dags pause": ["pay"], "dags unpause": ["pay"],
    "dags backfill": ["pay", "--start-date", "2026-01-01", "--end-date", "2026-01-02"], "backfill list": [], "backfill show": ["1"], "backfill pause": ["1"],
    "backfill resume": ["1"], "backfill cancel": ["1"], "dags errors": [], "dags graph": ["drawn"], "dags delete": ["pay"],
    "datasets list": [], "datasets show": ["s3://a/"], "datasets emit": ["s3://a/"], "datasets events": [],
}  # fmt: skip
WRITES = (
    "runs start", "runs cancel", "runs retry", "runs fork", "db archive", "db clean", "pools set", "pools delete", "pools ageing", "connections set", "connections delete", "variables set",
    "variables delete", "tasks clear", "tasks mark", "dags pause",
    "dags unpause", "dags backfill", "dags delete", "backfill pause", "backfill resume", "backfill cancel",
    "datasets emit", "approvals answer",
)  # fmt: skip
NEED_SCHEMA = [name for name in COMMANDS if name not in ("db migrate", "dev", "doctor", "db check")]
A_BACKFILL = """
    insert into onceflow.backfill (key, dag_id, from_date, to_date, reprocess, is_reverse, max_active_runs, on_failure, params, priority, state, total, skipped, actor,
        created_at, running_since) values ('k', 'pay', now(), now(), 'none', false, 1, 'pause', '{}', 0, 'running', 0, 0, 'me', now(), now())"""
ELSEWHERE = {"db stop", "db shell", "dags next-runs", "dags test", "tasks test"}  # they ask no database, or hand over to psql


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a file of workflows, and no settings. What a command imports here is forgotten with the test."""
    for name in [name for name in os.environ if name.startswith(("ONCEFLOW_", "PG"))]:
        monkeypatch.delenv(name)
    for name, value in list(vars(registry).items()):
        if isinstance(value, dict) and not name.startswith("__"):
            monkeypatch.setattr(registry, name, {})
    for folder, text in (
        ("dags", "from onceflow import workflow\n@workflow\ndef flow() -> None: ...\n"),
        ("plain", "x = 1\n"),
        ("broken", "import sys\nsys.exit(3)\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}_of_{tmp_path.name}.py").write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no code")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def run(command: str, *arguments: str, dsn: str | None) -> Result:
    """One command; a defect is a test's failure."""
    handlers = logging.getLogger().handlers[:]
    result = CliRunner().invoke(app, [*command.split(), *arguments], env={"ONCEFLOW_DSN": dsn})
    logging.getLogger().handlers[:] = handlers  # a command may log to a stderr that is closed now
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def check_failure(result: Result, code: int, *said: str) -> None:
    """One line on stderr with all of that, nothing on stdout, and the code."""
    assert result.exit_code == code, (result.exit_code, result.output)
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1, result.output
    for part in said:
        assert part in result.stderr, result.stderr


def check_json_failure(command: str, result: Result, code: int, error: str) -> None:
    """With --json: one document, on stdout, or on stderr for the commands whose --json is the form of their log."""
    assert result.exit_code == code, (result.exit_code, result.output)
    is_log = command in ("worker", "scheduler", "triggerer", "dev")
    found = json.loads(result.stderr if is_log else result.stdout)["error"]
    assert found["type"] == error and found["message"]
    assert result.stdout == "" if is_log else result.stderr == f"{error}: {found['message']}\n"


def list_commands(group: Any = None, prefix: str = "") -> set[str]:
    """The full name of every command there is."""
    group = group or typer.main.get_command(app)
    found: set[str] = set()
    for name, command in group.commands.items():
        found |= list_commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {prefix + name}
    return found


def test_no_command_is_left_out() -> None:
    """The table has every command: a new one must fail as the others do."""
    assert list_commands() - ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("dsn", ["postgresql://me:hidden@127.0.0.1:9/none", "postgresql://me:hidden@127.0.0.1/none?port=x"])
def test_without_a_server(command: str, dsn: str) -> None:
    """Nobody there, or a DSN that cannot be read: code 3, and the password is not shown."""
    result = run(command, *COMMANDS[command], dsn=dsn)
    check_failure(result, 3, "NoDatabase: ", "the DSN right?")
    assert "hidden" not in result.output
    check_json_failure(command, run(command, *COMMANDS[command], "--json", dsn=dsn), 3, "NoDatabase")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "dev"])
def test_without_a_dsn(command: str) -> None:
    """It says what to set, and makes nothing."""
    check_failure(run(command, *COMMANDS[command], dsn=None), 2, "SettingsError: ", "ONCEFLOW_DSN")
    check_json_failure(command, run(command, *COMMANDS[command], "--json", dsn=None), 2, "SettingsError")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("file", "said"), [("lease_s = 'x'", "'lease_s'"), ("leese_s = 1", "Unknown setting 'leese_s'"), ("lease_s = ", "not valid TOML")])
def test_with_a_broken_settings_file(place: Path, command: str, file: str, said: str) -> None:
    """The file and the setting are named."""
    (place / "onceflow.toml").write_text(file)
    check_failure(run(command, *COMMANDS[command], dsn=None), 2, "SettingsError: ", "onceflow.toml", said)


def test_at_a_database_that_refuses(db: TestDatabase) -> None:
    """An unknown login is told by every command, by its name."""
    for command, arguments in COMMANDS.items():
        check_failure(run(command, *arguments, dsn=db.server.direct_dsn("nobody_of_that_name", db.name)), 3, "NoDatabase: ", "nobody_of_that_name")


def test_at_a_database_without_schema(db: TestDatabase) -> None:
    """Every command that needs one says what to run."""
    db.sql("drop schema onceflow cascade")
    db.sql("create table payment (id int)")
    for command in NEED_SCHEMA:
        check_failure(run(command, *COMMANDS[command], dsn=db.dsn), 2, "VersionSkew: ", "onceflow db migrate")
        check_json_failure(command, run(command, *COMMANDS[command], "--json", dsn=db.dsn), 2, "VersionSkew")


def test_at_a_database_of_a_later_release(db: TestDatabase) -> None:
    """What writes the engine's state or migrates refuses; what only reads may go on."""
    db.sql("insert into onceflow.schema_migration (name, checksum) values ('9999_later', 'x')")
    for command in ("worker", "scheduler", "triggerer", "db migrate", "dev"):
        check_failure(run(command, *COMMANDS[command], dsn=db.dsn), 2, "VersionSkew: ", "version 9999", "Upgrade the package")
    for command in ("db check", "doctor"):
        result = run(command, *COMMANDS[command], dsn=db.dsn)
        assert result.exit_code == 1 and "version 9999" in result.stdout
    assert run("runs list", dsn=db.dsn).exit_code == 0


def test_with_an_auditors_login(db: TestDatabase) -> None:
    """What writes is refused by naming the role that may; what reads works."""
    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": "pay", "code_version": "1"}]))
    db.sql("select onceflow.start_run('pay', run_id => 'r1')")
    db.sql("create table payment (id int)")
    drawn = {"dag_id": "drawn", "kind": "dag", "code_version": "1", "plan": {"tasks": [], "listens": [], "datasets": [{"uri": "s3://a/"}]}}
    db.sql("select onceflow.register_dags(%s)", json.dumps([drawn]))
    db.sql(A_BACKFILL)
    db.sql("""select onceflow.set_connection('bank', '{"conn_type": "http", "host": "bank"}'), onceflow.set_variable('limit', '5')""")
    for command, arguments in COMMANDS.items():
        if command in ("worker", "scheduler", "triggerer"):  # they begin to work, so they get a process of their own
            env = {**os.environ, "ONCEFLOW_DSN": db.auditor_dsn}
            ended = subprocess.run([sys.executable, "-m", "onceflow", command, *arguments], env=env, capture_output=True, text=True, timeout=60)
            assert ended.returncode == 2 and "Traceback" not in ended.stderr
            assert ended.stderr.splitlines()[-1].startswith("InvalidArgument: This login may not do that")
        elif command in WRITES:
            check_failure(run(command, *arguments, dsn=db.auditor_dsn), 2, "InvalidArgument: This login may not do that")
        elif command not in ("dev", "doctor", "db migrate"):
            result = run(command, *arguments, dsn=db.auditor_dsn)
            assert result.exit_code == 0, (command, result.output)
    refused = run("db migrate", dsn=db.auditor_dsn)
    assert refused.exit_code == 2 and refused.stderr.startswith("MigrationError: Login 'auditor' lacks rights")
    assert db.sql("select count(*) from onceflow.run") == [(1,)]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("runs show nope", "NotFound: there is no run 'nope'"),
        ("runs show 99999999999999999999", "NotFound: there is no run '99999999999999999999'"),
        ("runs show -- -1", "NotFound: there is no run '-1'"),
        ("runs cancel nope", "NotFound: there is no run 'nope'"),
        ("runs cancel pay/nope", "NotFound: there is no run 'pay/nope'"),
        ("runs retry nope", "NotFound: there is no run 'nope'"),
        ("runs fork nope --from-step a#0", "NotFound: there is no run 'nope'"),
        ("runs fork r1 --from-step nope", "NotFound: run r1 of pay has no step nope"),
        ("ledger show nope", "NotFound: there is no run 'nope'"),
        *((f"backfill {act} 99999999999999999999", "InvalidArgument: backfill must be a whole number from 1") for act in ("show", "pause", "resume", "cancel")),
        ("runs start nope", "NotFound: there is no workflow or dag named nope"),
        ("runs start pay --queue=", "InvalidArgument: queue must be"),
        ("runs start pay --queue=a,b", "InvalidArgument: queue must be"),
        ("runs start pay --run-id=", "InvalidArgument: run_id must have 1 to 250 characters"),
        (f"runs start pay --run-id={'x' * 251}", "InvalidArgument: run_id must have 1 to 250 characters"),
        ("runs start pay --wait --timeout nan", "InvalidArgument: --timeout must be a number of seconds"),
        ("runs start pay --wait --timeout -1", "InvalidArgument: --timeout must be a number of seconds"),
        ("runs start pay --timeout 5", "UsageError: Invalid value for --timeout: limits the waiting, so it needs --wait"),
        (f"runs start pay --args {'[' * 100_000}", "UsageError: Invalid value for --args"),
        ("runs start pay --args 5", "UsageError: Invalid value for --args: must be a JSON object or array, not 5"),
        ("runs start", "UsageError: Missing argument 'NAME'. See: onceflow runs start --help"),
        ("runs start pay --colour red", "UsageError: No such option: --colour"),
        ("runs list --limit 0", "UsageError: Invalid value for '--limit'"),
        ("runs list --limit x", "UsageError: Invalid value for '--limit'"),
        ("runs list --state pending", "UsageError: Invalid value for --state: 'pending' is not a state of runs"),
        ("runs nope", "UsageError: No such command 'nope'"),
        ("nope", "UsageError: No such command 'nope'"),
        ("db clean --table step_ledger", "UsageError: Invalid value for --table: 'step_ledger' cannot be cleaned"),
        ("db archive --days 99999999999", "UsageError: Invalid value for '--days'"),
        ("ledger who-wrote nothing --where true", "InvalidArgument: who-wrote nothing"),
        ("ledger export no/such/folder/x", "InvalidArgument: no/such/folder/x cannot be written"),
        ("worker --dags nowhere", "SettingsError: --dags nowhere: there is no such folder or .py file"),
        ("worker --dags empty", "SettingsError: --dags empty: there is no .py file in that folder"),
        ("worker --dags notes.txt", "SettingsError: --dags notes.txt: there is no such folder or .py file"),
        ("worker --dags plain", "SettingsError: --dags plain: there is no @workflow and no @step in its files"),
        ("worker --dags broken", "ImportFailed: "),
        ("scheduler --dags nowhere", "SettingsError: --dags nowhere: there is no such folder or .py file"),
        ("dev nowhere", "SettingsError: --dags nowhere: there is no such folder or .py file"),
        ("worker --dags dags --concurrency 0", "UsageError: Invalid value for '--concurrency'"),
        ("worker --dags dags --concurrency 99999", "SettingsError: Setting 'concurrency' (argument) is 99999"),
        ("worker --dags dags --queues ,", "SettingsError: Setting 'queues' (argument)"),
        ("worker --dags dags --log-level loud", "SettingsError: Setting 'log_level' (argument) is 'loud'"),
        ("worker --dags dags --embedded", "SettingsError: Both --embedded and a DSN"),
        ("runs show \udcff", "InvalidArgument: argument 3 of the command line is not UTF-8"),
    ],
)
def test_a_wrong_argument(db: TestDatabase, command: str, said: str) -> None:
    """One line that names it, code 2; the same in JSON; nothing is started."""
    db.sql("select onceflow.register_dags(%s)", json.dumps([{"dag_id": "pay", "code_version": "1"}]))
    db.sql("select onceflow.start_run('pay', run_id => 'r1')")
    check_failure(run(command, dsn=db.dsn), 2, said)
    first, _, rest = command.partition(" -- ")
    name = first.split()[0] if first.split()[0] in ("worker", "scheduler", "triggerer", "dev") else first
    check_json_failure(name, run(f"{first} --json{f' -- {rest}' if rest else ''}", dsn=db.dsn), 2, said.split(":")[0])
    assert db.sql("select count(*) from onceflow.run") == [(1,)]


@pytest.mark.parametrize("group", ["", "runs", "ledger", "db", "dags", "workers"])
def test_a_group_alone_shows_its_help(group: str) -> None:
    """It is a question, not a mistake to be told in one line."""
    result = CliRunner().invoke(app, group.split())
    assert "Usage: " in result.output and "--help" in result.output and result.exit_code == 2


def test_a_database_of_another_encoding(db: TestDatabase) -> None:
    """worker, scheduler and migrate refuse it by name."""
    name = f"{db.name}_latin1"
    db.sql(f"create database {name} encoding 'LATIN1' template template0 locale_provider libc lc_collate 'C' lc_ctype 'C'")
    for command in ("worker", "scheduler", "triggerer", "db migrate", "dev"):
        check_failure(run(command, *COMMANDS[command], dsn=db.server.direct_dsn("postgres", name)), 2, "MigrationError: ", "encoding LATIN1")
    db.sql(f"drop database {name} with (force)")
    assert migrate(db.superuser_dsn).is_changed is False
