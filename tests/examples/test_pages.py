"""Every code block of the README and of docs/ runs, and prints what the page says it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.database import TestDatabase
from tests.examples.page_run import ROOT, PageRun
from tests.processes import worker_environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def page_environment(db: TestDatabase) -> dict[str, str]:
    """What the pages call the logins of the reader's database. The lease is shorter than the default: nobody waits 10 s."""
    return {**worker_environment(db), "APP_DSN": db.app_dsn, "AUDITOR_DSN": db.auditor_dsn, "ONCEFLOW_LEASE_S": "2"}


def bare_environment(db: TestDatabase) -> dict[str, str]:
    """For a page that makes its own database: no login at all."""
    return {name: value for name, value in page_environment(db).items() if not name.endswith("_DSN")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_the_page_runs(page: Path, db: TestDatabase, server_folder: Path) -> None:
    """A reader who copies the page block by block, in one folder, gets what the page shows."""
    makes_its_own = "--embedded" in page.read_text()
    PageRun(page, server_folder, bare_environment(db) if makes_its_own else page_environment(db)).run()
