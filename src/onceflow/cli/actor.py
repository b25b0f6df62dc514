"""Who gives a command, for the ledger."""

from __future__ import annotations

import getpass
import platform


def name_actor() -> str:
    """The person at the keyboard: that tells more than a shared login."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError, ImportError):
        return f"unknown@{platform.node()}"
