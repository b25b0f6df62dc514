"""Stored values that no task refers to, since the try that wrote them was lost before its commit."""

from __future__ import annotations

from itertools import islice

from onceflow.db.upkeep import find_orphans
from onceflow.engine.stored_values import XComBackend

BATCH = 500


def delete_orphans(dsn: str, backend: XComBackend, older_than_s: float) -> int:
    """Deletes those that were written that long ago, and answers how many. A try must not last longer than that."""
    count = 0
    found = iter(backend.list_old(older_than_s))
    while references := list(islice(found, BATCH)):
        for orphan in find_orphans(dsn, references):
            backend.delete(orphan)
            count += 1
    return count
