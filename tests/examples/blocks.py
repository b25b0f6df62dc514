"""The code blocks of a Markdown page, and what the page says of each.

In the block's first line, as the reader must know it too:
# transfer.py                  the block is that file of the page's folder, or goes on with it
-- as app                      whose login the SQL runs under (auditor, if nothing is said)

In an HTML comment above it:
<!-- excerpt: path -->         lines of that file of the checkout, in order; `...` stands for what is left out of them
<!-- skip: reason -->          not run, and why
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("python", "sql", "console")
KNOWN = (*RUN, "text", "mermaid")
DIRECTIVES = ("excerpt", "skip")
_FIRST_LINES = {"python": ("file", re.compile(r"# (\w+\.py)$")), "sql": ("as", re.compile(r"-- as (\w+)$"))}
_COMMENT = re.compile(r"<!--\s*(\w+):\s*(.*?)\s*-->")
_FENCE = re.compile(r"(`{3,})(\w*)\s*$")


class PageFault(Exception):
    """The page is not written in a way that can be run."""


@dataclass
class Block:
    """One fenced block. `line` is where its text begins; `prints` is the text block below it, its expected output."""

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)
    prints: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Every block of the page, in order; a text block is kept with the block it is the output of.

    Raises PageFault for what would go untested unnoticed: an unknown language or directive, a skip without a reason, a
    directive above nothing, a text that no block prints.
    """
    found: list[Block] = []
    for block in _read_fences(page):
        if block.language not in KNOWN:
            raise PageFault(f"{block}: language {block.language!r}; known are {', '.join(KNOWN)}")
        for name, value in block.directives.items():
            if name not in DIRECTIVES or not value:
                raise PageFault(f"{block}: <!-- {name}: {value} --> is no directive, or says nothing; known are {', '.join(DIRECTIVES)}")
        block.directives |= _read_first_line(block)
        if block.language == "text" and not block.directives:
            if not found or found[-1].language not in RUN or found[-1].prints is not None or "skip" in found[-1].directives:
                raise PageFault(f"{block}: a text block is the output of the block above it, and there is none that is run")
            found[-1].prints = block.text
        else:
            found.append(block)
    return found


def _read_first_line(block: Block) -> dict[str, str]:
    name, pattern = _FIRST_LINES.get(block.language, ("", re.compile("(?!)")))
    found = pattern.match(block.text.partition("\n")[0])
    return {name: found[1]} if found else {}


def _read_fences(page: Path) -> Iterator[Block]:
    directives: dict[str, str] = {}
    lines = enumerate(page.read_text().splitlines(), start=1)
    for number, line in lines:
        if comment := _COMMENT.match(line):
            directives[comment[1]] = comment[2]
        elif fence := _FENCE.match(line):
            text: list[str] = []
            for _, inside in lines:
                if inside.rstrip() == fence[1]:
                    break
                text.append(inside)
            else:
                raise PageFault(f"{page.name}:{number}: the block never ends")
            yield Block(page, number + 1, fence[2], "\n".join(text) + "\n", directives)
            directives = {}
        elif line.strip() and directives:
            raise PageFault(f"{page.name}:{number}: {directives} stands above no block")
        elif re.search(r"^\s+```", line):
            raise PageFault(f"{page.name}:{number}: an indented block; begin it at the line's start")
    if directives:
        raise PageFault(f"{page.name}: {directives} at the end stands above no block")


def matches(expected: str, printed: str) -> bool:
    """Whether the output is as expected; `...` stands for anything, space at line ends and around the whole does not count."""
    pattern = ".*".join(re.escape(part) for part in _trim(expected).split("..."))
    return re.fullmatch(pattern, _trim(printed), re.DOTALL) is not None


def is_excerpt(text: str, source: str) -> bool:
    """Whether the lines of the text stand in the source in this order, apart from indentation.

    A line `...` leaves lines out; `...` within a line leaves out a part of it.
    """
    lines = iter([line.strip() for line in source.splitlines()])
    wanted = [line.strip() for line in text.splitlines() if line.strip() not in ("", "...")]
    return all(any(matches(line, found) for found in lines) for line in wanted)


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
