"""`python -m tests.faults --minutes 10`: workers under random faults for so long, and every check after each round.

Exit code 1 on a violation, with the evidence and the folder that holds the workers' logs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.broken_engines import Mutant, find_mutants
from tests.faults.chaos import Chaos
from tests.faults.conftest import TABLES, Gates
from tests.faults.own_server import make_database, run_own_server
from tests.processes import Workers

ROUND_S = 60.0
LONG_S = 300.0  # long enough for every statement to come


def main() -> int:
    """Exit code 0: no violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**31))
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--open-runs", type=int, default=120)
    parser.add_argument("--restart-every", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in find_mutants()], help="run a broken engine: it must be caught")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="onceflow-faults-"))
    print(f"seed {given.seed}; logs in {folder}", flush=True)
    mutant = Mutant(given.mutant).apply(folder / "mutant") if given.mutant else None
    with run_own_server() as server:
        db = make_database(server, "faults", mutant.root if mutant else None)
        db.sql(TABLES)
        gates = Gates(folder / "gates")
        gates.folder.mkdir()
        chaos = Chaos(db, server, Workers(db, folder), gates, given.seed, given.workers, given.open_runs, given.restart_every, mutant.env if mutant else {})
        try:
            return run_rounds(chaos, given.minutes * 60)
        finally:
            chaos.end()
            db.close()


def run_rounds(chaos: Chaos, seconds: float) -> int:
    """Rounds of faults, each with its checks, until the time is over or something is wrong."""
    end = time.monotonic() + seconds
    try:
        chaos.begin()
        while (left := end - time.monotonic()) > 0:
            chaos.run(min(left, ROUND_S))
            print(chaos.report(), flush=True)
        assert seconds < LONG_S or not chaos.missing(), "there are names in points.py of statements that never came"
    except AssertionError as violation:
        print(f"VIOLATION: {violation}\n{chaos.evidence()}\n{chaos.report()}; violations: 1")
        return 1
    print(f"{chaos.report()}; violations: 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
