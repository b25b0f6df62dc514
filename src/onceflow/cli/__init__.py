"""The command line: one file per command group. `failures` says how commands fail."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point `onceflow`. A defect of Onceflow's own has its traceback and its own exit code, so that no script takes it for an answer."""
    from onceflow.cli.app import app
    from onceflow.cli.failures import DEFECT

    try:
        app(prog_name="onceflow")
    except Exception:
        import traceback

        traceback.print_exc()
        sys.exit(DEFECT)
