"""Reads the comment above each function in sql/: which states it moves, what it locks, what it raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "sql"
LINES = ("Moves", "Locks", "Raises", "Called by")
DAG_STATES = ("no_status", "upstream_failed", "up_for_reschedule")  # of dags' tasks only: tests/sql/test_dag_runs.py
TASK_STATES = (
    "none",
    "no_status",
    "scheduled",
    "queued",
    "running",
    "up_for_retry",
    "up_for_reschedule",
    "deferred",
    "success",
    "failed",
    "skipped",
    "upstream_failed",
)
RUN_STATES = ("none", "queued", "running", "needs_code", "success", "failed", "cancelled")
ARROW = re.compile(r"(\w+) -> (\w+)")
MADE = re.compile(r"^create or replace (?:function|view) onceflow\.(\w+)", re.MULTILINE)
Arrow = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Header:
    """What stands above one function or view."""

    name: str
    file: str
    lines: dict[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def task_arrows(self) -> frozenset[Arrow]:
        return frozenset(read_arrows(self.lines.get("Moves", "")))

    @property
    def run_arrows(self) -> frozenset[Arrow]:
        return frozenset(read_arrows(self.lines.get("Run", "")))

    @property
    def sqlstates(self) -> frozenset[str]:
        return frozenset(re.findall(r"\bOF\d{3}\b", self.lines.get("Raises", "")))

    @property
    def is_race(self) -> bool:
        """May it find nothing to do, and say nothing?"""
        return "Races" in self.lines


def read_arrows(text: str) -> Iterator[Arrow]:
    """The arrows of a line; what stands in parentheses is for people."""
    for found in ARROW.finditer(re.sub(r"\([^)]*\)", "", text)):
        yield found.group(1), found.group(2)


@cache
def read_headers() -> dict[str, Header]:
    """Every function and view, in the order of files and lines."""
    return {header.name: header for path in sorted(FOLDER.glob("*.sql")) for header in _read_file(path)}


def _read_file(path: Path) -> Iterator[Header]:
    text = path.read_text(encoding="utf-8")
    for made in MADE.finditer(text):
        above: list[str] = []
        for line in reversed(text[: made.start()].splitlines()):
            if not line.startswith("--"):
                break
            above.insert(0, line.removeprefix("--").strip())
        header = _read_comment(made.group(1), path.name, above)
        if header.name == path.stem and "Moves" not in header.lines:  # other functions stand between it and the head of the file
            head = text.split("\n\n")[0].splitlines()
            header = _read_comment(header.name, path.name, [line.removeprefix("--").strip() for line in head if line.startswith("--")])
        yield header


def _read_comment(name: str, file: str, above: list[str]) -> Header:
    lines: dict[str, str] = {}
    rest: list[str] = []
    for line in above:
        label, _, value = line.partition(":")
        if label in (*LINES, "Run", "Races", "After") and not rest:
            lines[label] = value.strip()
        else:
            rest.append(line)
    return Header(name, file, lines, " ".join(rest))
