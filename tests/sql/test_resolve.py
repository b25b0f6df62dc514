"""resolve_commit: after a connection died around COMMIT, was it committed? And can the first attempt still land?"""

from __future__ import annotations

from onceflow.db.tokens import mark_token, name_session
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, look, make_silent, sqlstate_of


def test_it_waits_for_a_transaction_in_flight_that_commits(db: TestDatabase, one: Engine, two: Engine) -> None:
    """While the first attempt is uncommitted it waits; then it answers committed, with the output."""
    task = one.start_and_claim()
    one.begin()
    one.complete(task, output="7")
    resolved = two.blocks(lambda: two.resolve(task))
    one.commit()
    answer = resolved.result(20)
    assert (answer["outcome"], answer["output"]) == ("committed", "7")


def test_it_waits_for_a_transaction_in_flight_that_rolls_back(db: TestDatabase, one: Engine, two: Engine) -> None:
    """When the first attempt rolls back: not committed, and a new token with which the step can be completed."""
    task = one.start_and_claim()
    one.begin()
    one.complete_step(task, "a-0")
    resolved = two.blocks(lambda: two.resolve(task, "a-0"))
    one.rollback()
    answer = resolved.result(20)
    assert answer["outcome"] == "not_committed" and answer["token"] != task.token
    new = type(task)(**{name: getattr(task, name) for name in task.__slots__} | {"token": answer["token"]})
    two.complete_step(new, "a-0")
    two.complete(new)
    assert look(db, task.run) == ("success", "success")


def test_a_delayed_first_attempt_cannot_land(db: TestDatabase, one: Engine, two: Engine) -> None:
    """After not committed, the first attempt, arriving late, fails with OF001: neither its step nor its task can be ended twice."""
    task = one.start_and_claim()
    one.begin()
    one.sql("create table effect ()")
    assert two.resolve(task)["outcome"] == "not_committed"
    assert sqlstate_of(lambda: one.complete(task)) == "OF001"
    one.rollback()
    assert sqlstate_of(lambda: one.complete_step(task, "a-0")) == "OF001"
    assert db.sql("select to_regclass('effect')") == [(None,)] and look(db, task.run)[0] == "running"


def test_a_task_that_went_to_another_worker_is_superseded(db: TestDatabase, one: Engine, two: Engine) -> None:
    """After a rescue the old token gets superseded, and the new holder's token is not touched."""
    task = one.start_and_claim()
    make_silent(db, one)
    two.rescue()
    assert two.resolve(task)["outcome"] == "superseded"
    again = two.claim_one()
    assert one.resolve(task)["outcome"] == "superseded"
    two.complete(again)
    assert look(db, task.run) == ("success", "success")


def test_a_cancelled_task_is_superseded(db: TestDatabase, one: Engine, two: Engine) -> None:
    """resolve_commit beside an uncommitted cancel_run waits for it, and then there is nothing left to do."""
    task = one.start_and_claim()
    two.begin()
    two.cancel(task.run)
    resolved = one.blocks(lambda: one.resolve(task))
    two.commit()
    assert resolved.result(20)["outcome"] == "superseded"


def test_the_session_of_the_lost_attempt_is_ended(db: TestDatabase, one: Engine) -> None:
    """When nothing is committed, the transaction that this step has left open loses its locks; that of another step lives."""
    task = one.start_and_claim()
    with db.connect("step") as lost, db.connect("step") as other, db.connect("worker") as engine:
        for conn, key in ((lost, "a/b#0"), (other, "b#0")):
            conn.execute("begin")
            conn.execute("select set_config('application_name', %s, true)", (name_session(one.worker, mark_token(task.ti, task.token, key)),))
        assert engine.execute("select onceflow.resolve_commit(%s, %s, %s, %s, 'a/b#0') ->> 'outcome'", (*task.owner, task.epoch)).fetchone() == (
            "not_committed",
        )
        db.wait_for("select not exists (select from pg_stat_activity where pid = %s)", lost.info.backend_pid)
        assert other.execute("select 1").fetchone() == (1,)
        lost.close()


def test_looking_twice_answers_the_same(db: TestDatabase, one: Engine) -> None:
    """Of a committed step every later resolve_commit says so, whatever the token is by then."""
    task = one.start_and_claim()
    one.complete_step(task, "a-0", output='"x"')
    one.resolve(task, "b-0")
    for _ in range(2):
        answer = one.resolve(task, "a-0")
        assert (answer["outcome"], answer["output"]) == ("committed", '"x"')
