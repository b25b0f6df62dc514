"""Steps that share a commit, and one of them that is poison."""

from __future__ import annotations

from tests.database import TestDatabase
from tests.faults.scenarios import GOOD, open_play, poison_a_group
from tests.processes import Workers


def test_a_poison_among_49_good_members_costs_them_nothing(db: TestDatabase, workers: Workers) -> None:
    """49 members of a group commit once each at their first try; what fails for good fails alone, and what is to be tried
    three times is, by its own policy. Those that ran again ran alone: each has a transaction of its own."""
    with open_play(db, workers, {}) as play:
        poison_a_group(play)
    sizes = "select count(*) from onceflow.step_ledger where step_name = 'pay_unless_poisoned' and to_state = 'success' group by xid"
    assert sum(size for (size,) in db.sql(sizes)) == GOOD
    assert db.sql("select count(*) from effect where key like '%%poison' or key like '%%deadly'") == [(1,)]
