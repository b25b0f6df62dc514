"""Refuse SQL that would end a step's transaction or change its role.

The guard reads a text as PostgreSQL's own lexer does, with standard_conforming_strings on, so it finds a COMMIT in any
spelling and is not fooled by literals, comments or function bodies. It protects from mistakes, with an error that
names the command, before anything is sent; what it cannot see (a driver's low-level face, SQL built inside the server)
is caught at completion, which raises when the step's own transaction is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from onceflow.errors import StepSplit

CACHED_TEXT_LIMIT = 10_000
_LEADING_WORDS = 6

# Every byte from 0x80 on belongs to an identifier in PostgreSQL, whatever Unicode says of the character.
_START = r"A-Za-z_\x80-\U0010ffff"
_WORD = rf"[{_START}][{_START}0-9$]*"
_GAP = r"(?:[ \t\f\v]|--[^\n\r]*+)*+[\n\r](?:\s|--[^\n\r]*+[\n\r])*+"  # joins two pieces of one literal
_ESCAPED = r"'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'"

_PLAIN = re.compile(
    r"\s*(?:select|insert|update|delete|with|merge|values|copy|lock|call|refresh|truncate|savepoint|release)\b"
    r"[^;]*(?:;\s*)?\Z",
    re.IGNORECASE,
)
_SUSPECT = re.compile(
    r"\b(?:commit|end|rollback|abort|begin|transaction|role|authorization|session_authorization|characteristics"
    r"|discard|reset|prepare|deallocate|listen|load|close)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    rf"""
      [eE]{_ESCAPED}(?:{_GAP}{_ESCAPED})*+
    | '[^']*+(?:''[^']*+)*+'
    | --[^\n\r]*
    | (?P<comment>/\*)
    | (?P<quoted>"[^"]*+(?:""[^"]*+)*+")
    | (?P<dollar>\$(?:[{_START}][{_START}0-9]*)?\$)
    | (?P<word>{_WORD})
    | (?P<mark>[;()])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_UNICODE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_ROUTINE = re.compile(r"create (?:or replace )?(?:function|procedure) ")
# Matched against the first words of a statement, in lower case, each followed by one space; a quoted name keeps its ".
_ENDS = re.compile(
    r"commit (?:prepared )?|end |abort |begin |start transaction |prepare transaction |rollback prepared "
    r"|rollback (?!(?:work |transaction )?to )|set session characteristics |discard all |close all "
)
_CHANGES = re.compile(r'(?:set|reset) (?:local |session )?(?:"?role |session authorization |"?session_authorization )|reset all ')
_SPOILS = re.compile(r"(?:prepare|deallocate|listen|load) ")


def check_statement(sql: str) -> None:
    """Raise StepSplit, naming the command, if one of the statements in `sql` may not run inside a step.

    Refused: COMMIT, END, ROLLBACK (not ROLLBACK TO), ABORT, BEGIN, START TRANSACTION, PREPARE TRANSACTION,
    COMMIT/ROLLBACK PREPARED, SET SESSION CHARACTERISTICS, DISCARD ALL, CLOSE ALL; SET/RESET of ROLE or SESSION AUTHORIZATION and
    RESET ALL. Savepoints pass. A text that PostgreSQL itself could not parse may pass: it will not run.

    >>> check_statement("select 1 as commit")
    >>> check_statement("select 1; /* done */ COMMIT")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    onceflow.errors.StepSplit: COMMIT is refused in a step ...
    """
    refused = _inspect(sql)[0]
    if refused:
        raise StepSplit(_message(refused, sql))


def spoils_session(sql: str) -> bool:
    """Does `sql` leave something in the session that the next step's opening cannot undo in time (PREPARE, DEALLOCATE, LISTEN, LOAD)?

    A connection that ran such a text must not serve another step.
    """
    return _inspect(sql)[1]


def _inspect(sql: str) -> tuple[str | None, bool]:
    """The refused command, if there is one, and whether the text spoils the session."""
    return _inspect_cached(sql) if len(sql) <= CACHED_TEXT_LIMIT else _inspect_text(sql)


def _inspect_text(sql: str) -> tuple[str | None, bool]:
    if _PLAIN.match(sql) or not _SUSPECT.search(sql):
        return None, False
    readings = [sql]
    if not sql.isascii():
        # PostgreSQL takes a no-break space for a letter; whoever typed one meant a space.
        readings.append(_UNICODE_SPACE.sub(" ", sql))
    spoils = False
    for reading in readings:
        for words in _read_statements(reading):
            start = "".join(f"{word} " for word in words)
            found = _ENDS.match(start) or _CHANGES.match(start)
            if found:
                return found.group().strip().replace('"', "").upper(), spoils
            spoils = spoils or bool(_SPOILS.match(start))
    return None, spoils


_inspect_cached = lru_cache(maxsize=1024)(_inspect_text)


def _read_statements(sql: str) -> Iterator[list[str]]:
    """The first words of every statement at top level; a BEGIN ATOMIC body belongs to the statement it stands in."""
    words: list[str] = []
    depth = 0
    in_body = at_start = False  # inside BEGIN ATOMIC ... END; before the first word of a statement there
    previous = ""
    for token in _read_tokens(sql):
        if token == ";":
            if in_body:
                at_start = True
            elif depth <= 0:
                yield words
                words, depth = [], 0
        elif token in "()":
            depth += 1 if token == "(" else -1
            at_start = False
        elif in_body:
            # END closes the body only where a statement could begin; elsewhere it ends a CASE or is a label.
            in_body = not (at_start and token == "end")
            at_start = False
        else:
            if token == "atomic" and previous == "begin" and depth == 0 and _makes_routine(words):
                in_body = at_start = True
            if len(words) < _LEADING_WORDS:
                words.append(token)
        previous = token
    yield words


def _makes_routine(words: list[str]) -> bool:
    return bool(_ROUTINE.match("".join(f"{word} " for word in words)))


def _read_tokens(sql: str) -> Iterator[str]:
    """Words in lower case, quoted names with their leading quote, and `;()`; literals and comments are skipped."""
    position = 0
    while found := _TOKEN.search(sql, position):
        position = found.end()
        kind = found.lastgroup
        text = found.group()
        if kind == "word":
            yield text.lower()
        elif kind == "mark":
            yield text
        elif kind == "quoted":
            yield text[:-1].lower()
        elif kind == "dollar":
            end = sql.find(text, position)
            position = position if end < 0 else end + len(text)
        elif kind == "comment":
            position = _skip_comment(sql, position)


def _skip_comment(sql: str, position: int) -> int:
    """The position after a comment that was opened before `position`; comments nest."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(sql, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return position


def _message(refused: str, sql: str) -> str:
    text = " ".join(sql.split())
    where = text if len(text) <= 80 else f"{text[:77]}..."
    if _CHANGES.match(f"{refused.lower()} "):
        return (
            f"{refused} is refused in a step ({where!r}): the step's record is written with the connection's own role "
            "and settings. Give the role the rights it needs, or set single settings with SET LOCAL."
        )
    return (
        f"{refused} is refused in a step ({where!r}): the engine commits the step's writes together with its record. "
        "Remove it; for a part that may fail and be undone, use a savepoint."
    )
