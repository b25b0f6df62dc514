"""Connections die around COMMIT, and replies get lost: every effect happens once, every run ends in success."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import asyncpg
import pytest

from onceflow import StepDisconnected
from onceflow.db.driver_errors import is_connection_lost
from onceflow.engine.batcher import Batcher
from tests.database import TestDatabase
from tests.faults.checker import count_entries
from tests.faults.conftest import Stage
from tests.proxy import Fault, Proxy, When

WHENS: tuple[When, ...] = ("before", "forwarded", "answered", "held")
FAULTS = 200
KINDS = ("one_payment", "one_payment_blocking", "one_late_payment", "pay", "pay_sql")

# Statements of the engine's own connection, a workflow that makes it send them, and how many runs of it at a time.
ENGINE_CALLS = (
    ("start_step", "mixed_payments", 1),
    ("complete_step", "mixed_payments", 1),
    ("complete_task", "one_payment", 1),
    ("run_batch", "mixed_payments", 8),
    ("fail_step", "third_try", 1),
    ("fail_step", "catch_failure", 1),
    ("fail_task", "body_fails_once", 1),
    ("load_history", "nap", 1),
    ("record_time", "nap", 1),
    ("defer_task", "nap", 1),
    ("check_waits", "nap", 1),
    ("start_child", "with_child", 1),
    ("read_run", "with_child", 1),
    ("start_task", "with_task", 1),
    ("claim_tasks", "one_payment", 1),
    ("heartbeat", "one_payment", 1),
    ("run_tick", "one_payment", 1),
)
MOST_RUNS = 30


@pytest.fixture
def proxy(db: TestDatabase) -> Iterator[Proxy]:
    with Proxy(db.superuser_dsn) as made:
        yield made


def test_each_step_commits_once_when_its_connection_dies_around_commit(stage: Stage, proxy: Proxy) -> None:
    """200 short runs of five kinds, each cut before, at or after COMMIT, or its reply dropped, or its message held back
    until after the step was done again: one row each, and what arrives late is refused by the fence, even where the engine
    may not end the sessions of lost attempts."""
    stage.db.sql("create or replace function onceflow.end_sessions(p_prefix text) returns void language sql as ''")
    stage.start_worker(concurrency=16, step_dsn=proxy.dsn(stage.db.step_dsn))
    faults: list[Fault] = []
    for number, (when, kind) in zip(range(FAULTS), itertools.cycle(itertools.product(WHENS, KINDS)), strict=False):
        key = f"c-{number}"
        # Only the record holds the key in double quotes: the message that ends with COMMIT.
        faults.append(proxy.cut_next(f'"{key}"'.encode(), when=when))
        stage.start_step(kind, key) if kind in ("pay", "pay_sql") else stage.start(kind, key)
    for run in stage.runs:
        run.result(60)
    for fault in faults:
        fault.wait(1)
    late = [fault.deliver() for fault in faults if fault.when == "held"]
    assert set(late) == {"OF001"}
    assert stage.check() == FAULTS
    assert count_entries(stage.db, "up_for_retry") + count_entries(stage.db, "failed") + count_entries(stage.db, "rescued") == 0
    assert stage.db.sql("select distinct kind from onceflow.step_ledger where kind <> 'body' order by 1") == [("external",), ("sql",), ("transactional",)]


@pytest.mark.parametrize("last_words", [b"select 'booked'", b"complete_step"])
@pytest.mark.parametrize("name", ["book", "book_blocking", "book_late", "book_in_group"])
def test_a_lost_connection_that_the_server_still_holds_stands_in_nobodys_way(stage: Stage, proxy: Proxy, name: str, last_words: bytes) -> None:
    """A connection is lost within the step or at its COMMIT, and the server has not noticed: its session is ended, so that the
    row it has locked is free when the step runs again."""
    stage.start_worker(step_dsn=proxy.dsn(stage.db.step_dsn))
    fault = proxy.cut_next(last_words, when="held")
    stage.start(f"{name}_twice", name)
    fault.wait()
    assert fault.wait_answered() == "57P01"
    assert stage.check(timeout=20) == 2
    assert stage.db.sql("select value from counter where id = 1") == [(2,)]
    assert count_entries(stage.db, "failed") + count_entries(stage.db, "rescued") == 0


def test_a_session_the_server_ends_before_commit_is_begun_again(stage: Stage) -> None:
    """pg_terminate_backend inside the step, up to five times: the step is run again within its try."""
    stage.start_worker()
    runs = [stage.start("lose_and_pay", f"lost-{times}", times) for times in (1, 2, 5)]
    assert stage.check() == 6
    assert all(entry[2] == 1 for run in runs for entry in stage.entries(run))


def test_a_late_commit_whose_session_is_lost_is_begun_again(stage: Stage) -> None:
    """The same from commit_with on, where the step has no retries: what it did outside is repeated, as after a crash, its writes are there once."""
    stage.start_worker()
    runs = [stage.start("lose_late_and_pay", f"lost-{times}", times) for times in (1, 2, 5)]
    assert [run.result(30) for run in runs] == [[times + 1, times + 1] for times in (1, 2, 5)]
    assert stage.check() == 6
    assert all(entry[2] == 1 for run in runs for entry in stage.entries(run))
    assert count_entries(stage.db, "failed") == 0


def test_a_late_commit_that_ends_its_own_session_fails_by_name(stage: Stage) -> None:
    """After as many losses as a transactional step may have."""
    stage.start_worker()
    for name in ("lose_connection_late", "lose_connection_late_async"):
        with pytest.raises(StepDisconnected, match=f"step {name} .* lost its connection 13 times"):
            stage.client.start(name, name, 99).result(60)
    assert stage.db.sql("select count(*) from effect") == [(0,)]


def test_a_connection_of_the_steps_own_that_is_lost_is_its_error(stage: Stage) -> None:
    """While that of commit_with lives: the step fails, and is not run again."""
    stage.start_worker()
    with pytest.raises(Exception, match="terminating connection"):
        stage.client.start("lose_own_connection", "own").result(30)
    assert (stage.gates.folder / "lost-own-own").read_text() == "x"


def test_idle_sessions_the_server_ends_cost_no_try(stage: Stage) -> None:
    """All sessions of the worker are ended while it is idle, 20 times, and a run is started at the same moment: what the
    server says to an idle connection (asyncpg then refuses to send) is a lost connection like any other."""
    stage.start_worker(poll_s=0.1)
    for number in range(20):
        whose = "datname = current_database() and application_name ~ '^onceflow-(engine|step|listen|heartbeat)'"
        stage.db.sql(f"select pg_terminate_backend(pid) from pg_stat_activity where {whose}")
        stage.start("mixed_payments", f"idle-{number}").result(20)
    assert stage.check() == 40
    assert count_entries(stage.db, "failed") + count_entries(stage.db, "up_for_retry") + count_entries(stage.db, "rescued") == 0
    assert is_connection_lost(asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"))
    assert not is_connection_lost(asyncpg.InternalClientError("cannot switch to state 12; another operation (11) is in progress"))


def test_a_session_the_server_ends_while_it_records_is_begun_again(stage: Stage) -> None:
    """pg_terminate_backend while the record waits for a lock, so after the effect and before COMMIT: one row, one try."""
    stage.start_worker()
    run = stage.start("one_payment", "locked", "in-step")
    stage.gates.wait_for("in-step")
    with stage.db.connect() as holder:
        holder.execute("begin")
        holder.execute("select from onceflow.lease where run = %s for update", (run.run,))
        stage.gates.open("in-step")
        blocked = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%%complete_step%%'"
        pid = stage.db.wait_for(blocked)
        stage.db.sql("select pg_terminate_backend(%s)", pid)
        stage.db.wait_for("select not exists (select from pg_stat_activity where pid = %s)", pid)
        holder.execute("commit")
    assert stage.check() == 1
    assert [entry[1:3] for entry in stage.entries(run)] == [("success", 1), ("success", 1)]


def test_branches_that_lose_their_connections_together_all_end(stage: Stage, proxy: Proxy) -> None:
    """Twenty branches of one body lose their connections at the same moment, again and again: the lease stays theirs."""
    stage.start_worker(concurrency=20, step_dsn=proxy.dsn(stage.db.step_dsn), dsn=proxy.dsn(stage.db.worker_dsn))
    run = stage.start("twenty_payments", "wide")
    for gate in ("one", "two", "three"):
        stage.gates.wait_for(gate, 20)
        proxy.cut_all()
        stage.gates.open(gate)
    assert run.result(60) == 20
    assert stage.check() == 20
    assert all(entry[1:3] == ("success", 1) for entry in stage.entries(run))


@pytest.mark.parametrize("when", WHENS)
def test_each_call_of_the_engine_survives_its_connection(stage: Stage, proxy: Proxy, when: When) -> None:
    """Every statement of the engine's own connection, cut at every moment: all runs succeed, effects happen once, and the
    ledger holds each outcome once, failures and retries included."""
    stage.start_worker(dsn=proxy.dsn(stage.db.worker_dsn), suspend_after_s=0.05, poll_s=0.2, lease_s=4)
    faults = []
    for name, workflow, at_once in ENGINE_CALLS:
        sent = f'["{name}"' if name in Batcher.BATCHABLE else f"onceflow.{name}("
        faults.append(proxy.cut_next(sent.encode(), when=when))
        for number in range(MOST_RUNS):
            runs = [stage.start_step(workflow, f"{name}-{workflow}-{number}-{one}", retries=1, kind="body") for one in range(at_once)]
            for run in runs:
                run.result(30)
            if faults[-1].happened.is_set():
                break
        faults[-1].wait()  # the heartbeat and the tick come by themselves
    if when == "held":
        for fault in faults:
            fault.deliver()
    stage.check()
    assert count_entries(stage.db, "rescued") == 0
    tried = "select distinct step_name, count(*) from onceflow.step_ledger where to_state = %s group by step_name, dag_run, ti, step_key order by 1"
    assert stage.db.sql(tried, "up_for_retry") == [("body_fails_once", 1), ("write_then_raise", 2), ("write_then_raise_blocking", 2)]
    assert stage.db.sql(tried, "started") == [("always_raise", 1), ("fetch", 1), ("pay_late", 1)]


@pytest.mark.server("pgbouncer")
def test_steps_may_go_through_a_pooler_while_the_engine_does_not(stage: Stage) -> None:
    """Whether named statements are safe is found out for the steps' DSN by itself: sessions change hands between steps."""
    stage.start_worker(concurrency=8, dsn=stage.db.direct_dsn)
    for number in range(20):
        stage.start("three_payments", f"pooled-{number}")
    assert stage.check() == 60
    assert count_entries(stage.db, "failed") + count_entries(stage.db, "up_for_retry") == 0
