"""The bench measures what it says; its figures are nobody's business here, for the machine is shared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import peer_rows
from bench.peer_rows import Peer, install
from bench.picture import draw_history
from bench.place import BenchPlace, bench_place
from bench.record import keep
from bench.rows import ROWS
from bench.size import QUICK
from bench.step_rows import count_kept

ROOT = Path(__file__).parent.parent.parent
RESULT: dict[str, Any] = {
    "at": "2026-01-02T03:04:05+00:00", "command": "python -m bench", "commit": "abc", "machine": "m, 2 cores, Linux 6", "postgres": "18", "ceiling_tps": 100.0,
    "ceilings": [90.0, 110.0], "load": [[0.1, 0, 0], [0.2, 0, 0]],
    "rows": {"external": {"value": 60.0, "unit": "steps/s", "ratio": 0.6}, "transactional": {"value": 20.0, "unit": "steps/s", "ratio": 0.2}},
    "peers": {
        "slow": {"value": 5.0, "unit": "jobs/s", "ratio": 0.05, "ours_to_theirs": 4.0, "against": "transactional"},
        "gone": {"absent": "cannot be installed: no such package", "against": "transactional"},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Iterator[BenchPlace]:
    """The server of the bench, one for all rows."""
    with bench_place() as made:
        yield made


@pytest.mark.timeout(300)  # workers start and Postgres recovers while others use the machine
@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs(place: BenchPlace, name: str) -> None:
    """Each row answers figures above zero, measured on very little; its own checks (effects against the ledger, plans, joins) hold."""
    place.renew()
    figures = ROWS[name](place, QUICK)
    assert figures
    assert all(value >= 0 and unit for value, unit in figures.values()), figures


def test_effects_are_counted_against_the_ledger(place: BenchPlace) -> None:
    """An effect too many, one that another transaction wrote, and one that is missing are all noticed."""
    place.renew()
    ROWS["transactional"](place, QUICK)
    place.sql("insert into effect(n) values (1)")
    with pytest.raises(AssertionError, match="65 effects of 64 successes"):
        count_kept(place, QUICK.count)
    place.sql("delete from effect where id = (select max(id) from effect)")
    assert count_kept(place, QUICK.count) == QUICK.count
    place.sql("update effect set n = n where n = 2")
    with pytest.raises(AssertionError, match="64 effects of 64 successes after a crash of Postgres, 2 transactions"):
        count_kept(place, QUICK.count)
    place.sql("delete from effect where n = 2")
    with pytest.raises(AssertionError, match="63 effects of 64 successes"):
        count_kept(place, QUICK.count)


@pytest.mark.parametrize("option", ["--rows", "--groups", "--peers"])
def test_an_unknown_name_is_refused_before_anything_is_measured(option: str) -> None:
    """The message has the wrong name and the known ones."""
    done = subprocess.run([sys.executable, "-m", "bench", option, "nothing"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert f"{option}: unknown: nothing; known are " in done.stderr


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is pip's own."""
    monkeypatch.setattr(peer_rows, "HOME", tmp_path)
    gone = Peer("gone", ("./no/such/package",), ("jobs",))
    reason = install(gone)
    assert reason is not None
    assert reason.startswith("cannot be installed: ")
    assert "no/such/package" in reason


def test_a_run_is_kept_and_drawn(tmp_path: Path) -> None:
    """The newest section comes first in the page, the old ones stay; the picture has a bar for each figure, and peers that were not measured have none."""
    page, history = tmp_path / "RESULTS.md", tmp_path / "results.jsonl"
    page.write_text("# What was measured\nNewest first.\n\n## Before\nOld.\n")
    keep(RESULT, page, history)
    keep({**RESULT, "commit": "def"}, page, history)
    text = page.read_text()
    assert text.index(", def:") < text.index(", abc:") < text.index("## Before")
    assert "| gone | not measured |  | cannot be installed: no such package |" in text
    assert "| transactional | 20 steps/s | 0.200 | ratio >= 0.25: NOT met |" in text
    assert [json.loads(line)["commit"] for line in history.read_text().splitlines()] == ["abc", "def"]
    bars = ElementTree.fromstring(draw_history(history)).findall("{http://www.w3.org/2000/svg}rect")
    assert [bar.get("class") for bar in bars] == ["ground", "ours", "ours", "ours", "theirs"]
