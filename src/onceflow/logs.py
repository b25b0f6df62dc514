"""One line for each event of a process: for people (`text`) or machines (`json`). No secrets, no payloads.

The engine logs a fixed text and fields (`log.info("task ended", extra={"task": …})`), so a line reads the same in both forms:
`12:00:01.123 INFO  task ended  task=pay/run-1/debit state=success try=1 ms=12`. Of an error its message is told too, as the ledger keeps it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import sysconfig
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from onceflow.settings import mask_dsn

LogFormat = Literal["text", "json"]
OWN = "onceflow"
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}
_URL = re.compile(r"[a-zA-Z][\w+.-]*://[^\s'\"<>]+")
_SECRET_NAME = r"[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key)"
_SECRET = re.compile(rf"""(?P<name>["']?\b{_SECRET_NAME}["']?\s*[=:]\s*)(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)}}\]]+)""", re.IGNORECASE)
_NOT_THE_USERS = re.compile("|".join(re.escape(path) for path in (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "site-packages")))
_PLAIN = re.compile(r"[^\s\"'=]+")


def setup_logging(log_format: LogFormat = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """From now on the whole process logs to the stream (stderr), in that form, from that level on. Replaces handlers that were there."""
    handler = Lines(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def mask_secrets(text: str) -> str:
    """The text with the passwords of URLs, and what stands behind password=, secret:, api_key= and the like, as ***.

    >>> mask_secrets("cannot reach postgresql://me:hidden@db/x with password='a b'")
    "cannot reach postgresql://me:***@db/x with password=***"
    """
    return _SECRET.sub(lambda found: found["name"] + "***", _URL.sub(lambda found: mask_dsn(found.group()), text))


class Lines(logging.StreamHandler[TextIO]):
    """Writes to a stream, for as long as somebody reads it: a process whose terminal or pipe is gone works on, and says nothing of that."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.stream.closed and not isinstance(sys.exception(), OSError):
            super().handleError(record)


class TextLines(logging.Formatter):
    """Local time, level, event, fields as name=value. An exception is its type, its message and where it came from, on the same line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created)
        fields = _fields(record)
        if (error := _error(record)) is not None:
            fields |= {"error": f"{type(error).__name__}: {error}", "at": _trace(error)}
        shown = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        line = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {record.levelname:<7} {record.getMessage()}{' ' if shown else ''}{shown}"
        return mask_secrets(line.replace("\r", "\\r").replace("\n", "\\n"))


class JsonLines(logging.Formatter):
    """One object: at (UTC), level, event, logger, the fields; of an exception its type, message and whole traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if (error := _error(record)) is not None:
            line |= {"error": type(error).__name__, "error_message": str(error), "traceback": "".join(traceback.format_exception(error))}
        return json.dumps({name: _masked(value) for name, value in line.items()}, ensure_ascii=False, default=_shown)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: "***" if re.fullmatch(_SECRET_NAME, name, re.IGNORECASE) else value for name, value in vars(record).items() if name not in _STANDARD}
    if record.name.split(".")[0] != OWN:
        fields["logger"] = record.name
    return fields


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _trace(error: BaseException) -> str:
    """Where an exception was raised: innermost frame first, on one line. Of one that went through the user's code, that code's frames only."""
    every = list(traceback.extract_tb(error.__traceback__))
    frames = ([frame for frame in every if not _NOT_THE_USERS.search(frame.filename)] or every)[-8:]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def _quoted(value: Any) -> str:
    # Masked before it is quoted: a quote inside would end the secret too early.
    text = mask_secrets(_shown(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _masked(value: Any) -> Any:
    return mask_secrets(value) if isinstance(value, str) else value
