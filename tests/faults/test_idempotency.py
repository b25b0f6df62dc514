"""Runs are started once, when their transaction commits, and steps that fail leave nothing but their entries."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import psycopg
import pytest

from onceflow import RunConflict
from tests.faults.conftest import Stage, wait_until
from tests.processes import start_process, worker_environment

PROCESSES, THREADS = 4, 5
STARTER = """
import json, os, sys, threading, time
from onceflow import Client, RunConflict

dsn, odd, ready, go = sys.argv[1], sys.argv[2] == "odd", sys.argv[3], sys.argv[4]
barrier, outcomes = threading.Barrier(int(sys.argv[5]) + 1), []

def start(key):
    with Client(dsn) as client:
        client._connected()
        barrier.wait()
        try:
            run = client.start("one_payment", key, run_id="same")
            outcomes.append(["run", run.run, run.created])
        except RunConflict as error:
            outcomes.append(["conflict", str(error)])

threads = [threading.Thread(target=start, args=("odd" if odd and n == 0 else "even",)) for n in range(int(sys.argv[5]))]
for thread in threads:
    thread.start()
open(ready, "w").close()
while not os.path.exists(go):
    time.sleep(0.002)
barrier.wait()
for thread in threads:
    thread.join()
print("OUTCOMES " + json.dumps(outcomes))
"""


def test_one_run_id_from_twenty_threads_makes_one_run(stage: Stage, tmp_path: Path) -> None:
    """20 threads in 4 processes start the same run id at once, one of them with other arguments: one run, and exactly those
    whose arguments differ from the winner's get RunConflict."""
    stage.start_worker()
    go = tmp_path / "go"
    processes = []
    for number in range(PROCESSES):
        ready, log = tmp_path / f"ready-{number}", tmp_path / f"starter-{number}.log"
        command = [sys.executable, "-c", STARTER, stage.db.app_dsn, "odd" if number == 0 else "even", str(ready), str(go), str(THREADS)]
        processes.append(start_process(command, env=worker_environment(stage.db), log=log))
        wait_until(ready.exists, "a starter")
    go.touch()
    outcomes = []
    for process in processes:
        assert process.process.wait(30) == 0, process.log_text()
        outcomes += json.loads(process.log_text().split("OUTCOMES ", 1)[1])
    runs = [outcome for outcome in outcomes if outcome[0] == "run"]
    assert len({run[1] for run in runs}) == 1 and sum(run[2] for run in runs) == 1
    assert stage.db.sql("select count(*) from onceflow.run") == [(1,)]
    key = stage.db.sql("select conf ->> 0 from onceflow.run")[0][0]
    assert len(outcomes) - len(runs) == (19 if key == "odd" else 1)
    stage.runs.append(stage.client.find("same"))
    assert stage.check() == 1


def test_the_same_run_id_later_is_the_same_run_and_other_arguments_conflict(stage: Stage) -> None:
    """After the run has ended too: its id is its idempotency key for ever."""
    stage.start_worker()
    first = stage.start("one_payment", "once", run_id="pay-1")
    first.result(20)
    again = stage.start("one_payment", "once", run_id="pay-1")
    assert (again.run, again.created, again.result(1)) == (first.run, False, first.result(1))
    with pytest.raises(RunConflict, match="pay-1"):
        stage.client.start("one_payment", "twice", run_id="pay-1")
    assert stage.check() == 1


def test_a_start_exists_when_its_transaction_commits(stage: Stage) -> None:
    """A start in a rolled-back transaction never was; a committed one is claimed within 50 ms of the commit (median of 21
    on an idle worker)."""
    stage.start_worker()
    with psycopg.connect(stage.db.app_dsn) as connection:
        gone = stage.client.start("one_payment", "gone", run_id="gone", conn=connection)
        connection.rollback()
        assert stage.db.sql("select count(*) from onceflow.run_key where run_id = 'gone' or run = %s", gone.run) == [(0,)]
        waits_ms = []
        for number in range(21):
            run = stage.start("one_payment", f"commit-{number}", conn=connection)
            assert stage.db.sql("select count(*) from onceflow.run where id = %s", run.run) == [(0,)], "seen before its commit"
            before = time.time()
            connection.commit()
            run.result(20)
            claimed = stage.db.sql("select extract(epoch from start_date)::float8 from onceflow.ti where id = %s", run.run)[0][0]
            waits_ms.append(1000 * (claimed - before))
    print(f"commit -> start: median {statistics.median(waits_ms):.1f} ms, worst {max(waits_ms):.1f} ms")
    assert statistics.median(waits_ms) < 50
    assert stage.check() == 21


def test_a_step_that_writes_and_raises_twice_leaves_one_row_and_three_tries(stage: Stage) -> None:
    """Each failed try rolled back what it wrote; the ledger holds all three with their errors."""
    stage.start_worker()
    run = stage.start("third_try", "flaky")
    assert stage.check() == 2
    for step, key in (("write_then_raise#0", "flaky"), ("write_then_raise_blocking#0", "flaky-blocking")):
        entries = [entry for entry in stage.entries(run) if entry[0] == step]
        assert [entry[1:] for entry in entries] == [
            ("up_for_retry", 1, f"try 1 of {key}"), ("up_for_retry", 2, f"try 2 of {key}"), ("success", 3, ""),
        ]  # fmt: skip
    tries = "select distinct error ->> '$error' from onceflow.step_ledger where to_state = 'up_for_retry'"
    assert stage.db.sql(tries) == [("builtins:ValueError",)]


def test_an_error_that_only_looks_like_a_lost_connection_is_the_steps_own(stage: Stage) -> None:
    """A step that raises FileNotFoundError or ConnectionResetError of its own fails at once: it is not run again."""
    stage.start_worker()
    for number, error in enumerate(("FileNotFoundError", "ConnectionResetError", "TimeoutError")):
        run = stage.client.start("raise_os_error", error)
        with pytest.raises(OSError):
            run.result(20)
        assert len(stage.gates.who(f"raise-{error}")) == 1, number
        assert [entry[1:3] for entry in stage.entries(run)] == [("failed", 1), ("failed", 1)]
    assert stage.check() == 0
