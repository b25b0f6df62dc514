"""The exported ledger: a second computation of every hash, in Python, that agrees with the database and finds what was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.db import calls
from onceflow.db.export import export_ledger, hash_entry, verify_export
from tests.sql.drive import Drive
from tests.sql.engine_calls import Task

Lines = list[dict[str, Any]]
OUTPUTS = [
    "null",
    '"text"',
    '{"b": 1, "aa": {"x": [1, 2.50, 1e3, -0.0]}, "a": null}',
    '"\\u0001 \\n \\" \\\\ \\u007f € 𝄞"',
    "123456789012345678901234567890.1200",
    "[]",
    "{}",
    '""',
]


@pytest.fixture
def task(drive: Drive) -> Task:
    """A running task with steps of all kinds of outputs, sealed in windows of three."""
    task = drive.start()
    for number, output in enumerate(OUTPUTS):
        drive.engine.call(calls.complete_step(*task.owner, f"pay#{number}", "pay", "external", 1, output, "h", output, 1))
    drive.engine.fail_step(task, "fail#0", final=False)
    drive.db.sql("select onceflow.seal_ledger(0, 100, 3)")
    return task


def export(drive: Drive, path: Path) -> Path:
    path.write_text("".join(f"{line}\n" for line in export_ledger(drive.auditor)), encoding="utf-8")
    return path


def change(path: Path, edit: Callable[[Lines], object]) -> list[str]:
    """The problems that the export has after an edit of its lines."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    edit(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return sorted({finding.problem for finding in verify_export(path)})


def entry(lines: Lines, key: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("step_key") == key)


def test_the_second_computation_agrees(drive: Drive, task: Task, tmp_path: Path) -> None:
    """Entries of every shape, sealed and unsealed, human acts, and settings of the reader that make texts look otherwise."""
    drive.engine.cancel(task.run)
    drive.auditor.execute("set timezone = 'Asia/Kathmandu'; set datestyle = 'German'; set bytea_output = 'escape'; set intervalstyle = 'iso_8601'")
    path = export(drive, tmp_path / "ledger.jsonl")
    assert verify_export(path) == []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["record"] for line in lines] == ["export"] + ["entry"] * 11 + ["seal"] * 3 + ["end"]
    hashes = drive.db.sql("select id, encode(onceflow.entry_hash(l), 'hex') from onceflow.step_ledger l order by xid, id")
    assert [(line["id"], hash_entry(line)) for line in lines if line["record"] == "entry"] == hashes


def swap_hashes(lines: Lines) -> None:
    first, second = entry(lines, "pay#0"), entry(lines, "pay#1")
    first["hash"], second["hash"] = second["hash"], first["hash"]


def rehash(lines: Lines) -> None:
    changed = entry(lines, "pay#3")
    changed["output"] = "2"
    changed["hash"] = hash_entry(changed)


EDITS: dict[str, tuple[Callable[[Lines], object], list[str]]] = {
    "output": (lambda lines: entry(lines, "pay#3").update(output="2"), ["changed entry"]),
    "null for a null": (lambda lines: entry(lines, "pay#0").update(output=None), ["changed entry"]),
    "a microsecond": (lambda lines: entry(lines, "pay#3").update(at=entry(lines, "pay#2")["at"]), ["changed entry"]),
    "output and hash": (rehash, ["changed entry"]),
    "two hashes": (swap_hashes, ["changed entry"]),
    "an entry removed": (lambda lines: lines.remove(entry(lines, "pay#3")), ["incomplete file", "removed entry"]),
    "an entry doubled": (lambda lines: lines.insert(3, lines[2]), ["added entry", "incomplete file"]),
    "a seal removed": (lambda lines: lines.pop(-3), ["added entry", "broken seal", "incomplete file"]),
    "a seal's time": (lambda lines: lines[-2].update(sealed_at=lines[-3]["sealed_at"]), ["broken seal"]),
    "a seal's count": (lambda lines: lines[-2].update(entries=4), ["broken seal", "removed entry"]),
    "cut short": (lambda lines: lines.pop(), ["incomplete file"]),
    "another file": (lambda lines: lines.pop(0), ["not an export"]),
    "a broken line": (lambda lines: entry(lines, "pay#3").pop("hash"), ["incomplete file", "removed entry", "unreadable line"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_export_is_found(drive: Drive, task: Task, tmp_path: Path, edit: str) -> None:
    """Whatever is changed in the file shows without the database."""
    changed, problems = EDITS[edit]
    assert change(export(drive, tmp_path / "ledger.jsonl"), changed) == problems


def test_an_earlier_export_catches_an_owner_who_makes_everything_anew(drive: Drive, task: Task, tmp_path: Path) -> None:
    """An owner who changes an entry, its hash and all seals leaves an export that is right in itself, but not that of before."""
    earlier = export(drive, tmp_path / "earlier.jsonl")
    drive.engine.complete(task)
    drive.seal()
    later = export(drive, tmp_path / "later.jsonl")
    assert verify_export(later, earlier=earlier) == []
    drive.db.sql("update onceflow.step_ledger set output = '2' where step_key = 'pay#3'")
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l)")
    drive.db.sql("delete from onceflow.ledger_seal")
    drive.db.sql("select onceflow.seal_ledger(0, 100, 3)")
    forged = export(drive, tmp_path / "forged.jsonl")
    assert verify_export(forged) == []
    assert {finding.problem for finding in verify_export(forged, earlier=earlier)} == {"changed seal"}


@pytest.mark.parametrize(
    ("forgery", "problem"),
    [
        ("delete from onceflow.step_ledger where step_key = 'pay#late'", "missing entry"),
        ("update onceflow.step_ledger set output = '2' where step_key = 'pay#late'", "changed entry"),
    ],
)
def test_an_earlier_export_catches_what_was_forged_before_it_was_sealed(drive: Drive, task: Task, tmp_path: Path, forgery: str, problem: str) -> None:
    """An entry that had no seal yet when it was exported cannot be changed or left out either."""
    drive.engine.call(calls.complete_step(*task.owner, "pay#late", "pay", "external", 1, "1", "h", "1", 1))
    earlier = export(drive, tmp_path / "earlier.jsonl")
    drive.db.sql(forgery)
    drive.db.sql("update onceflow.step_ledger l set hash = onceflow.entry_hash(l)")
    drive.seal()
    forged = export(drive, tmp_path / "forged.jsonl")
    assert verify_export(forged) == []
    assert [finding.problem for finding in verify_export(forged, earlier=earlier)] == [problem]


def test_an_archived_month_is_exported(drive: Drive, task: Task, tmp_path: Path) -> None:
    """Archived entries stand in the export as before."""
    drive.db.sql("select onceflow.make_archive()")
    gone = "with gone as (delete from onceflow.step_ledger where step_key = 'pay#3' returning *)"
    drive.db.sql(f"{gone} insert into onceflow_archive.step_ledger select * from gone")
    assert verify_export(export(drive, tmp_path / "ledger.jsonl")) == []
