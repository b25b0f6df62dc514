"""Values of dags that are too large for the database: written elsewhere before the commit, with a reference in the ledger."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.xcom_arg import XComArg
from onceflow.codec import decode, encode
from onceflow.engine.claimed import Claimed
from onceflow.errors import DecodingError, SettingsError
from onceflow.settings import Settings

MOST_BYTES = 1 << 30


class XComBackend(Protocol):
    """Where large values lie. Write your own, and name it as xcom_backend = "module:Class"; it is made without arguments, in each worker.

    `write` keeps the bytes for good before it returns and answers a reference to them; names are never used twice. `list_old` gives the references of
    what was written longer ago, so that what no committed task refers to can be deleted.
    """

    def write(self, name: str, data: bytes) -> str: ...
    def read(self, reference: str) -> bytes: ...
    def delete(self, reference: str) -> None: ...
    def list_old(self, older_than_s: float) -> Iterator[str]: ...


@dataclass(frozen=True)
class StoredValue:
    """Stands in the ledger for a value that lies elsewhere: its reference, size in bytes and SHA-256."""

    reference: str
    size: int
    sha256: str


class ValueStore:
    """Values above the threshold go to the backend, and come back from there."""

    def __init__(self, backend: XComBackend, threshold: int) -> None:
        self.backend, self.threshold = backend, threshold

    def put(self, claimed: Claimed, text: str) -> StoredValue:
        """Before the commit: what a try that fails has written is an orphan, which `onceflow db clean` deletes."""
        data = text.encode()
        name = f"{claimed.run}/{claimed.ti}/{claimed.fence}-{secrets.token_hex(8)}.json"
        return StoredValue(self.backend.write(name, data), len(data), hashlib.sha256(data).hexdigest())

    def get(self, stored: StoredValue) -> Any:
        """The value. Raises DecodingError when the bytes are not those that were written."""
        data = self.backend.read(stored.reference)
        if hashlib.sha256(data).hexdigest() != stored.sha256:
            raise DecodingError(f"the stored value {stored.reference} is not what the task wrote: its SHA-256 is another one")
        return decode(data.decode())


def load_stored(store: ValueStore | None, value: Any) -> Any:
    """What a task gave: fetched if it lies elsewhere; of a mapped task, each in its list."""
    if isinstance(value, StoredValue):
        if store is None:
            raise SettingsError(f"the value {value.reference} lies in another store: set xcom_backend here as on the worker that wrote it")
        return store.get(value)
    if isinstance(value, list) and any(isinstance(item, StoredValue) for item in value):
        return [load_stored(store, item) for item in value]
    return value


def store_large(store: ValueStore, claimed: Claimed, operator: BaseOperator, pushed: dict[str, str], value: Any) -> Any:
    """The output, and in `pushed` what is pushed, with references in place of what is large. What a task is expanded over stays: SQL reads it."""
    read_by_sql = {
        source.key for task in operator.dag.tasks.values() for _, source in task.mapping or () if isinstance(source, XComArg) and source.operator is operator
    }
    for key, text in pushed.items():
        if len(text) > store.threshold and key not in read_by_sql:
            pushed[key] = encode(store.put(claimed, text))
    if "return_value" in read_by_sql or operator.decides:
        return value
    text = encode(value, where=f"the output of task {operator.task_id}", limit=MOST_BYTES)
    return store.put(claimed, text) if len(text) > store.threshold else value


def open_store(settings: Settings) -> ValueStore | None:
    """The store that the settings name: "module:Class", a folder or a URL; None: all values stay in the database."""
    named = settings.xcom_backend
    if named is None:
        return None
    module, _, qualname = named.partition(":")
    if qualname.isidentifier() and "/" not in module:
        try:
            backend = getattr(import_module(module), qualname)()
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"xcom_backend {named!r} cannot be imported: {error}") from error
    else:
        backend = import_module("onceflow.storage.url_backend").open_url(named)  # a plug like any other
    return ValueStore(backend, settings.xcom_threshold_bytes)
