"""Runs a page of documentation from top to bottom, as a reader would, in one folder, one shell and one database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from tests.examples.blocks import Block, is_excerpt, matches, read_blocks
from tests.examples.shell import Shell

ROOT = Path(__file__).parents[2]
KILLED = 137


class PageRun:
    """One run of one page. A block that fails, or prints something else than the page says, raises AssertionError."""

    def __init__(self, page: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.blocks = read_blocks(page)
        self.folder = folder
        self.shell = Shell(folder, environment)

    def run(self) -> None:
        try:
            for block in self.blocks:
                if "skip" not in block.directives:
                    self._run_block(block)
        finally:
            self.shell.close()

    def _run_block(self, block: Block) -> None:
        if path := block.directives.get("excerpt"):
            assert is_excerpt(block.text, (ROOT / path).read_text()), f"{block}: these lines do not stand in {path} in this order"
        elif block.language == "console":
            for command, expected in read_commands(block):
                self._run_command(block, command, expected)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "sql":
            printed = self._run_sql(block)
            assert block.prints is None or matches(block.prints, printed), _difference(block, block.prints or "", printed)

    def _run_python(self, block: Block) -> None:
        """A named block goes into its file, which must import; another one is a program of its own."""
        name = block.directives.get("file")
        path = self.folder / (name or f"line_{block.line}.py")
        with path.open("a") as file:
            file.write(block.text if path.stat().st_size == 0 else f"\n\n{block.text}")
        self._run_command(block, f"python -c 'import {path.stem}'" if name else f"python {path.name}", block.prints)

    def _run_command(self, block: Block, command: str, expected: str | None) -> None:
        printed, code = self.shell.run(command)
        assert code == 0 or (code == KILLED and "Killed" in (expected or "")), f"{block}: $ {command}\n{printed}\nexit code {code}"
        assert expected is None or matches(expected, printed), _difference(block, f"$ {command}\n{expected}", printed)

    def _run_sql(self, block: Block) -> str:
        login = block.directives.get("as", "auditor")
        with psycopg.connect(self.shell.value(f"{login.upper()}_DSN")) as conn:
            try:
                cursor = conn.execute(block.text.encode())
            except psycopg.Error as error:
                raise AssertionError(f"{block}: as {login}: {error}") from error
            while cursor.nextset():
                pass
            return show_rows([column.name for column in cursor.description], cursor.fetchall()) if cursor.description else ""


def read_commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Each `$ ` line is a command, continued after a backslash; the lines below it are what it prints (none: anything)."""
    command: str | None = None
    expected: list[str] = []
    for line in block.text.splitlines():
        if command is not None and command.endswith("\\"):
            command = f"{command[:-1]}{line.strip()}"
        elif line.startswith("$ "):
            if command is not None:
                yield command, "\n".join(expected) or None
            command, expected = line[2:], []
        else:
            assert command is not None, f"{block}: a console block begins with a command ($ ...)"
            expected.append(line)
    if command is not None:
        yield command, "\n".join(expected) or None


def show_rows(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    """Rows as psql shows them."""
    texts = [[_show_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [names, *texts]) for i in range(len(names))]
    is_number = [any(isinstance(row[i], int | float | Decimal) and not isinstance(row[i], bool) for row in rows) for i in range(len(names))]
    head = [(" " * ((width - len(name)) // 2) + name).ljust(width) for name, width in zip(names, widths, strict=True)]
    body = [[cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, is_number, strict=True)] for line in texts]
    rule = "-+-".join("-" * width for width in widths)
    return "\n".join([f" {' | '.join(head)}", f"-{rule}-", *(f" {' | '.join(line)}" for line in body), f"({len(rows)} row{'' if len(rows) == 1 else 's'})"])


def _show_cell(value: Any) -> str:
    return "" if value is None else str(value)[0].lower() if isinstance(value, bool) else str(value)


def _difference(block: Block, expected: str, printed: str) -> str:
    return f"{block} prints something else than the page says.\n--- the page\n{expected}\n--- now\n{printed}"
