"""One dag for each trigger rule: every pair of upstream states side by side. What depends on `gate` is not done until the gate opens."""

from __future__ import annotations

import csv
import time
from itertools import count
from pathlib import Path

from onceflow import DAG, SkipTask, task

CASES = Path(__file__).parents[2] / "cases" / "trigger_rules_2.csv"
ROWS = list(csv.DictReader(CASES.open()))
RULES = [name for name in ROWS[0] if name != "upstreams"]
LETTERS = {"S": "success", "F": "failed", "K": "skipped", "U": "upstream_failed", "R": "removed", ".": "pending"}


@task
def succeed() -> None:
    return None


@task
def fail() -> None:
    raise ValueError("no")


@task
def skip() -> None:
    raise SkipTask("not today")


@task
def gate(file: str = "/nowhere") -> None:
    for _ in count():
        if Path(file).exists():
            return
        time.sleep(0.02)


def describe(rule: str) -> DAG:
    """Two tasks for each state, and for each pair of them a task under the rule, named by the pair."""
    with DAG(f"rule_{rule}", schedule=None) as dag:
        held, failed = gate.override(task_id="gate")("{{ params.gate }}"), fail.override(task_id="failed_above")()
        made = {"success": succeed, "failed": fail, "skipped": skip, "upstream_failed": succeed, "removed": succeed, "pending": succeed}
        above = {}
        for letter, state in LETTERS.items():
            above[letter] = [made[state].override(task_id=f"{state}_{number}")() for number in (1, 2)]
        failed >> above["U"]
        held >> above["R"] + above["."]
        for row in ROWS:
            first, second = row["upstreams"]
            target = succeed.override(task_id=f"on_{row['upstreams'].replace('.', '_')}", trigger_rule=rule)()
            [above[first][0], above[second][1]] >> target
    return dag


DAGS = [describe(rule) for rule in RULES]
