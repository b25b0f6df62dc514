"""The files of a dags folder: which there are, and what has changed in them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from onceflow.errors import SettingsError

IGNORE_NAME = ".onceflowignore"
Signature = tuple[int, int, int]  # mtime in ns, size, inode
T = TypeVar("T")


def open_root(path: str | Path) -> Path:
    """The folder (or one file) of --dags, as an absolute path; a symbolic link stays one, so that what a checkout tool points it to is followed."""
    try:
        root = Path(os.path.abspath(path))
        if root.is_dir() or (root.is_file() and root.suffix == ".py"):
            return root
    except (OSError, ValueError) as error:
        raise SettingsError(f"--dags {path}: it cannot be read ({error}). Name the folder of your workflows.") from None
    raise SettingsError(f"--dags {path}: there is no such folder or .py file. Name the folder of your workflows.")


def folder_of(root: Path) -> Path:
    """What goes on sys.path, so that the files may import each other."""
    return root if root.is_dir() else root.parent


def name_module(folder: Path, file: Path) -> str:
    """Under what name a file is imported: its stem; in a subfolder `subfolder.stem`, as others import it."""
    return ".".join(file.relative_to(folder).with_suffix("").parts)


@dataclass(frozen=True, slots=True)
class Listing:
    """The .py files at one moment. `dags` are those to be read for dags; `modules` are all, also those that are only imported (_name.py)."""

    dags: dict[str, Signature]
    modules: dict[str, Signature]


def list_files(root: Path) -> Listing:
    """Looks at a folder and its subfolders. Left out: what begins with . or _, virtual environments, what .onceflowignore names, and files in
    subfolders that do not import onceflow. Raises SettingsError if it cannot be read."""
    try:
        if root.is_file():
            beside = _Walk(root.parent, ())
            beside.read(root.parent, deep=False)
            return Listing({str(root): _sign(root.stat())}, beside.modules)
        walk = _Walk(root, read_ignored(root))
        walk.read(root)
    except OSError as error:
        raise SettingsError(f"--dags {root}: it cannot be read ({error}). Name the folder of your workflows.") from None
    return Listing(dict(sorted(walk.dags.items())), walk.modules)


def read_ignored(folder: Path) -> tuple[str, ...]:
    """The patterns of .onceflowignore: one a line, as in .gitignore; # begins a comment, ! takes back."""
    try:
        lines = (folder / IGNORE_NAME).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def is_ignored(relative: str, patterns: tuple[str, ...], *, is_folder: bool = False) -> bool:
    """Does the last pattern that fits leave it out? A pattern without a slash fits a name at any depth, one with a slash a path from the folder on.

    >>> is_ignored("team/test_load.py", ("test_*", "!test_load.py")), is_ignored("team/old.py", ("team/*.py",))
    (False, True)
    """
    found = False
    for pattern in patterns:
        wanted, plain = not pattern.startswith("!"), pattern.lstrip("!")
        if plain.endswith("/") and not is_folder:
            continue
        plain = plain.rstrip("/")
        fits = fnmatchcase(relative, plain.lstrip("/")) if "/" in plain else fnmatchcase(relative.rsplit("/", 1)[-1], plain)
        found = wanted if fits else found
    return found


@dataclass
class _Walk:
    root: Path
    ignored: tuple[str, ...]
    dags: dict[str, Signature] = field(default_factory=dict)
    modules: dict[str, Signature] = field(default_factory=dict)

    def read(self, folder: Path | str, prefix: str = "", deep: bool = True) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py"):
                    self._add(entry, prefix + name, is_top=not prefix)
                elif deep and self._is_entered(entry, prefix + name):
                    self.read(entry.path, f"{prefix}{name}/")

    def _is_entered(self, entry: os.DirEntry[str], relative: str) -> bool:
        if entry.name[0] in "._" or not entry.is_dir() or is_ignored(relative, self.ignored, is_folder=True):
            return False
        if entry.is_symlink() and str(self.root).startswith(os.path.realpath(entry.path)):
            return False  # it would never end
        return not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))

    def _add(self, entry: os.DirEntry[str], relative: str, *, is_top: bool) -> None:
        try:
            signature = _sign(entry.stat())
        except FileNotFoundError:
            return  # removed just now, or a link that leads nowhere
        self.modules[entry.path] = signature
        if entry.name[0] not in "._" and not is_ignored(relative, self.ignored) and (is_top or mentions_us(entry.path, signature)):
            self.dags[entry.path] = signature


_mentions: dict[tuple[str, Signature], bool] = {}


def mentions_us(path: str, signature: Signature) -> bool:
    """May a file of a subfolder declare dags? Helpers and other programs do not speak of onceflow."""
    known = _mentions.get((path, signature))
    if known is None:
        try:
            known = _mentions[path, signature] = b"onceflow" in Path(path).read_bytes()
        except OSError:
            return True  # it says itself what is wrong, when it is read
    return known


def _sign(found: os.stat_result) -> Signature:
    return found.st_mtime_ns, found.st_size, found.st_ino


def time_look(look: Callable[[], T]) -> tuple[T, float]:
    """What the look finds, and for how many seconds to rest after it: so it takes a tenth of a core at most, and half of the time where the disk is slow.

    How long it took by the clock on a wall says little on a machine that is busy with other things: edits would be seen late when it is.
    """
    began, cpu = time.monotonic(), time.thread_time()
    found = look()
    return found, max(9 * (time.thread_time() - cpu), time.monotonic() - began)


def sign_file(path: str) -> Signature | None:
    """None: it is not there."""
    try:
        return _sign(os.stat(path))
    except OSError:
        return None


def digest_file(path: str) -> str:
    """A digest of its content; of what cannot be read, ''."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


@dataclass
class Contents:
    """What is in files, read anew only where a file's signature is another than last time."""

    _known: dict[str, tuple[Signature | None, str]] = field(default_factory=dict)

    def look(self, signatures: dict[str, Signature]) -> set[str]:
        """Notes these files and every other one known from before; answers those whose content is another than when it was last looked at."""
        changed = {path for path, signature in signatures.items() if self._note(path, signature)}
        return changed | {path for path in self._known.keys() - signatures.keys() if self._note(path, sign_file(path))}

    def digest(self, path: str) -> str:
        """Its content's digest, as it was when it was last looked at."""
        if path not in self._known:
            self._note(path, sign_file(path))
        return self._known[path][1]

    def digest_all(self) -> str:
        """Of all files together."""
        return hashlib.sha256("".join(f"{path}\0{digest}\0" for path, (_, digest) in sorted(self._known.items())).encode()).hexdigest()[:16]

    def _note(self, path: str, signature: Signature | None) -> bool:
        known = self._known.get(path)
        if known is not None and known[0] == signature:
            return False
        digest = "" if signature is None else digest_file(path)
        self._known[path] = signature, digest
        return known is None or known[1] != digest
