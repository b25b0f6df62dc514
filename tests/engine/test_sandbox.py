"""What keeps a parser process off its parent where the system allows less than ours does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARENT = """
import subprocess, sys
from onceflow.engine.sandbox import hide_process
if {hides}:
    assert hide_process()
print(subprocess.run([sys.executable, "-c", {child!r}], env={{}} | {{"PYTHONPATH": {path!r}}}, capture_output=True, text=True, check=True).stdout)
"""
CHILD = """
import os
from onceflow.engine import sandbox
allowed = sandbox._call
sandbox._call = lambda name, *arguments: name != "unshare" and allowed(name, *arguments)  # as Docker's default profile does
held = sandbox.enter_sandbox(network=False)
def reads(name):
    try:
        return b"canary" in open(f"/proc/{os.getppid()}/{name}", "rb").read(100_000)
    except OSError:
        return False
print(held, reads("environ"))
"""


def look(hides: bool) -> str:
    source = PARENT.format(hides=hides, child=CHILD, path=str(Path(__file__).parents[2] / "src"))
    env = {**os.environ, "SECRET": "canary"}
    return subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
def test_without_namespaces_the_parent_hides_itself() -> None:
    """Dropped privileges and a parent that cannot be dumped keep its environment from a child of the same user, root too."""
    assert look(hides=True) == "['privileges'] False"
