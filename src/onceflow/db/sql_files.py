"""The SQL files of this release: where they lie, in which order they run, and which line failed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from onceflow.errors import MigrationError

ROLES_NAME = "0000_roles"

_TOKEN = re.compile(
    r"""--[^\n]* | /\* | '(?:[^']|'')*' | "(?:[^"]|"")*" | \$(?P<tag>(?:[^\W\d]\w*)?)\$ | [^\W\d][\w$]* | ;""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file as read from disk. `name` is the file name without .sql; the checksum is over its exact text."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> int:
        return int(self.name.split("_")[0])

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def after(self) -> tuple[str, ...]:
        """The names in the file's header `-- After: name, name`."""
        names = re.findall(r"^--\s*After:(.*)$", self.text, re.MULTILINE)
        return tuple(name.strip() for line in names for name in line.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class SqlFiles:
    """All SQL of a release, in the order in which it runs."""

    roles: SqlFile
    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...]

    @property
    def version(self) -> int:
        """The schema version of this release: the highest number of a migration, 0 if there is none."""
        return max((file.number for file in self.migrations), default=0)


def find_files(root: Path | None = None) -> SqlFiles:
    """The SQL files of this installation, or those under `root` (folders migrations/ and sql/).

    Raises MigrationError for a missing folder, a bad name, a number used twice, and an impossible `After:`.
    """
    migrations_dir, sql_dir = find_folders(root)
    every = [SqlFile(path, path.read_text(encoding="utf-8")) for path in sorted(migrations_dir.glob("*.sql"))]
    _check_names(every, migrations_dir)
    roles = next((file for file in every if file.name == ROLES_NAME), None)
    if roles is None:
        packaged = find_folders(None)[0] / f"{ROLES_NAME}.sql"
        roles = SqlFile(packaged, packaged.read_text(encoding="utf-8"))
    functions = [SqlFile(path, path.read_text(encoding="utf-8")) for path in sorted(sql_dir.glob("*.sql"))]
    return SqlFiles(roles, tuple(file for file in every if file.name != ROLES_NAME), sort_by_after(functions))


def sort_by_after(files: list[SqlFile]) -> tuple[SqlFile, ...]:
    """The files in alphabetical order, except that each comes after those named in its `-- After:` header."""
    by_name = {file.name: file for file in sorted(files, key=lambda file: file.name)}
    for file in files:
        if unknown := [name for name in file.after if name not in by_name]:
            raise MigrationError(f"{file.path}: '-- After: {unknown[0]}' names no file in {file.path.parent}.")
    sorter = TopologicalSorter({name: by_name[name].after for name in by_name})
    try:
        sorter.prepare()
    except CycleError as error:
        raise MigrationError(f"The '-- After:' headers run in a circle: {' -> '.join(error.args[1])}.") from None
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return tuple(by_name[name] for name in order)


def split_statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement of an SQL text, with the offset it starts at.

    Strings, quoted names, comments, dollar quotes and `begin atomic … end` bodies are not cut.
    """
    start, position, depth, words = 0, 0, 0, 0
    while found := _TOKEN.search(text, position):
        token, position = found.group(), found.end()
        if token == "/*":
            position = _comment_end(text, position)
        elif found.group("tag") is not None:
            closing = text.find(token, position)
            position = len(text) if closing < 0 else closing + len(token)
        elif token == ";" and depth == 0:
            yield from _statement(text, start, position)
            start = position
        elif token[0].isalpha():
            words += 1
            depth = _body_depth(token.lower(), text, position, depth)
    yield from _statement(text, start, len(text))


def line_of(text: str, offset: int) -> int:
    """The line, counted from 1, on which the character at `offset` stands."""
    return text.count("\n", 0, offset) + 1


def _body_depth(word: str, text: str, position: int, depth: int) -> int:
    if word == "begin" and re.match(r"\s+atomic\b", text[position : position + 80], re.IGNORECASE):
        return depth + 1
    if depth and word == "case":
        return depth + 1
    return depth - 1 if depth and word == "end" else depth


def _comment_end(text: str, position: int) -> int:
    # Postgres lets block comments nest, so the first */ need not be the end.
    depth = 1
    for found in re.finditer(r"/\*|\*/", text[position:]):
        depth += 1 if found.group() == "/*" else -1
        if depth == 0:
            return position + found.end()
    return len(text)


def _statement(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    # Leading blanks and comments are skipped, so the offset points to the line a reader would call the statement's.
    lead = re.match(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", text[start:end], re.DOTALL)
    start += lead.end() if lead else 0
    if text[start:end].strip(" \t\r\n;"):
        yield start, text[start:end]


def find_folders(root: Path | None = None) -> tuple[Path, Path]:
    """The folders of migrations and of functions: those of the wheel, or of the checkout, or under `root`."""
    if root is not None:
        return root / "migrations", root / "sql"
    package = Path(__file__).resolve().parents[1]
    if (package / "_sql").is_dir():
        return package / "_migrations", package / "_sql"
    checkout = package.parents[1]
    if not (checkout / "sql").is_dir():
        raise MigrationError(f"The SQL files are missing from {package}: the installation is broken, install it again.")
    return checkout / "migrations", checkout / "sql"


def _check_names(migrations: list[SqlFile], folder: Path) -> None:
    seen: dict[int, str] = {}
    for file in migrations:
        if not re.fullmatch(r"\d{4}_\w+", file.name):
            raise MigrationError(f"{file.path}: a migration is named NNNN_name.sql, as 0001_core.sql.")
        if file.number in seen:
            raise MigrationError(f"{folder}: number {file.number:04} is used twice: {seen[file.number]}, {file.name}.")
        seen[file.number] = file.name
