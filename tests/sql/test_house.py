"""Habits of the SQL files that a machine can check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.db.sql_files import split_statements
from onceflow.errors import SQLSTATES
from tests.database import TestDatabase
from tests.sql.draw_states import PAGE, make_page
from tests.sql.headers import FOLDER, LINES, RUN_STATES, TASK_STATES, read_headers

ROOT = FOLDER.parent
FILES = sorted(FOLDER.glob("*.sql"))
# Where the real moment is what counts, whatever a test has done to onceflow.now(): the times of entries, seals and tracked writes, and the
# ids that partitions go by.
REAL_CLOCK = {"now", "new_id", "make_partitions", "write_entry", "seal_ledger", "seal_lag", "track"} | {
    "complete_step",
    "complete_task",
    "complete_tasks",
    "complete_instances",
    "complete_sql_steps",
    "run_sql_steps",
    "fail_step",
    "fail_task",
    "skip_task",
    "start_step",
    "start_task",
    "defer_to_trigger",
}


def strip_comments(text: str) -> str:
    """The text without `--` comments, so that prose is no code."""
    return re.sub(r"--[^\n]*", "", text)


def strip_strings(text: str) -> str:
    """Code without comments and string literals."""
    return re.sub(r"'(?:[^']|'')*'", "''", strip_comments(text))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_file_says_what_it_does(path: Path) -> None:
    """A file begins with its header, whose lines stand in one order, for the function that gives the file its name."""
    name = path.stem.removeprefix("view_")
    header = read_headers()[name]
    assert header.file == path.name
    assert [label for label in header.lines if label in LINES] == list(LINES)
    assert all(header.lines[label] for label in LINES)


def test_headers_know_no_other_states() -> None:
    """Every arrow leads between states of the vocabulary, and every SQLSTATE raised has a class in errors.py."""
    for header in read_headers().values():
        assert {s for arrow in header.task_arrows for s in arrow} <= set(TASK_STATES), header.name
        assert {s for arrow in header.run_arrows for s in arrow} <= set(RUN_STATES), header.name
        assert header.sqlstates <= set(SQLSTATES), header.name
    raised = {state for path in FILES for state in re.findall(r"raise_error\('(OF\d{3})'", path.read_text())}
    assert raised <= set(SQLSTATES)


def test_the_diagram_is_up_to_date() -> None:
    """sql/README.md is what the headers say now; else run `python -m tests.sql.draw_states`."""
    assert PAGE.read_text(encoding="utf-8") == make_page()


def test_states_are_set_in_sql_only() -> None:
    """No state column is written outside of sql/: Python proposes, SQL disposes."""
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("migrations/*.sql")]:
        assert not re.search(r"\bset\s+state\b", path.read_text(encoding="utf-8"), re.IGNORECASE), path


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_there_is_one_clock(path: Path) -> None:
    """Nothing but onceflow.now() tells the time, except where the real moment is what counts."""
    code = strip_strings(path.read_text(encoding="utf-8")).lower()
    assert not re.search(r"\bcurrent_timestamp\b|\blocaltimestamp\b|\bcurrent_date\b|\b(?:transaction|statement)_timestamp\b", code)
    assert not re.search(r"(?<!onceflow\.)\bnow\(\)", code)
    assert "clock_timestamp" not in code or path.stem in REAL_CLOCK


def split_bodies(text: str) -> Iterator[tuple[str, str]]:
    """Each `create function` statement's text, with its name."""
    for _, statement in split_statements(text):
        if made := re.search(r"create or replace function onceflow\.(\w+)", statement):
            yield made.group(1), statement[made.start() :]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_volatile_clock_stands_in_no_where(path: Path) -> None:
    """onceflow.now() is read into a variable: in a WHERE a volatile call forces a sequential scan."""
    for name, body in split_bodies(strip_comments(path.read_text(encoding="utf-8"))):
        assert not re.search(r"\bwhere\b(?:(?!\bloop\b)[^;])*onceflow\.now\(\)", body, re.DOTALL), name


def test_definers_set_their_search_path(db: TestDatabase) -> None:
    """Every security definer function looks names up in pg_catalog, then pg_temp, and nowhere else."""
    rows = db.sql("select proname, proconfig from pg_proc where pronamespace = 'onceflow'::regnamespace and prosecdef")
    assert len(rows) > 20
    assert [name for name, config in rows if "search_path=pg_catalog, pg_temp" not in (config or [])] == []


def test_nobody_may_call_what_is_not_granted(db: TestDatabase) -> None:
    """No function is executable by PUBLIC, except the few that tell nothing and change nothing."""
    rows = db.sql("select proname from pg_proc where pronamespace = 'onceflow'::regnamespace and has_function_privilege('public', oid, 'execute') order by 1")
    assert {name for (name,) in rows} <= {
        "now",
        "id_at",
        "id_time",
        "raise_error",
        "decide_trigger_rule",
        "who_wrote",
        "row_xid",
        "read_row",
        "find_parent_xid",
        "list_writers",
    }, rows


def test_our_names_carry_their_schema(db: TestDatabase) -> None:
    """No table, view or function of ours is named without its schema: a temporary one of the same name would be taken instead."""
    tables = db.sql("select relname from pg_class where relnamespace = 'onceflow'::regnamespace and relkind in ('r', 'p', 'v', 'S')")
    functions = db.sql("select distinct proname from pg_proc where pronamespace = 'onceflow'::regnamespace")
    named = re.compile(rf"\b(?:from|join|into|update|table|only|using)\s+({'|'.join(sorted(r[0] for r in tables))})\b(?!\s*\.)")
    called = re.compile(rf"(?<![.\w])({'|'.join(sorted(r[0] for r in functions if r[0] != 'now'))})\(")
    for path in FILES:
        code = strip_strings(path.read_text(encoding="utf-8"))
        for found in named.finditer(code):
            assert is_own_alias(code, found), f"{path.name}: …{code[max(0, found.start() - 60) : found.end() + 40]}"
        bare = called.search(code)
        assert bare is None, f"{path.name}: …{code[max(0, bare.start() - 60) : bare.end() + 20]}"


def is_own_alias(code: str, found: re.Match[str]) -> bool:
    """Is the name that of a common table expression or a variable of the same function?"""
    name = found.group(1)
    before = code[: found.start()]
    return bool(re.search(rf"\b{name}\s*(?:\([^)]*\))?\s+as\s*(?:materialized\s*)?\(", before) or re.search(rf"\binto\s+{name}\b", found.group(0)))
