"""The SQL files: in which order they run, and how a text is cut into statements."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.db.sql_files import SqlFile, find_files, line_of, sort_by_after, split_statements
from onceflow.errors import MigrationError


def statements(text: str) -> list[str]:
    return [statement for _, statement in split_statements(text)]


@pytest.mark.parametrize(
    "whole",
    [
        "select 'a;b', \"c;d\", e'it''s;' ;",
        "do $$ begin perform 1; end; $$;",
        "create function f() returns int language plpgsql as $body$ begin return $1; $$;$$ end $body$;",
        "select 1 /* ; /* nested; */ still; */ + 1;",
        "select 1 -- ; not here\n + 1;",
        "create function f() returns int begin atomic select case when true then 1 else 2 end; select 2; end;",
        "create procedure p() BEGIN  ATOMIC insert into t values (1); END;",
        "select a$b, $1;",
        "select 1",
    ],
)
def test_a_statement_is_never_cut_inside(whole: str) -> None:
    """Semicolons in strings, names, comments, dollar quotes and atomic bodies do not end a statement."""
    assert statements(whole + "\nselect 2;") == ([whole, "select 2;"] if whole.endswith(";") else [whole + "\nselect 2;"])


def test_offsets_point_to_the_first_word() -> None:
    """A statement's offset is behind the comments before it, so its line is the one a reader would name."""
    text = "-- one\n/* two\n*/\n\nselect 1;\n-- three\n\n  select 2;\n-- the end\n;\n"
    assert [(line_of(text, offset), statement) for offset, statement in split_statements(text)] == [
        (5, "select 1;"),
        (8, "select 2;"),
    ]


def test_every_shipped_file_is_cut_whole() -> None:
    """Put together again, the statements of each shipped file are the file, and no statement is empty."""
    files = find_files()
    for file in (files.roles, *files.migrations, *files.functions):
        for offset, statement in split_statements(file.text):
            assert file.text[offset : offset + len(statement)] == statement
            assert statement.rstrip().endswith(";"), file.path
            assert statement.count("$$") % 2 == 0, file.path


def make(name: str, header: str = "") -> SqlFile:
    return SqlFile(Path(f"sql/{name}.sql"), header)


def test_after_orders_files() -> None:
    """Files run in alphabetical order, but each after those that its header names, over any number of lines."""
    files = [
        make("b"),
        make("a", "-- Moves: nothing\n-- After: c, d\n-- After: b\n"),
        make("d"),
        make("c", "-- After: e"),
        make("e"),
    ]
    assert [file.name for file in sort_by_after(files)] == ["b", "d", "e", "c", "a"]


def test_impossible_orders_are_errors() -> None:
    """A circle is named link by link; a header that names no file names itself."""
    with pytest.raises(MigrationError, match=r"circle: .*a"):
        sort_by_after([make("a", "-- After: b"), make("b", "-- After: a")])
    with pytest.raises(MigrationError, match=r"a\.sql: '-- After: nothing' names no file"):
        sort_by_after([make("a", "-- After: nothing")])


@pytest.mark.parametrize(
    ("names", "said"),
    [(["1_x.sql"], "NNNN_name.sql"), (["0001_a.sql", "0001_b.sql"], "0001 is used twice: 0001_a, 0001_b")],
)
def test_bad_names_of_migrations_are_errors(tmp_path: Path, names: list[str], said: str) -> None:
    """A migration without a number of four digits, and a number used twice, are refused by name."""
    for folder in ("migrations", "sql"):
        (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / "migrations" / name).write_text("select 1;")
    with pytest.raises(MigrationError, match=said):
        find_files(tmp_path)
