"""A run's result as a table for people, and where it is kept: RESULTS.md to read, results.jsonl to compute with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.targets import describe_target

RESULTS = Path(__file__).with_name("RESULTS.md")
HISTORY = Path(__file__).with_name("results.jsonl")
Result = dict[str, Any]


def describe_machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def read_commit() -> str:
    """The commit, and whether there is more than that in the tree."""
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=9"], capture_output=True, text=True, cwd=RESULTS.parent)
    return found.stdout.strip() or "unknown"


def read_load() -> list[float]:
    return [round(value, 1) for value in os.getloadavg()]


def list_lines(result: Result) -> list[tuple[str, str, str, str]]:
    """Name, value with its unit, ratio, target: of our rows and then of the peers'."""
    lines = [
        (name, f"{row['value']:,g} {row['unit']}", "" if row["ratio"] is None else f"{row['ratio']:.3f}", describe_target(name, row))
        for name, row in result["rows"].items()
    ]
    for name, peer in result.get("peers", {}).items():
        if absent := peer.get("absent"):
            lines.append((name, "not measured", "", absent))
        else:
            faster = "" if peer["ours_to_theirs"] is None else f"Onceflow is {peer['ours_to_theirs']:g} times as fast"
            lines.append((name, f"{peer['value']:,g} {peer['unit']}", "" if peer["ratio"] is None else f"{peer['ratio']:.3f}", faster))
    return lines


def show(result: Result) -> None:
    table = Table(title=f"Onceflow {result['commit']}: ceiling {result['ceiling_tps']} INSERT+COMMIT/s on {result['machine']}")
    for column in ("row", "value", "ratio to the ceiling", "target"):
        table.add_column(column)
    for line in list_lines(result):
        table.add_row(*line)
    Console().print(table)


def keep(result: Result, results: Path = RESULTS, history: Path = HISTORY) -> None:
    """Adds the run to the history: the newest section comes first, the JSON last."""
    with history.open("a") as file:
        file.write(json.dumps(result) + "\n")
    head, *sections = results.read_text().split("\n## ")
    lines = "\n".join(f"| {' | '.join(line)} |" for line in list_lines(result))
    at = datetime.fromisoformat(result["at"]).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    section = (
        f"{at}, {result['commit']}: `{result['command']}`\n{result['machine']}, PostgreSQL {result['postgres']}; load before and after: "
        f"{result['load'][0][0]:g} and {result['load'][1][0]:g}. Ceiling: {result['ceiling_tps']:,g} INSERT+COMMIT/s "
        f"(before {result['ceilings'][0]:,g}, after {result['ceilings'][1]:,g}).\n\n| row | value | ratio | target |\n|---|---|---|---|\n{lines}\n"
    )
    results.write_text("\n## ".join([head, section, *sections]))
