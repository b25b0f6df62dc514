"""The replies of claims get lost, and no task with them."""

from __future__ import annotations

from tests.faults.checker import count_entries
from tests.faults.conftest import Stage, wait_until
from tests.proxy import Proxy

LOST, RUNS = 100, 800


def test_a_lost_claim_reply_orphans_no_task(stage: Stage) -> None:
    """100 times the reply of a claim that took tasks is dropped: the worker asks again under the same number and gets
    the very same tasks; each runs once, none waits for a rescue."""
    with Proxy(stage.db.superuser_dsn) as proxy:
        workers = [stage.start_worker(concurrency=1, dsn=proxy.dsn(stage.db.worker_dsn)) for _ in range(3)]
        stage.start_many("one_payment", RUNS)
        for _ in range(LOST):
            proxy.cut_next(b"onceflow.claim_tasks(").wait()
        # There was work for every claim, so each reply that was lost had tasks in it.
        assert stage.db.sql("select exists (select from onceflow.ready)") == [(True,)]
        stage.db.wait_for("select count(*) = %s from onceflow.run where state = 'success'", RUNS, timeout=60)
        assert stage.check() == RUNS
    assert sum(worker.log_text().count("claim not answered") for worker in workers) == LOST
    assert count_entries(stage.db, "rescued") == 0
    assert stage.db.sql("select distinct try_number from onceflow.ti") == [(1,)]
    assert stage.db.sql("select count(*) from onceflow.step_ledger") == [(2 * RUNS,)]


def test_a_claim_that_arrives_late_is_given_back(stage: Stage) -> None:
    """A claim held back in the network, sent again, and delivered after all: what it took is unclaimed by the heartbeat."""
    with Proxy(stage.db.superuser_dsn) as proxy:
        stage.start_worker(concurrency=2, dsn=proxy.dsn(stage.db.worker_dsn), lease_s=2)
        fault = proxy.cut_next(b"onceflow.claim_tasks(", when="held")
        stage.start("one_payment", "first", "in-step")
        fault.wait()
        stage.start("one_payment", "second", "in-step")
        stage.gates.wait_for("in-step", 2)
        stage.start("one_payment", "third")  # the worker is full: this one is there for the late claim
        assert fault.deliver() is None
        stage.db.wait_for("select exists (select from onceflow.ready)")
        stage.gates.open("in-step")
        assert stage.check() == 3
    assert count_entries(stage.db, "rescued") == 0


def test_a_worker_killed_between_claim_and_reply_loses_a_try_and_nothing_else(stage: Stage) -> None:
    """The worker dies while the reply of its claim is under way: the task is rescued as any other."""
    with Proxy(stage.db.superuser_dsn) as proxy:
        worker = stage.start_worker(dsn=proxy.dsn(stage.db.worker_dsn), lease_s=1)
        proxy.freeze()
        run = stage.start("one_payment", "unheard")
        fault = proxy.cut_next(b"onceflow.claim_tasks(")
        proxy.refuse()
        proxy.thaw()
        fault.wait()
        worker.kill()
    wait_until(lambda: not worker.running, "the worker's death")
    stage.start_worker(lease_s=1)
    assert stage.check() == 1
    assert [entry[1] for entry in stage.entries(run)] in (["rescued", "success", "success"], ["success", "success"])
