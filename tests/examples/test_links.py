"""What the pages point to is there: files, headings, and the files that CONTRIBUTING names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.page_run import ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *(ROOT / "docs").glob("**/*.md")]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link of the page names a file of the checkout, and each anchor a heading in it."""
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: ({path}) is not there"
        assert not anchor or anchor in anchors(target), f"{page.name}: ({path}#{anchor}) is no heading there"


def test_contributing_names_files_that_are_there() -> None:
    """The walk of one datum leads through real files."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\b(?:engine|db|sql|tests)/[\w/]+\.(?:py|sql)\b", text))
    assert len(named) > 10
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "src/onceflow" / name).exists()}
    assert not missing
