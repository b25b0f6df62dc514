"""Tables of the command line: readable on a terminal of any width, complete in a pipe."""

from __future__ import annotations

import re
import sys
from operator import itemgetter

import pytest

from onceflow.cli.output import Column, print_table

ID = "manual__2026-11-30T16:34:42.991825+00:00_773f975e"
COLUMNS: list[Column] = [(name, itemgetter(name)) for name in ("dag", "run id", "state", "error")]
ROWS = [{"dag": "hello", "run id": ID, "state": state, "error": None} for state in ("success", "failed")]


def lines_on(terminal: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is printed on a terminal of that width, or in a pipe."""
    monkeypatch.setenv("COLUMNS", str(terminal or 80))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal is not None, raising=False)
    print_table(COLUMNS, ROWS)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()]


def test_a_wide_terminal_has_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing wraps, and a column without any value is left out."""
    lines = lines_on(100, monkeypatch, capsys)
    assert [line.split() for line in lines if "hello" in line] == [["hello", ID, "success"], ["hello", ID, "failed"]]
    assert not any("error" in line for line in lines)


def test_on_a_narrow_terminal_only_the_widest_column_wraps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Words of the other columns stay whole."""
    lines = lines_on(50, monkeypatch, capsys)
    assert max(map(len, lines)) <= 50
    assert sum("hello" in line for line in lines) == 2 and sum("success" in line for line in lines) == 1


def test_a_terminal_too_narrow_for_columns_has_names_and_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row stands beneath the one before, each value beside its name."""
    assert lines_on(30, monkeypatch, capsys) == [
        "dag     hello",
        f"run id  {ID}",
        "state   success",
        "",
        "dag     hello",
        f"run id  {ID}",
        "state   failed",
        "",
    ]


def test_a_pipe_has_every_column_on_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the columns without any value, so that scripts find each at its place."""
    lines = lines_on(None, monkeypatch, capsys)
    assert len(lines) == 3 and lines[0].split() == ["dag", "run", "id", "state", "error"]
