"""Trigger rules, against the tables of right answers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.database import TestDatabase

CASES = Path(__file__).parents[1] / "cases"
STATES = {"S": "success", "F": "failed", "K": "skipped", "U": "upstream_failed", "R": "removed"}
ANSWERS = {"run": "run", "SKIP": "skip", "UF": "upstream_failed", "-": "wait"}
UNFINISHED = ("no_status", "scheduled", "queued", "running", "up_for_retry", "up_for_reschedule", "deferred", "restarting", None)


def read_cases() -> list[tuple[str, str, str]]:
    """(upstreams, rule, answer) of both tables."""
    rows = [row for file in sorted(CASES.glob("trigger_rules_*.csv")) for row in csv.DictReader(file.open())]
    return [(row["upstreams"], rule, ANSWERS[answer]) for row in rows for rule, answer in row.items() if rule != "upstreams"]


@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_every_rule_answers_as_the_tables_say(db: TestDatabase, unfinished: str | None) -> None:
    """Every row of both tables, in either order of the upstreams, with any unfinished state for the dot."""
    cases = read_cases()
    assert len(cases) == 12 * (21 + 7)
    wrong = []
    for letters, rule, answer in cases:
        for order in {letters, letters[::-1]}:
            states = [STATES.get(letter, unfinished) for letter in order]
            found = db.sql("select onceflow.decide_trigger_rule(%s, %s::text[])", rule, states)[0][0]
            if found != answer:
                wrong.append((order, rule, answer, found))
    assert wrong == []


def test_an_unknown_rule_is_refused_by_name(db: TestDatabase) -> None:
    """A rule that does not exist is an error, not a decision."""
    with pytest.raises(Exception, match="there is no trigger rule all_sucess"):
        db.sql("select onceflow.decide_trigger_rule('all_sucess', '{success}')")
