"""The bench's command line."""

from __future__ import annotations

import sys

import pytest

from bench import __main__ as bench
from bench.rows import ROWS


def test_a_row_that_is_none_is_named_before_a_server_is_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--rows sql,nonsense` ends with code 2, names what is no row and lists those that are."""
    monkeypatch.setattr(sys, "argv", ["bench", "--rows", "sql,nonsense"])
    monkeypatch.setattr(bench, "bench_place", lambda: pytest.fail("a server was started"))
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "nonsense" in said and all(name in said for name in ROWS)
