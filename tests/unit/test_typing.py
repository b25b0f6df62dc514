"""Type checkers see steps without their connection, and starts with the workflow's own signature."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "typing_sample.py"


def read_expected() -> tuple[dict[int, str], dict[int, str]]:
    """By line: the types that the sample's comments promise, and the errors."""
    lines = SAMPLE.read_text().splitlines()
    revealed = {n: line.partition(")  # ")[2] for n, line in enumerate(lines, 1) if "reveal_type(" in line}
    errors = {n: line.partition("# error: ")[2] for n, line in enumerate(lines, 1) if "# error: " in line}
    return revealed, errors


def test_mypy_strict_understands_a_users_file() -> None:
    """Every revealed type and every error of the sample is as its comments say; there is no other error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-codes", str(SAMPLE)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert not said.stderr, said.stderr
    types, errors = read_expected()
    found_types: dict[int, str] = {}
    found_errors: dict[int, str] = {}
    for number, kind, message in re.findall(r"typing_sample\.py:(\d+): (error|note): (.*)", said.stdout):
        if kind == "error":
            found_errors[int(number)] = found_errors.get(int(number), "") + message
        elif message.startswith("Revealed type is "):
            found_types[int(number)] = message.removeprefix("Revealed type is ").strip('"').replace("decimal.", "").replace("builtins.", "")
    assert found_types == types
    assert found_errors.keys() == errors.keys(), said.stdout
    assert {n: text for n, text in errors.items() if text not in found_errors[n]} == {}, said.stdout
