"""A pool over workers that are killed: it is never exceeded, not by one slot, and none of its slots is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from onceflow import Client
from tests.database import TestDatabase
from tests.faults import checker
from tests.processes import Workers, write_dags

SLOTS, TASKS, WORKERS, KILLS = 7, 200, 4, 6
FLOWS = """
import time
from onceflow import dag, task

@task(pool="seven")
def eager(number: int) -> int:
    time.sleep(0.03)
    return number

@task
def join(numbers: list[int]) -> list[int]:
    return list(numbers)

@dag(schedule=None, max_active_tasks=1000)
def eager_ones():
    join(eager.expand(number=list(range(%d))))
"""


@pytest.mark.parametrize("seed", [1])
def test_a_pool_of_seven_and_killed_workers(db: TestDatabase, workers: Workers, tmp_path: Path, seed: int) -> None:
    """200 eager tasks, 4 workers, one of which is killed now and then: a sweep over claims and ends in the ledger shows 7 at once at most, and 7 are reached;
    at the end all slots are free again, and the join had all values once, in order."""
    dice = random.Random(seed)
    folder = write_dags(tmp_path, "flows", FLOWS % TASKS)
    db.sql("select onceflow.set_pool('seven', %s)", SLOTS)
    env = {"ONCEFLOW_LEASE_S": "1", "ONCEFLOW_POLL_S": "0.2", "ONCEFLOW_MAX_RESCUES": "1000"}
    for _ in range(WORKERS):
        workers.start(folder, concurrency=16, env=env)
    with Client(db.app_dsn) as client:
        run = client.trigger("eager_ones")
        for _ in range(KILLS):
            db.wait_for("select count(*) > %s from onceflow.lease where task_id = 'eager'", dice.randrange(SLOTS))
            time.sleep(dice.uniform(0, 0.1))  # where in its work it is struck, not a wait
            alive = [one for one in workers.started if one.running]
            busy = {pid for (pid,) in db.sql("select w.pid from onceflow.lease l join onceflow.worker w on w.id = l.worker where l.task_id = 'eager'")}
            dice.choice([one for one in alive if one.pid in busy] or alive).kill()
            workers.start(folder, concurrency=16, env=env, wait_ready=False)
        assert run.result(90) == "success"
    checker.check_limit(db, "seven", SLOTS)
    assert checker.most_at_once(db, "seven") == SLOTS
    checker.check_nothing_left(db)
    checker.check_entries(db)
    checker.check_rescues(db)
    assert checker.count_entries(db, "rescued") > 0, "no kill struck a task"
    assert db.sql("select output from onceflow.step_ledger where task_id = 'join' and final") == [(list(range(TASKS)),)]
