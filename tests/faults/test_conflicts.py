"""Steps that get in each other's way in the database are run again until they are through."""

from __future__ import annotations

import re
from pathlib import Path

from tests.database import TestDatabase
from tests.faults.conftest import Stage


def test_a_deadlock_between_two_steps_is_retried_to_success(stage: Stage) -> None:
    """Two steps update the same rows in opposite order, each holding the first before it asks for the second: Postgres
    ends one, which runs again; both succeed in one try each. No statement of the engine's stands in the deadlock."""
    log, seen = find_server_log(stage.db)
    stage.start_worker()
    runs = [stage.start("deadlock", f"pair-{number}", 2 * number + 1, 2 * number + 2) for number in range(3)]
    assert stage.check() == 6
    assert stage.db.sql("select id, value from counter where id <= 6 order by id") == [(number, 2) for number in range(1, 7)]
    assert all(entry[1:3] == ("success", 1) for run in runs for entry in stage.entries(run))
    assert stage.db.sql("select deadlocks >= 3 from pg_stat_database where datname = current_database()") == [(True,)]
    involved = re.findall(r"^\s*Process \d+: (.*)", log.read_text()[seen:], re.MULTILINE)
    assert len(involved) >= 6 and {statement[:14] for statement in involved} == {"update counter"}


def find_server_log(db: TestDatabase) -> tuple[Path, int]:
    """The server's log, which lies beside its data, and how long it is by now."""
    (log,) = Path(db.sql("show data_directory")[0][0]).parent.glob("*.log")
    return log, len(log.read_text())


def test_serializable_steps_with_conflicts_end_right(stage: Stage) -> None:
    """30 steps each take one of ten after counting what is taken: exactly ten get one, on whatever workers they run."""
    for _ in range(2):
        stage.start_worker(concurrency=8)
    runs = [stage.start("take", f"take-{number}") for number in range(30)]
    assert sum(run.result(60) for run in runs) == 10
    assert stage.check() == 30
    assert stage.db.sql("select count(*) from effect where note = 'taken'") == [(10,)]
    assert all(entry[1:3] == ("success", 1) for run in runs for entry in stage.entries(run))
