"""A worker, or a connection, dies between what a step sends and its commit: message, child and task are there once if the step's row is, else not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from onceflow import RunHandle
from tests.database import TestDatabase
from tests.faults.conftest import Stage
from tests.proxy import Proxy, When

KINDS = ("tell_all", "tell_all_blocking", "tell_all_late")
WHENS: tuple[When, ...] = ("before", "forwarded", "answered", "held")


@pytest.fixture
def proxy(db: TestDatabase) -> Iterator[Proxy]:
    with Proxy(db.superuser_dsn) as made:
        yield made


def start(stage: Stage, kind: str, key: str, reader: RunHandle[list[str]], gate: str = "") -> RunHandle[str]:
    """A run whose step has a message to take."""
    run = stage.start(kind, key, reader.run, gate)
    run.send(f"for {key}", "inbox")
    run.send("", "go")
    return run


def check(stage: Stage, reader: RunHandle[list[str]], keys: list[str]) -> None:
    """Each key's row, message, child and task, once; each step has taken its one message; nothing is left over."""
    assert stage.check() == 3 * len(keys), "a row of the step, one of its child, one of its task"
    assert reader.result(20) == sorted(keys)
    assert stage.db.sql("select count(*) from onceflow.message") == [(0,)]
    assert stage.db.sql("select count(*) from effect where note <> 'for ' || key") == [(0,)]
    assert stage.db.sql("select count(*) from onceflow.run where dag_id = 'follow_up'") == [(len(keys),)]
    assert stage.db.sql("select run_id from onceflow.run where dag_id = 'follow_up' and run_id not like '%#0/follow_up:start#0.%'") == [], "ids of another pass"
    assert stage.db.sql("select count(*) from onceflow.ti where detached") == [(len(keys),)]


def test_a_worker_killed_between_send_and_commit(stage: Stage) -> None:
    """All was sent and started, the step had not committed: nobody has heard of it when the worker is dead; the next worker does it once."""
    first = stage.start_worker(lease_s=1)
    reader = stage.start("hear_all", len(KINDS))
    for kind in KINDS:
        start(stage, kind, kind, reader, "in-step")
    stage.gates.wait_for("in-step", len(KINDS))
    first.kill()
    stage.db.wait_for("select not exists (select from pg_stat_activity where application_name like 'onceflow-step:%%' and state <> 'idle')")
    for table in ("message where topic = 'told'", "ti where detached", "run where dag_id = 'follow_up'", "run_key where dag_id = 'follow_up'"):
        assert stage.db.sql(f"select count(*) from onceflow.{table}") == [(0,)]
    assert stage.db.sql("select count(*) from onceflow.message where topic = 'inbox'") == [(len(KINDS),)]
    stage.gates.open("in-step")
    stage.start_worker(lease_s=1)
    check(stage, reader, list(KINDS))


def test_a_connection_that_dies_around_the_commit(stage: Stage, proxy: Proxy) -> None:
    """Cut before, at or after COMMIT, its reply lost, or its session left open on the server, with a message taken and a child's id used: each once."""
    stage.start_worker(step_dsn=proxy.dsn(stage.db.step_dsn))
    cases = list(itertools.product(WHENS, KINDS))
    reader = stage.start("hear_all", len(cases))
    keys = []
    for when, kind in cases:
        keys.append(f"{when}-{kind}")
        fault = proxy.cut_next(b"complete_step", when=when)
        start(stage, kind, keys[-1], reader).result(30)
        fault.wait(1)
        if when == "held":
            assert fault.wait_answered() == "57P01"
    check(stage, reader, keys)
