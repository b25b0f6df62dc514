"""Large values of dags in a folder, or in object storage by its URL (s3://…, gs://…, with fsspec)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from onceflow.errors import NotFound, SettingsError


class FolderBackend:
    """A folder that all workers share. A value is there as a whole or not at all: it is written aside, synced and renamed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()

    def write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        return name

    def read(self, reference: str) -> bytes:
        try:
            return self._path(reference).read_bytes()
        except OSError as error:
            raise NotFound(f"the stored value {reference} cannot be read in {self.folder}: {error.strerror}. Do all workers have this folder?") from error

    def delete(self, reference: str) -> None:
        self._path(reference).unlink(missing_ok=True)

    def list_old(self, older_than_s: float) -> Iterator[str]:
        """The references of values written that long ago."""
        before = time.time() - older_than_s
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_mtime < before:
                yield path.relative_to(self.folder).as_posix()

    def _path(self, reference: str) -> Path:
        path = (self.folder / reference).resolve()
        if not path.is_relative_to(self.folder):
            raise NotFound(f"the stored value {reference} lies outside of {self.folder}")
        return path


class ObjectBackend:
    """A bucket, or a part of one, through fsspec (pip install 'onceflow[object]' and the package of the store, such as s3fs)."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError as error:
            raise SettingsError(f"xcom_backend {url!r} needs fsspec: pip install 'onceflow[object]', and the package of the store, such as s3fs") from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SettingsError(f"xcom_backend {url!r} cannot be opened: {error}") from error

    def write(self, name: str, data: bytes) -> str:
        self._files.pipe_file(f"{self._root}/{name}", data)
        return name

    def read(self, reference: str) -> bytes:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{reference}"))
        except FileNotFoundError as error:
            raise NotFound(f"the stored value {reference} is not in {self._root}") from error

    def delete(self, reference: str) -> None:
        try:
            self._files.rm_file(f"{self._root}/{reference}")
        except FileNotFoundError:
            pass

    def list_old(self, older_than_s: float) -> Iterator[str]:
        before = time.time() - older_than_s
        found: dict[str, Any] = self._files.find(self._root, detail=True)
        for path in found:
            if self._files.modified(path).timestamp() < before:
                yield path.removeprefix(self._root).lstrip("/")


def open_url(url: str) -> FolderBackend | ObjectBackend:
    """The backend for a path, a file:// URL or the URL of a store."""
    if "://" not in url:
        return FolderBackend(url)
    parts = urlsplit(url)
    return FolderBackend(unquote(parts.path)) if parts.scheme == "file" else ObjectBackend(url)
