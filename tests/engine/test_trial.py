"""`workflow.test(...)` and `Trial`: a run in this process, on a database that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceflow import AuthoringError, InvalidArgument, RunFailed, Trial, WaitTimeout
from onceflow.db.embedded import EmbeddedServer, find_server, start_server, stop_server
from tests.database import TestDatabase
from tests.engine.local_worker import TABLES, load_flows, wait_until

flows = load_flows("trial_flows")
SETUP = "create table account (id int primary key, balance numeric not null); insert into account values (1, 100), (2, 100)"
BALANCES = "select balance::int from account order by id"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a bundled server of its own, that the server's account may enter; both are gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix="onceflow-trial-", dir="/tmp"))
    made.chmod(0o711)
    yield made
    stop_server(made / ".onceflow", "immediate")
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def bundled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedServer]:
    """Its server, with nothing but the template left on it after each test."""
    monkeypatch.setenv("ONCEFLOW_EMBEDDED_DIR", str(folder / ".onceflow"))
    monkeypatch.setenv("ONCEFLOW_DSN", "postgresql:///not_this_one")
    server = start_server(folder / ".onceflow")
    yield server
    assert list_trials(server) == []


def list_trials(server: EmbeddedServer) -> list[str]:
    with psycopg.connect(server.dsn(database="postgres")) as conn:
        return [name for (name,) in conn.execute("select datname from pg_database where datname like 'trial%'")]


def test_a_workflow_runs_and_leaves_nothing() -> None:
    """The result is that of the body, as it comes back from the ledger; steps ran on a database of their own, as login onceflow_step."""
    database, login = flows.pay_over.test(1, 2, Decimal("10"), setup=SETUP)
    assert database.startswith("trial_") and login == "onceflow_step"
    assert flows.today.test(when=None).tzinfo is not None


def test_the_workflows_own_error_is_raised() -> None:
    """Its type, its values, and where in the user's code it came from; no advice to look into a database that is gone."""
    with pytest.raises(flows.Overdrawn) as raised:
        flows.pay_over.test(1, 2, Decimal("100.50"), setup=SETUP)
    assert (raised.value.account, raised.value.missing) == (1, Decimal("0.50"))
    notes = "\n".join(raised.value.__notes__)
    assert "in debit\n    raise Overdrawn" in notes and "in pay_over\n    await debit" in notes
    assert "onceflow runs show" not in notes and "src/onceflow" not in notes


def test_setups(tmp_path: Path) -> None:
    """SQL, a file of SQL, a function of a connection, or several: in their order, as login app, who owns the database."""
    (tmp_path / "schema.sql").write_text("create schema own; create table account (id int, balance numeric)")

    def fill(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into account values (1, 7)")

    with Trial([tmp_path / "schema.sql", fill, "update account set balance = balance + 1"]) as trial:
        assert trial.query("select balance::int, session_user from account") == [(8, "app")]
    with pytest.raises(psycopg.errors.UndefinedTable), Trial("insert into nothing values (1)"):
        pass
    with pytest.raises(InvalidArgument, match="setup must be SQL text, a Path"), Trial([7]):  # type: ignore[list-item]
        pass


def test_several_runs_on_one_database() -> None:
    """A Trial runs workflows and steps one after the other, and looks at what they did; clients start runs there too."""
    with Trial(SETUP) as trial:
        trial.run(flows.pay_over, 1, 2, Decimal(10))
        trial.run(flows.pay_in, 1, Decimal(5))
        assert trial.query(BALANCES) == [(95,), (110,)]
        assert trial.query("select balance from account where id = %s", 1) == [(Decimal(95),)]
        assert trial.query("update account set balance = 0") == []
        run = trial.client.start(flows.asks)
        run.send("yes", topic="answer")
        assert trial.wait(run) == "yes"
        assert [entry["step_key"] for entry in run.steps() if entry["to_state"] == "success"] == ["recv#0", "asks"]
        assert trial.query("select distinct run_type from onceflow.dag_run order by 1") == [("manual",), ("test",)]


def test_time_is_skipped() -> None:
    """Days of sleep and hours between retries pass at once, and the engine's clock has them; so does a chain of continue_as."""
    started = time.monotonic()
    assert flows.patient.test() == [72.0, 10.0]
    assert flows.loops.test(3) == 0
    assert time.monotonic() - started < 60
    with pytest.raises(RunFailed, match="exceeded its timeout"):
        flows.out_of_time.test()
    with pytest.raises(RunFailed, match="exceeded its timeout"):
        flows.asks.test(timeout=timedelta(days=1))


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    """Nobody can send to the run of a `test`: that is said, with the topic, and the test does not hang."""
    with pytest.raises(WaitTimeout, match=r"run test__\S+ of asks waits for ever, for message answer"):
        flows.asks.test()


def test_children_run_too() -> None:
    """On whatever queue they are declared for."""
    assert flows.pays_by_child.test(Decimal(1), setup=SETUP)[1] == "onceflow_step"


async def test_inside_a_running_loop() -> None:
    """In an async test, or a cell of a notebook: the loop that runs there is not the worker's."""
    assert flows.pay_over.test(1, 2, Decimal(1), setup=SETUP)[1] == "onceflow_step"


def test_side_by_side() -> None:
    """Threads test at the same time, each on its own database."""
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda n: flows.pay_over.test(1, 2, Decimal(n), setup=SETUP), range(1, 4)))
    assert len({database for database, _ in results}) == 3


def test_a_lost_context_is_found_during_the_run_only() -> None:
    """A step called in a bare thread of the body is refused as on any worker; before and afterwards an external step is a plain function."""
    assert flows.double(2) == 4
    assert flows.threads_badly.test() == "LostContext"
    assert flows.double(2) == 4


def test_mistakes_are_told_before_anything_starts(bundled: EmbeddedServer) -> None:
    """Arguments that do not fit, options that exclude each other; parameters named like options, which Trial.run keeps apart."""
    with pytest.raises(TypeError, match="missing a required argument: 'amount'"):
        flows.pay_over.test(1, 2)
    with pytest.raises(AuthoringError, match="setup prepares a throw-away database"):
        flows.pay_over.test(1, 2, Decimal(1), setup=SETUP, dsn=bundled.dsn())
    with pytest.raises(AuthoringError, match=r"own parameters \['dsn', 'setup'\] are named like options of test"):
        flows.copies.test("a", dsn="b")
    with Trial() as trial:
        assert trial.run(flows.copies, "a", dsn="b") == "ab"
    with pytest.raises(AuthoringError, match=r"in a test with pay_over\.test"):
        flows.pay_over(1, 2, Decimal(1))


@pytest.fixture
def real(db: TestDatabase) -> TestDatabase:
    """A database that is not thrown away, with another release's word on the workflows, and one of its tasks waiting for a worker."""
    with psycopg.connect(db.app_dsn) as app:
        app.execute(TABLES)
    db.sql("""select onceflow.register_dags('[{"dag_id": "pay_over", "code_version": "theirs", "queue": "theirs"}, {"dag_id": "asks"}]')""")
    db.sql("select onceflow.start_run('asks', run_id => 'theirs', queue => 'default')")
    return db


def test_on_a_real_database(real: TestDatabase, capfd: pytest.CaptureFixture[str]) -> None:
    """With dsn the effects stay, as a run of type test; it says so. Neither dags nor tasks of the workers there are touched."""
    database, _ = flows.pay_over.test(1, 2, Decimal(10), dsn=real.dsn)
    assert database == real.name
    assert f"its effects are real and stay (run {(run := read_run(real))[0]}, type test)" in capfd.readouterr().err
    assert run[1:] == ("test", "success")
    assert real.sql("select balance::int from account where id in (1, 2) order by id") == [(90,), (110,)]
    assert real.sql("select code_version, queue from onceflow.dag where dag_id = 'pay_over'") == [("theirs", "theirs")]
    assert real.sql("select state from onceflow.dag_run where run_id = 'theirs'") == [("queued",)]
    assert real.sql("select count(*) from onceflow.worker where ended_at is null") == [(0,)]


def read_run(db: TestDatabase) -> tuple[Any, ...]:
    return db.sql("select run_id, run_type, state from onceflow.dag_run where dag_id = 'pay_over'")[0]


def test_children_of_a_test_on_a_real_database(real: TestDatabase) -> None:
    """They run where their parent does, not on the workers of the queue they are declared for, and are of type test too."""
    assert flows.pays_by_child.test(Decimal(1), dsn=real.dsn)[0] == real.name
    assert real.sql("select distinct run_type from onceflow.dag_run where dag_id in ('pays_by_child', 'paid_child')") == [("test",)]


SCRIPT = """
    import sys, time
    from pathlib import Path
    import psycopg
    from onceflow import step, workflow

    @step
    def pay(conn: psycopg.Connection, amount: int) -> int:
        conn.execute("insert into payment values (%s)", (amount,))
        {code}
        return amount

    @workflow
    def shop(amount: int) -> int:
        return pay(amount)

    print(shop.test(7, {options}))
"""


def start_script(folder: Path, code: str, options: str = "setup='create table payment (amount int)'") -> subprocess.Popen[str]:
    """The script, without a file: its workflow cannot be found by any path."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT).replace("{code}", code).replace("{options}", options)]
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_breakpoints(folder: Path) -> None:
    """In a step, with its transaction open, pdb takes commands and the run goes on; the workflow is defined in the program itself."""
    script = start_script(folder, "breakpoint()")
    out, err = script.communicate("p amount + 1\np conn.execute('select amount from payment').fetchone()\nc\n", timeout=60)
    assert "(Pdb) 8\n" in out and "(Pdb) (7,)\n" in out and out.endswith("7\n"), out + err
    assert script.returncode == 0


def test_ctrl_c_cleans_up(folder: Path, bundled: EmbeddedServer) -> None:
    """In the middle of a step: KeyboardInterrupt comes out, and the database is gone; the server too, had the fixture not started it."""
    script = start_script(folder, "Path('here').touch(); time.sleep(3)")
    wait_until((folder / "here").exists, 60)
    assert len(list_trials(bundled)) == 1
    script.send_signal(signal.SIGINT)
    out, err = script.communicate(timeout=60)
    assert script.returncode != 0 and out == "" and "KeyboardInterrupt" in err
    assert list_trials(bundled) == []


def test_ctrl_c_on_a_real_database_cancels(folder: Path, real: TestDatabase) -> None:
    """The run does not stay behind, queued for a worker that is gone; what its step had not committed is rolled back."""
    real.sql("create table payment (amount int)")
    script = start_script(folder, "Path('there').touch(); time.sleep(3)", f"dsn={real.dsn!r}")
    wait_until((folder / "there").exists, 60)
    script.send_signal(signal.SIGINT)
    _, err = script.communicate(timeout=60)
    assert script.returncode != 0 and "KeyboardInterrupt" in err
    assert real.sql("select run_type, state, stop_reason from onceflow.dag_run where dag_id = 'shop'") == [("test", "cancelled", "its test was interrupted")]
    assert real.sql("select count(*) from payment") == [(0,)]


def test_what_a_killed_process_left_is_dropped(folder: Path, bundled: EmbeddedServer) -> None:
    """SIGKILL leaves the database; the next test on that server drops it, and no database that is in use."""
    script = start_script(folder, "Path('killed').touch(); time.sleep(60)")
    wait_until((folder / "killed").exists, 60)
    (left,) = list_trials(bundled)
    with Trial() as trial:
        assert len(list_trials(bundled)) == 2
        script.kill()
        script.communicate(timeout=60)
        wait_until(lambda: not is_owned(bundled, left))
        with Trial():
            assert left not in list_trials(bundled)
            assert trial.query("select current_database() like 'trial%%'") == [(True,)]


def is_owned(server: EmbeddedServer, name: str) -> bool:
    with psycopg.connect(server.dsn(database="postgres")) as conn:
        return conn.execute("select 1 from pg_stat_activity where application_name = %s", (name,)).fetchone() is not None


def test_a_server_that_was_stopped_is_started_again(folder: Path) -> None:
    """Between two tests of one process somebody ran `onceflow db stop`."""
    flows.pay_over.test(1, 2, Decimal(1), setup=SETUP)
    assert stop_server(folder / ".onceflow")
    flows.pay_over.test(1, 2, Decimal(1), setup=SETUP)
    assert find_server(folder / ".onceflow") is not None
