"""Broken engines are caught: the checks can fail. Each is a patch in mutants/, applied to a copy of the engine."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from onceflow.db.embedded import grant_login_roles
from onceflow.db.migrate import migrate
from tests.database import Template, TestDatabase
from tests.faults.broken_engines import find_mutants
from tests.faults.scenarios import CAUGHT, open_play
from tests.processes import Workers
from tests.servers import Server

MUTANTS = {mutant.name: mutant for mutant in find_mutants()}
SCENARIOS = {play.__name__: play for play, _ in CAUGHT.values()}


def test_each_mutant_has_a_scenario() -> None:
    """No patch lies about that nothing is said to catch."""
    assert set(MUTANTS) == set(CAUGHT)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_engine_survives_it(db: TestDatabase, workers: Workers, scenario: str) -> None:
    """What catches a broken engine finds nothing wrong with this one."""
    with open_play(db, workers, {}) as play:
        SCENARIOS[scenario](play)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program `patch`; install the package patch")
@pytest.mark.parametrize("name", CAUGHT)
def test_a_broken_engine_is_caught(server: Server, template: Template, tmp_path: Path, name: str) -> None:
    """The patch fits, the engine migrates and runs, and the checker says what is wrong with what it has done."""
    mutant = MUTANTS[name].apply(tmp_path / "engine")
    broken = Template(server, f"broken_{name}").create(partial(migrate, root=mutant.root), grant_login_roles)
    db = TestDatabase(server, broken.name)
    workers = Workers(db, tmp_path)
    scenario, complaint = CAUGHT[name]
    try:
        with open_play(db, workers, mutant.env) as play, pytest.raises(AssertionError, match=complaint):
            scenario(play)
    finally:
        workers.end_all()
        broken.drop(db)
