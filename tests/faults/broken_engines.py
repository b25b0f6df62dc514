"""Deliberately broken engines: patches that are applied to a copy of the engine, never to the tree."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).with_name("mutants")
COPIED = ("sql", "migrations", "src")


@dataclass
class Mutant:
    """A broken engine. After `apply`, `root` holds its sql/ and migrations/, and `env` makes a worker run its code."""

    name: str
    root: Path = ROOT

    @property
    def patch(self) -> Path:
        return PATCHES / f"{self.name}.patch"

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.root / "src")}

    def apply(self, folder: Path) -> Mutant:
        """The same mutant, made in that folder; AssertionError when the patch fits the engine no longer."""
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(["patch", "--strip=1", "--fuzz=0", "--input", self.patch], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{self.patch.name} does not fit the engine any more; make it anew:\n{done.stdout}{done.stderr}"
        return Mutant(self.name, folder)


def find_mutants() -> list[Mutant]:
    """All of them, by name."""
    return [Mutant(path.stem) for path in sorted(PATCHES.glob("*.patch"))]
