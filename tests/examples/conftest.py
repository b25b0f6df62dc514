"""What the tests of pages and programs share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.db.embedded import stop_server


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder in which a program may make a bundled server; both are gone afterwards.

    Not tmp_path: run by root the server has an account of its own, and each new session of pytest locks others out of its folders.
    """
    folder = Path(tempfile.mkdtemp(prefix="onceflow-page-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    for data in [found.parent for found in folder.glob("**/pgdata")]:
        stop_server(data, "immediate")
    shutil.rmtree(folder, ignore_errors=True)
