"""Deduplicated starts: one living run of a dag for each text, in any interleaving of starts, ends, retries and rollbacks."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from onceflow.errors import RunConflict
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, look, move_clock, sqlstate_of, stop_clock
from tests.sql.test_plans import count_reads
from tests.sql.test_starts import go_on

KEYS = "select run from onceflow.live_key"
ENDS: dict[str, Callable[[Engine], object]] = {
    "success": lambda e: e.complete(e.claim_one()),
    "failed": lambda e: e.fail(e.claim_one()),
    "cancelled": lambda e: e.cancel(e.db.sql(KEYS)[0][0]),
}


def test_a_living_run_is_answered(db: TestDatabase, one: Engine) -> None:
    """Queued, running, and to everybody the same: equal arguments answer it, other ones conflict; another dag's text is another one."""
    run = one.start(args='{"a": 1}', deduplicate="daily")
    assert one.start(args='{"a": 1}', deduplicate="daily") == run
    task = one.claim_one()
    assert one.start(args='{"a": 1}', deduplicate="daily") == run == task.run
    with pytest.raises(RunConflict, match=r"is alive with deduplicate 'daily' and other arguments"):
        one.start(args='{"a": 2}', deduplicate="daily")
    assert one.start(args='{"a": 2}', deduplicate="other") != run
    one.dags = ("flow", "other")
    one.register()
    assert one.start("other", args='{"a": 1}', deduplicate="daily") != run
    assert one.start(args='{"a": 1}') != run


@pytest.mark.parametrize("end", ENDS)
def test_an_ended_run_is_followed_by_a_new_one(db: TestDatabase, one: Engine, end: str) -> None:
    """However it ended, the text is free at once, for other arguments too; nothing of it is left behind."""
    run = one.start(args='{"a": 1}', deduplicate="daily")
    ENDS[end](one)
    assert look(db, run)[1] == end
    assert db.sql(KEYS) == []
    again = one.start(args='{"a": 2}', deduplicate="daily")
    assert again != run and db.sql(KEYS) == [(again,)]


def test_a_run_past_its_time_limit_frees_its_text(db: TestDatabase, one: Engine) -> None:
    """The run that the tick ends is an ended run like any other."""
    stop_clock(db)
    one.register()
    one.start(deduplicate="daily", timeout_s=5)
    move_clock(db, 6)
    one.tick()
    assert db.sql(KEYS) == []


def test_a_run_with_a_task_beside_its_body_frees_its_text_with_its_last_task(db: TestDatabase, one: Engine) -> None:
    """The text stands as long as anything of the run lives."""
    body = one.start_and_claim(deduplicate="daily")
    one.start_task(body, "work:start-0")
    beside = one.claim_one()
    one.complete(body)
    assert one.start(deduplicate="daily") == body.run
    one.complete(beside, kind="external")
    assert look(db, body.run)[1] == "success" and db.sql(KEYS) == []


def test_a_stopped_run_lives(db: TestDatabase, one: Engine) -> None:
    """A run that waits for its code, or for its time, has not ended: it is answered."""
    task = one.start_and_claim(deduplicate="daily")
    one.stop_run(task, "v0")
    assert look(db, task.run)[1] == "needs_code"
    assert one.start(deduplicate="daily") == task.run
    one.retry(task.run)
    assert one.start(deduplicate="daily") == task.run
    later = one.start(deduplicate="later", delay_s=60)
    assert one.start(deduplicate="later") == later


def test_two_open_transactions_start_one_run(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The second start waits for the first to commit and answers its run, or conflicts with it."""
    one.begin()
    run = one.start(args='{"a": 1}', deduplicate="daily")
    again = two.blocks(lambda: two.start(args='{"a": 1}', deduplicate="daily"))
    one.commit()
    assert again.result(20) == run
    assert db.sql("select count(*) from onceflow.run") == [(1,)] == db.sql("select count(*) from onceflow.run_key")


def test_a_start_that_is_rolled_back_never_was(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The start that waited for it makes the run, with whatever arguments."""
    one.begin()
    first = one.start(args='{"a": 1}', deduplicate="daily")
    again = two.blocks(lambda: two.start(args='{"a": 2}', deduplicate="daily"))
    one.rollback()
    made = again.result(20)
    assert made != first and db.sql(KEYS) == [(made,)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_start_beside_an_end_does_not_wait(db: TestDatabase, one: Engine, two: Engine, commits: bool) -> None:
    """Until the end commits the run lives and is answered; afterwards there is a new one. The end waits for no start either."""
    run = one.start_and_claim(deduplicate="daily")
    one.begin()
    one.complete(run)
    assert two.start(deduplicate="daily") == run.run
    one.commit() if commits else one.rollback()
    assert (two.start(deduplicate="daily") == run.run) is not commits


def test_an_end_does_not_wait_for_a_start(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A run that somebody's open transaction was answered may end meanwhile."""
    task = one.start_and_claim(deduplicate="daily")
    two.begin()
    assert two.start(deduplicate="daily") == task.run
    one.complete(task)
    assert look(db, task.run)[1] == "success"
    assert two.start(deduplicate="daily") != task.run
    two.commit()
    assert db.sql("select count(*) from onceflow.live_key") == [(1,)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_starts_in_stricter_transactions(db: TestDatabase, one: Engine, two: Engine, level: str) -> None:
    """Such a transaction sees the text as of its snapshot; where that is too old to answer, it fails as one that may be repeated, and starts nothing."""
    one.begin(level)
    one.sql("select 1 from onceflow.run")
    run = two.start(deduplicate="daily")
    assert sqlstate_of(lambda: one.start(deduplicate="daily")) == "40001"
    one.rollback()
    one.begin(level)
    assert one.start(deduplicate="daily") == run
    one.commit()


def test_a_used_run_id_comes_first(db: TestDatabase, one: Engine) -> None:
    """A start that is repeated after a lost reply finds the run it made, ended or not; the same id with other arguments conflicts."""
    task = one.start_and_claim(run_id="r1", args='{"a": 1}', deduplicate="daily")
    assert one.start(run_id="r1", args='{"a": 1}', deduplicate="daily") == task.run
    one.complete(task)
    assert one.start(run_id="r1", args='{"a": 1}', deduplicate="daily") == task.run
    with pytest.raises(RunConflict, match="run id r1"):
        one.start(run_id="r1", args='{"a": 2}', deduplicate="daily")
    assert db.sql(KEYS) == []


def test_a_run_id_that_was_not_needed_stays_free(db: TestDatabase, one: Engine) -> None:
    """Answered with another run, a new run id is used for nothing: it may start a run afterwards."""
    task = one.start_and_claim(run_id="r1", deduplicate="daily")
    assert one.start(run_id="r2", deduplicate="daily") == task.run
    assert db.sql("select run_id from onceflow.run_key") == [("r1",)]
    one.complete(task)
    assert one.start(run_id="r2", deduplicate="daily") not in (task.run, None)


def test_a_run_id_that_somebody_else_takes_meanwhile_takes_no_text(db: TestDatabase, one: Engine, two: Engine) -> None:
    """Two starts of one run id, of which one deduplicates: the second answers the first's run and leaves the text free."""
    one.begin()
    run = one.start(run_id="r1")
    again = two.blocks(lambda: two.start(run_id="r1", deduplicate="daily"))
    one.commit()
    assert again.result(20) == run
    assert db.sql(KEYS) == []


def test_a_retry_takes_the_text_again(db: TestDatabase, one: Engine, two: Engine) -> None:
    """A run that is tried again lives again; not while another has its text, also when that one is just being started."""
    task = one.start_and_claim(deduplicate="daily")
    one.fail(task)
    one.retry(task.run)
    assert one.start(deduplicate="daily") == task.run
    one.fail(one.claim_one())
    two.begin()
    other = two.start(deduplicate="daily")
    retrying = one.blocks(lambda: one.retry(task.run))
    two.commit()
    with pytest.raises(RunConflict, match="cannot be tried again while run"):
        retrying.result(20)
    assert look(db, task.run)[1] == "failed"
    one.cancel(other)
    one.retry(task.run)
    assert db.sql(KEYS) == [(task.run,)]


def test_a_run_that_goes_on_keeps_its_text(db: TestDatabase, one: Engine, two: Engine) -> None:
    """After continue_as the run that goes on is answered, to the arguments of the first start; until that commits, the old one."""
    task = one.start_and_claim(args='{"n": 1}', deduplicate="poller")
    one.begin()
    following = go_on(one, task)
    assert two.start(args='{"n": 1}', deduplicate="poller") == task.run
    one.commit()
    assert two.start(args='{"n": 1}', deduplicate="poller") == following
    last = go_on(one, one.claim_one(), '{"n": 3}')
    assert two.start(args='{"n": 1}', deduplicate="poller") == last
    with pytest.raises(RunConflict):
        two.start(args='{"n": 3}', deduplicate="poller")
    one.fail(one.claim_one())
    assert db.sql(KEYS) == []
    one.retry(last)
    assert two.start(args='{"n": 1}', deduplicate="poller") == last


def test_a_run_that_goes_on_beside_a_living_task_keeps_its_text(db: TestDatabase, one: Engine) -> None:
    """The old run ends later than the new one has begun, and takes the text from nobody."""
    body = one.start_and_claim(deduplicate="poller")
    one.start_task(body, "work:start-0")
    beside = one.claim_one()
    following = go_on(one, body)
    assert look(db, body.run)[1] == "running"
    one.complete(beside, kind="external")
    assert look(db, body.run)[1] == "success" and db.sql(KEYS) == [(following,)]


def test_a_fork_has_no_text(db: TestDatabase, one: Engine) -> None:
    """A fork of a living run is another run, on purpose."""
    task = one.start_and_claim(deduplicate="daily")
    one.complete_step(task, "a-0")
    fork = int(one.sql("select onceflow.fork_run(%s, 'a-0', 'f1') ->> 'run'", task.run)[0][0])
    one.cancel(fork)
    assert db.sql(KEYS) == [(task.run,)]


def test_children_share_a_living_run(db: TestDatabase, one: Engine) -> None:
    """Two parents start a child with one text: it is one run, recorded in both ledgers; a run cannot become its own child."""
    parents = [one.start_and_claim() for _ in range(2)]
    child = one.start_child(parents[0], "flow:start-0", args='{"a": 1}', deduplicate="shared")
    assert one.start_child(parents[1], "flow:start-0", args='{"a": 1}', deduplicate="shared") == child
    assert one.start(args='{"a": 1}', deduplicate="shared") == child
    with pytest.raises(RunConflict):
        one.start_child(parents[1], "flow:start-1", deduplicate="shared")
    task = one.claim_one()
    assert task.run == child
    assert sqlstate_of(lambda: one.start_child(task, "flow:start-0", args='{"a": 1}', deduplicate="shared")) == "OF008"
    one.cancel(parents[0].run)
    assert look(db, child)[1] == "cancelled" and look(db, parents[1].run)[1] == "running"


@pytest.mark.parametrize("text", ["", "x" * 251])
def test_a_text_has_bounds(one: Engine, text: str) -> None:
    """As a run id has."""
    assert sqlstate_of(lambda: one.start(deduplicate=text)) == "OF008"


def test_the_text_costs_the_others_nothing(db: TestDatabase, one: Engine) -> None:
    """The start and the end of a run without a text do not touch the table of texts."""

    def start_and_end(**options: str) -> None:
        one.cancel(one.start(**options))
        one.start(**options)
        one.complete(one.claim_one())

    assert "live_key" in count_reads(one, lambda: start_and_end(deduplicate="daily"))
    assert "live_key" not in count_reads(one, start_and_end)


def test_a_start_in_sql_deduplicates(db: TestDatabase, one: Engine) -> None:
    """As an application would write it, in its own transaction; the answer says whether it made the run."""
    text = "select onceflow.start_run('flow', '{\"a\": 1}', deduplicate => 'daily') ->> 'created'"
    with psycopg.connect(db.app_dsn) as app:
        assert [app.execute(text).fetchone() for _ in range(2)] == [("true",), ("false",)]
