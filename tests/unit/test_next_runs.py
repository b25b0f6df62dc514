"""`onceflow dags next-runs`: which runs a cron text makes, without a database."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from itertools import groupby
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from typer.main import get_command

from onceflow.cli.app import app

COMMAND = get_command(app)  # made once: it takes longer than what is tested
GOLDEN = Path(__file__).parents[1] / "cases" / "cron_golden.csv"


def next_runs(*args: object) -> Result:
    result = CliRunner().invoke(COMMAND, ["dags", "next-runs", *map(str, args)], env={"ONCEFLOW_DSN": None})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_every_row_of_the_golden_file_holds() -> None:
    """Read off a running Airflow 3: each series of the file is what the command prints."""
    count = 0
    with GOLDEN.open() as file:
        for (kind, cron, zone, start), group in groupby(csv.DictReader(file), key=lambda row: tuple(row.values())[:4]):
            rows = list(group)
            said = json.loads(next_runs("--timetable", kind, "--cron", cron, "--timezone", zone, "--start", start, "--count", len(rows), "--json").stdout)
            names = ("logical_date", "interval_start", "interval_end", "run_after")
            expected = [[datetime.fromisoformat(row[f"{name}_utc"] if f"{name}_utc" in row else row[name]) for name in names] for row in rows]
            assert [[datetime.fromisoformat(run[name]) for name in names] for run in said] == expected, (kind, cron, zone, start)
            count += len(rows)
    assert count == 8064


def test_people_get_a_table() -> None:
    """Without --json there is a line for each run; by default for intervals, in UTC."""
    lines = next_runs("--cron", "0 6 * * *", "--start", "2026-01-01T07:00:00+01:00", "--count", 2).stdout.splitlines()
    assert len(lines) == 3 and lines[0].split("  ")[0] == "logical date"
    assert lines[1].startswith("2026-01-01 06:00:00") and "2026-01-02 06:00:00" in lines[1]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cron", "0 25 * * *"], "the hour field cannot be '25'"),
        (["--cron", "0 0 30 2 *"], "never matches"),
        (["--cron", "@daily", "--timezone", "Berlin"], "did you mean 'Europe/Berlin'"),
        (["--cron", "@daily", "--start", "soon"], "--start 'soon' is no moment"),
        (["--cron", "@daily", "--start", "0001-01-01T00:00:00+14:00"], "outside of the calendar"),
        (["--cron", "@daily", "--timetable", "weekly"], "write one of interval, trigger"),
        (["--cron", "@daily", "--count", "0"], "--count"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(args: list[str], says: str) -> None:
    """A wrong option is named with its remedy."""
    result = next_runs(*([] if "--start" in args else ["--start", "2026-01-01"]), *args)
    assert result.exit_code == 2 and says in result.stderr and "Traceback" not in result.stderr


def test_the_end_of_the_calendar_is_an_empty_list() -> None:
    """Where no run follows, JSON is an empty list."""
    assert json.loads(next_runs("--cron", "@daily", "--start", "9999-12-31", "--json").stdout) == []
