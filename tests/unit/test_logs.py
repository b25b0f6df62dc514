"""Log lines: one for each event, in either form, without secrets."""

from __future__ import annotations

import errno
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.codec import decode
from onceflow.logs import mask_secrets, setup_logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The root logger as it was: pytest's own capture hangs on it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def log_lines(log_format: str, level: str = "info") -> io.StringIO:
    """Log one of each kind, and return what was written."""
    out = io.StringIO()
    setup_logging(log_format, level, out)  # type: ignore[arg-type]
    own = logging.getLogger("onceflow.task")
    own.info("task ended", extra={"task": "pay/run 1/debit", "state": "success", "try": 1, "again": False})
    own.debug("unseen")
    logging.getLogger("theirs").warning("two\nlines from postgresql://me:hidden@db/x")
    try:
        raise ValueError("password=hidden\nand more")
    except ValueError as error:
        own.error("task left unfinished", exc_info=error, extra={"api_key": "hidden"})
    return out


def test_text_is_one_line_for_each_event() -> None:
    """A text line is time, level, event and fields; what has blanks is quoted; an exception is on the same line with its origin."""
    lines = log_lines("text").getvalue().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r'\d\d:\d\d:\d\d\.\d{3} INFO    task ended  task="pay/run 1/debit" state=success try=1 again=false', lines[0])
    assert lines[1].endswith(r"WARNING two\nlines from postgresql://me:***@db/x  logger=theirs")
    assert 'error="ValueError: password=***' in lines[2] and "test_logs.py:" in lines[2]


def test_json_is_one_object_for_each_event() -> None:
    """A JSON line has the same fields with their types, and the whole traceback."""
    ended, theirs, unfinished = (json.loads(line) for line in log_lines("json").getvalue().splitlines())
    assert (ended["event"], ended["level"], ended["try"], ended["again"], ended["logger"]) == ("task ended", "info", 1, False, "onceflow.task")
    assert ended["at"].endswith("+00:00")
    assert theirs["event"] == "two\nlines from postgresql://me:***@db/x"
    assert unfinished["error"] == "ValueError" and "log_lines" in unfinished["traceback"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_form_shows_a_secret(log_format: str) -> None:
    """What is a secret by its place (a URL's password, a field's name, password=) appears in no line."""
    assert "hidden" not in log_lines(log_format, "debug").getvalue()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("to postgresql://me:a:b@c@db:5432/x?sslpassword=q1 now", "to postgresql://me:***@db:5432/x?sslpassword=*** now"),
        ("host=db password='a \\' b' user=me", "host=db password=*** user=me"),
        ('{"db_password": "a\\"b", "user": "me"}', '{"db_password": ***, "user": "me"}'),
        ("api-key: abc, secret=def;", "api-key: ***, secret=***;"),
        ("a passwordless login, and 7 tokens", "a passwordless login, and 7 tokens"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
    ],
)
def test_masking(text: str, masked: str) -> None:
    """Secrets become *** and nothing else changes."""
    assert mask_secrets(text) == masked


def test_an_error_of_the_users_is_told_by_lines_of_theirs(tmp_path: Path) -> None:
    """Where an exception went through the user's code, no line of ours or of a library is named; else all are."""
    out = io.StringIO()
    setup_logging("text", "info", out)
    (tmp_path / "theirs.py").write_text("def count(text):\n    return int(text)\n\ndef parse(text):\n    import json\n    return json.loads(text)\n")
    code: dict[str, Any] = {}
    exec(compile((tmp_path / "theirs.py").read_text(), tmp_path / "theirs.py", "exec"), code)
    for work in (lambda: code["parse"]("no"), lambda: decode("{")):
        try:
            work()
        except Exception as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next  # without this file
            logging.getLogger("onceflow.task").warning("task ended", exc_info=error)
    theirs, ours = out.getvalue().splitlines()
    assert theirs.endswith('at="theirs.py:6 parse"') and "JSONDecodeError" in theirs
    assert ' decode"' in ours


def test_nobody_reads_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for a stream that is closed, or a terminal that has gone away, is lost without a word: a process that ends prints no traceback."""
    closed, gone = io.StringIO(), io.TextIOWrapper(GoneTerminal(), line_buffering=True)
    closed.close()
    for stream in (closed, gone):
        setup_logging("text", "info", stream)
        logging.getLogger("onceflow.worker").info("worker ended")
    assert capsys.readouterr().err == ""


def test_a_line_that_cannot_be_formatted_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with a call of the log is a defect, and shown as such."""
    setup_logging("text", "info", io.StringIO())
    logging.getLogger("theirs").info("%d", "no number")
    assert "TypeError" in capsys.readouterr().err


class GoneTerminal(io.RawIOBase):
    """What is written to a terminal after it was closed ends so."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        pass
