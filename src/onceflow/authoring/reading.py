"""Which file declares what: while a file is read, what it declares through a function of another file is its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

_depth = 0


@contextmanager
def reading_files() -> Iterator[None]:
    """For whoever imports dag files: inside, the file whose top level is being executed is the one that declares."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def declaring_file(otherwise: str | None) -> str | None:
    """The file that declares something just now; `otherwise` where no dag files are being read."""
    frame = inspect.currentframe() if _depth else None
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").split(".")[0] != "onceflow":
            return frame.f_code.co_filename
        frame = frame.f_back
    return otherwise
