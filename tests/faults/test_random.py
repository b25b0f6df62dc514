"""Every fault at every statement, as a seed deals them, under a mixed load: the checks read nothing but the database.

`make faults MINUTES=10` is the same for longer. A failed seed comes back with ONCEFLOW_FAULT_SEED.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.faults.chaos import Chaos
from tests.faults.conftest import TABLES, Gates
from tests.faults.own_server import make_database, run_own_server
from tests.processes import Workers

SECONDS = float(os.environ.get("ONCEFLOW_FAULT_SECONDS", "12"))
SEED = int(os.environ.get("ONCEFLOW_FAULT_SEED", "0")) or random.randrange(1, 2**31)


def test_random_faults_at_every_statement_break_nothing(tmp_path: Path) -> None:
    """Workers killed, paused past their leases, cut off and answered late at statements of all names, Postgres crashed and
    started again: effects happen once, money is conserved, joins fire once, limits hold, nothing is left behind."""
    print(f"ONCEFLOW_FAULT_SEED={SEED}")
    gates = Gates(tmp_path / "gates")
    gates.folder.mkdir()
    with run_own_server() as server:
        db = make_database(server, "faults")
        db.sql(TABLES)
        chaos = Chaos(db, server, Workers(db, tmp_path), gates, SEED, open_runs=60, restart_every_s=SECONDS)
        try:
            chaos.begin()
            chaos.run(SECONDS)
        except AssertionError as violation:
            violation.add_note(f"{chaos.evidence()}\n{chaos.report()}")
            raise
        finally:
            chaos.end()
            db.close()
    print(dict(chaos.done))
    assert chaos.done["kill"] >= 2 and chaos.done["restart"] >= 1 and sum(chaos.done.values()) >= 10
