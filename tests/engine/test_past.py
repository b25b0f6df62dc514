"""depends_on_past by real workers."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.engine.local_worker import Engine


def test_many_days_at_once_run_in_the_order_of_their_dates(engine: Engine) -> None:
    """Twelve runs, all active, started in reverse and served by two workers: their transactions happen in the order of the dates, and all runs end."""
    engine.start_worker()
    engine.db.sql("update onceflow.dag set is_paused = true where dag_id = 'account'")  # none begins before the last is there
    for day in reversed(range(1, 13)):
        engine.db.sql("select onceflow.start_run('account', logical_date => %s)", datetime(2026, 1, day, tzinfo=UTC))
    engine.db.sql("select onceflow.pause_dag('account', false)")
    engine.db.wait_for("select count(*) = 12 from onceflow.run where dag_id = 'account' and state = 'success' having count(*) = 12", timeout=60)
    notes = [note for (note,) in engine.db.sql("select note from effect where what = 'account' order by id")]
    assert notes == [f"{day:02}" for day in range(1, 13)]
    assert engine.db.sql("select count(*) from onceflow.past_wait") == [(0,)]
