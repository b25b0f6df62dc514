"""Writes sql/README.md from the headers of sql/*.sql: `python -m tests.sql.draw_states`."""

from __future__ import annotations

from collections import defaultdict

from tests.sql.headers import FOLDER, RUN_STATES, TASK_STATES, Arrow, Header, read_headers

PAGE = FOLDER / "README.md"
INTRO = """\
# The state machine

Written by `python -m tests.sql.draw_states` from the headers of the files in this folder; do not edit. The headers are the one
statement of the rule: a test puts a task into every state and tries every function on it (tests/sql/test_moves.py).

Each file holds one function or view, with what it needs and nobody else calls. `migrate` applies a file again when its text has changed.
"""
TASKS = """
## A task

`running` means that a lease exists, `queued` that a row lies in `ready`, `scheduled`, `up_for_retry` and `up_for_reschedule` that one lies in
`timer`, `deferred` that a body waits outside of every worker, or a task of a dag for its `trigger`, `no_status` that a task of a dag waits for others of its run. What has ended is in none of these tables.
"""
RUNS = """
## A run

`running` means that something of it was claimed. `needs_code` is the named stop: its body was recorded by another version of the code.
"""
FUNCTIONS = """
## Every function

| function | moves | locks | raises | called by |
|---|---|---|---|---|
"""


def draw(states: tuple[str, ...], arrows: dict[Arrow, list[str]]) -> str:
    """A mermaid state diagram; each arrow names the functions that make it."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, after in sorted(arrows, key=lambda a: (states.index(a[0]), states.index(a[1]))):
        start, end = ("[*]" if before == "none" else before), after
        lines.append(f"    {start} --> {end}: {', '.join(arrows[before, after])}")
    used = {after for _, after in arrows}
    lines += [f"    {state} --> [*]" for state in states if state in used and state in ("success", "failed", "skipped", "upstream_failed", "cancelled")]
    return "\n".join([*lines, "```\n"])


def collect(headers: list[Header], of_run: bool) -> dict[Arrow, list[str]]:
    """Which functions make which arrow; an arrow from a state to itself is none."""
    found: dict[Arrow, list[str]] = defaultdict(list)
    for header in headers:
        for before, after in sorted(header.run_arrows if of_run else header.task_arrows):
            if before != after:
                found[before, after].append(header.name)
    return found


def row(header: Header) -> str:
    """One line of the table."""
    moves = header.lines.get("Moves", "")
    if "Run" in header.lines:
        moves += f"; the run: {header.lines['Run']}"
    raises = header.lines.get("Raises", "")
    if header.is_race:
        raises += f"; {header.lines['Races']}"
    cells = (f"[{header.name}]({header.file})", moves, header.lines.get("Locks", ""), raises, header.lines.get("Called by", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def make_page() -> str:
    """The text of sql/README.md."""
    headers = sorted((h for h in read_headers().values() if "Moves" in h.lines), key=lambda h: h.name)
    tasks = draw(TASK_STATES, collect(headers, of_run=False))
    runs = draw(RUN_STATES, collect(headers, of_run=True))
    return INTRO + TASKS + tasks + RUNS + runs + FUNCTIONS + "\n".join(row(h) for h in headers) + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
