"""Locks between processes on one machine: flock on a file that is never removed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, overload

from onceflow.errors import NoDatabase


@overload
def open_locked(path: Path, *, shared: bool = False, wait: Literal[True] = True) -> int: ...
@overload
def open_locked(path: Path, *, shared: bool = False, wait: bool) -> int | None: ...


def open_locked(path: Path, *, shared: bool = False, wait: bool = True) -> int | None:
    """An open file descriptor that holds the lock until it and all its inherited copies are closed.

    None if the lock is held by somebody else and `wait` is false.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError:
        owner = path.parent.stat().st_uid
        raise NoDatabase(f"{path.parent} belongs to user id {owner}. Run as that user, or set embedded_dir.") from None
    try:
        folder = path.parent.stat()
        if os.geteuid() == 0 and os.fstat(fd).st_uid != folder.st_uid:
            os.fchown(fd, folder.st_uid, folder.st_gid)  # root must not lock the folder's owner out
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock exclusively, waiting for it as long as it takes."""
    fd = open_locked(path)
    try:
        yield
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether anybody holds the lock. Takes it for a moment, so callers agree on another lock first."""
    fd = open_locked(path, wait=False)
    if fd is None:
        return True
    os.close(fd)
    return False
