"""What a value that comes from outside must be: one check for each kind, so that the same mistake is refused in the same words everywhere.

A check answers the value to go on with, or raises `error` (InvalidArgument, or AuthoringError where something is declared): where the
value was given, what is accepted, and what came instead. Everything is refused before anything is sent or recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from onceflow.errors import InvalidArgument, OnceflowError

T = TypeVar("T")
Refusal = type[OnceflowError]

MOST_TEXT = 250  # characters: what an index of the database holds in any language
MOST_NOTE = 10_000
LONGEST_S = 100 * 365.25 * 86_400  # a moment that far ahead still has a year of four digits
MOST_INT = 2**31 - 1

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # a lone surrogate has no UTF-8
_UNKEPT = re.compile(r"[\x00\ud800-\udfff]")
_NAME = re.compile(r"[^/#:~\[\]\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,250}")
_QUEUE = re.compile(r"(?!\s)[^,\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,250}(?<!\s)")


def show(value: object) -> str:
    """A refused value as an error shows it: short, and with its type where that is the mistake.

    >>> show(7), show("x")
    ("7 (int)", "'x'")
    """
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be shown"
    shown = text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}"
    return shown if isinstance(value, str) else f"{shown} ({type(value).__name__})"


def check_text(value: object, where: str, *, most: int = MOST_TEXT, may_be_empty: bool = False, error: Refusal = InvalidArgument) -> str:
    """A key: run id, topic, event key, … On one line, so that a list or a log that shows it stays readable."""
    if not isinstance(value, str):
        raise error(f"{where} must be a text, not {show(value)}")
    least = 0 if may_be_empty else 1
    if not least <= len(value) <= most or _CONTROL.search(value):
        found = f"it has {len(value)}" if len(value) > most else f"not {show(value)}"
        raise error(f"{where} must have {least} to {most} characters, none of them a control character; {found}")
    return value


def check_note(value: object, where: str, *, error: Refusal = InvalidArgument) -> str | None:
    """Prose for the ledger, over several lines if need be: a reason, a person; None for nothing."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise error(f"{where} must be a text, not {show(value)}")
    if len(value) > MOST_NOTE or _UNKEPT.search(value):
        raise error(f"{where} must have at most {MOST_NOTE} characters, none of them NUL or a lone surrogate; it is {show(value)}")
    return value


def check_name(value: object, where: str, *, error: Refusal = InvalidArgument) -> str:
    """The name of a workflow or step. It becomes part of ledger keys (`gather#0[1]/pay#0`) and of DAG/RUN_ID, so their marks are refused."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise error(f"{where}: the name {show(value)} must have 1 to 250 characters, none of them / # : ~ [ ] or a control character")
    return value


def check_queue(value: object, where: str = "queue", *, error: Refusal = InvalidArgument) -> str:
    """The name of a queue. Lists of queues are written with commas, so it has none."""
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise error(f"{where} must be the name of a queue: 1 to 250 characters, no comma, control character or blank at either end; not {show(value)}")
    return value


def check_whole(value: object, where: str, least: int, most: int = MOST_INT, *, error: Refusal = InvalidArgument) -> int:
    """A whole number; True and 2.0 are none."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise error(f"{where} must be a whole number from {least} to {most}, not {show(value)}")
    return value


def check_seconds(value: object, where: str, *, zero: bool = False, error: Refusal = InvalidArgument) -> float:
    """A duration: seconds or a timedelta, at most a hundred years."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not (seconds >= 0 if zero else seconds > 0) or seconds > LONGEST_S:  # type: ignore[operator]
        least = "from 0" if zero else "greater than 0,"
        raise error(f"{where} must be a number of seconds or a timedelta, {least} up to 100 years; not {show(value)}")
    return float(seconds)  # type: ignore[arg-type]


def check_duration(value: object, where: str, *, zero: bool = False, error: Refusal = InvalidArgument) -> timedelta:
    """The same where only a timedelta is taken: in declarations, which say their unit."""
    if not isinstance(value, timedelta):
        raise error(f"{where} must be a timedelta, such as timedelta(seconds=5), not {show(value)}")
    check_seconds(value, where, zero=zero, error=error)
    return value


def check_flag(value: object, where: str, *, error: Refusal = InvalidArgument) -> bool:
    """True or False; not what counts as one of them."""
    if not isinstance(value, bool):
        raise error(f"{where} must be True or False, not {show(value)}")
    return value


def check_choice(value: T, where: str, choices: Sequence[T], *, error: Refusal = InvalidArgument) -> T:
    """One of a few."""
    if value not in choices:
        raise error(f"{where} must be one of {', '.join(map(repr, choices))}, not {show(value)}")
    return value


def check_moment(value: object, where: str, *, error: Refusal = InvalidArgument) -> datetime:
    """A datetime, aware; one without a zone is UTC."""
    if not isinstance(value, datetime):
        raise error(f"{where} must be a datetime, not {show(value)}")
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    try:
        moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise error(f"{where} must lie in the years 1 to 9999 (UTC), unlike {show(value)}") from None
    return moment


def check_run(run: Any, what: str) -> int:
    """The numeric id of a run, of a handle or as it is, which fits a bigint."""
    number = getattr(run, "run", run)
    if isinstance(number, str) and number.isascii() and number.isdigit():  # programs write large ids as texts
        number = int(number[:30])
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**63:
        raise InvalidArgument(f"{what}: {_shown_run(run)} is no run; pass a run's handle, or its numeric id")
    return number


def _shown_run(run: object) -> str:
    return str(run) if type(run) is int and abs(run) < 10**40 else show(run)
