"""Postgres goes away and comes back: nothing is lost, doubled or stuck, and nobody is taken for dead."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onceflow.db.link import Link
from tests.faults.checker import count_entries
from tests.faults.conftest import Stage, let_pass, make_stage, wait_until
from tests.faults.own_server import OwnServer, make_database, run_own_server
from tests.processes import Workers
from tests.proxy import Proxy

RUNS = 500
LEASE_S = 2.0
OUTAGE_S = 1.5 * LEASE_S


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    with run_own_server() as server:
        yield server


@pytest.fixture
def own_stage(own_server: OwnServer, tmp_path: Path) -> Iterator[Stage]:
    """A stage on that server."""
    db = make_database(own_server, "own")
    workers = Workers(db, tmp_path)
    try:
        with make_stage(db, workers, tmp_path) as stage:
            yield stage
    finally:
        workers.end_all()
        db.close()


def test_five_restarts_under_load_lose_and_double_nothing(own_stage: Stage, own_server: OwnServer) -> None:
    """500 runs of three steps while Postgres is stopped as in a crash five times: all succeed, 1,500 effects, none stuck,
    no try was used up."""
    stage, db = own_stage, own_stage.db
    for _ in range(2):
        stage.start_worker(concurrency=16)
    stage.start_many("three_payments", RUNS)
    for number in range(1, 6):
        db.wait_for("select count(*) >= %s from effect", number * RUNS // 3)
        db.close()
        own_server.restart()
    db.wait_for("select count(*) = %s from onceflow.run where state = 'success'", RUNS, timeout=90)
    assert stage.check() == 3 * RUNS
    assert db.sql("select to_state, count(*) from onceflow.step_ledger where kind <> 'body' group by 1") == [("success", 3 * RUNS)]
    assert count_entries(db, "failed") + count_entries(db, "rescued") + count_entries(db, "up_for_retry") == 0


def test_an_outage_longer_than_the_lease_is_nobodys_death(own_stage: Stage, own_server: OwnServer) -> None:
    """The server frozen for longer than the lease, then stopped for longer than it: both workers go on with what they were
    in the middle of, and nothing is rescued; runs started before and after succeed."""
    stage, db = own_stage, own_stage.db
    workers = [stage.start_worker(lease_s=LEASE_S) for _ in range(2)]
    for name in ("one_payment", "one_payment_blocking", "one_late_payment", "wait_sleep", "long_external"):
        for number in range(2):
            stage.start(name, f"{name}-{number}", "in-step") if "wait" not in name else stage.start(name, f"{name}-{number}")
    stage.gates.wait_for("in-step", 8)
    own_server.freeze()
    let_pass(OUTAGE_S)
    own_server.thaw()
    for worker in workers:
        wait_fresh_heartbeat(stage, stage.worker_id(worker))
    db.close()
    own_server.crash()
    let_pass(OUTAGE_S)
    own_server.start()
    for worker in workers:
        wait_fresh_heartbeat(stage, stage.worker_id(worker))
    stage.gates.open("in-step")
    stage.start("one_payment", "afterwards")
    assert stage.check() == 9
    assert count_entries(db, "rescued") + count_entries(db, "failed") + count_entries(db, "up_for_retry") == 0


def test_a_network_that_swallows_everything_for_longer_than_the_lease_is_nobodys_death(stage: Stage) -> None:
    """All traffic of all workers frozen for longer than the lease, then refused for as long: no task is rescued."""
    with Proxy(stage.db.superuser_dsn) as proxy:
        dsns = {"dsn": proxy.dsn(stage.db.worker_dsn), "step_dsn": proxy.dsn(stage.db.step_dsn), "direct_dsn": proxy.dsn(stage.db.direct_dsn)}
        worker = stage.start_worker(lease_s=LEASE_S, **dsns)
        stage.start("one_payment", "one", "in-step")
        stage.start("one_payment_blocking", "two", "in-step")
        stage.gates.wait_for("in-step", 2)
        proxy.freeze()
        let_pass(OUTAGE_S)
        proxy.thaw()
        wait_fresh_heartbeat(stage, stage.worker_id(worker))
        proxy.refuse()
        proxy.cut_all()
        let_pass(OUTAGE_S)
        proxy.accept()
        stage.gates.open("in-step")
        assert stage.check() == 2
    assert count_entries(stage.db, "rescued") + count_entries(stage.db, "failed") == 0


def test_sigterm_ends_a_worker_while_the_database_is_away(own_stage: Stage, own_server: OwnServer) -> None:
    """A worker that cannot reach its database still ends in good time, with 0; its tasks are rescued later."""
    stage = own_stage
    worker = stage.start_worker(lease_s=1, drain_s=1)
    stage.start("one_payment", "inside", "in-step")
    stage.start("wait_message", "waiting")
    stage.gates.wait_for("in-step")
    stage.db.close()
    own_server.crash()
    wait_until(lambda: "cannot connect" in worker.log_text(), "the outage in the log")
    assert worker.terminate(timeout=25) == 0
    own_server.start()
    stage.gates.open("in-step")
    stage.start_worker(lease_s=1)
    stage.runs[1].send("now", topic="go")
    assert stage.check() == 2


@pytest.mark.parametrize("function", ["run_tick(int, int)", "claim_tasks(bigint, bigint, int[], int, boolean)", "heartbeat(bigint, bigint[], uuid[], bigint)"])
def test_a_call_that_fails_for_whatever_reason_is_made_again(stage: Stage, function: str) -> None:
    """The worker is refused one of its three regular calls for a while, by an error that is no lost connection: it goes on
    asking, and works as before once it may."""
    worker = stage.start_worker(poll_s=0.2, lease_s=4)
    stage.db.sql(f"revoke execute on function onceflow.{function} from onceflow_worker")
    wait_until(lambda: "permission denied" in worker.log_text(), "the refusal")
    stage.db.sql(f"grant execute on function onceflow.{function} to onceflow_worker")
    stage.start("wait_sleep", "after")
    assert stage.check() == 1
    assert worker.terminate() == 0


async def test_silent_peers_are_noticed_by_the_kernel(stage: Stage) -> None:
    """Connections over TCP have keep-alive and a limit for unacknowledged data, so a server that vanished is noticed."""
    with Proxy(stage.db.superuser_dsn) as proxy:
        link = Link(proxy.dsn(stage.db.worker_dsn))
        await link.open()
        kept = link._idle[0]._transport.get_extra_info("socket")
        assert kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        await link.close()


def wait_fresh_heartbeat(stage: Stage, worker: int) -> None:
    """Wait until a worker has sent its sign of life, after an outage."""

    def is_fresh() -> bool:
        try:
            return bool(stage.db.sql("select heartbeat_at > onceflow.now() - interval '0.7 second' from onceflow.worker where id = %s", worker)[0][0])
        except psycopg.OperationalError:
            return False

    wait_until(is_fresh, f"a heartbeat of worker {worker}")
