"""A dag's plan for people: its tasks as a tree, or as a Mermaid graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from onceflow.cli.output import Column, print_rows

if TYPE_CHECKING:
    from onceflow.db.dag_file_queries import VersionRow

VERSION_COLUMNS: list[Column] = [
    ("version", "number"),
    ("new runs", lambda v: "yes" if v.is_current else ""),
    ("living runs", "living"),
    ("tasks", lambda v: len(v.plan["tasks"])),
    ("since", "created_at"),
    ("code version", "code_version"),
]


def draw_tree(plan: dict[str, Any]) -> Iterator[str]:
    """A line for each task, below what it waits for; a task that waits for several stands below the last of these.

    >>> plan = {"tasks": [{"ix": 0, "task_id": "a", "upstream": [], "downstream": [1, 2]}, {"ix": 1, "task_id": "b", "upstream": [0], "downstream": [2]},
    ...     {"ix": 2, "task_id": "c", "upstream": [0, 1], "downstream": []}]}
    >>> print("\\n".join(draw_tree(plan)))
    a
    └── b
        └── c  (also after a)
    """
    tasks = {task["ix"]: task for task in plan["tasks"]}
    below: dict[int, list[int]] = {ix: [] for ix in tasks}
    for ix, task in tasks.items():
        if task["upstream"]:
            below[max(task["upstream"])].append(ix)
    roots = [ix for ix, task in tasks.items() if not task["upstream"]]
    for root in roots:
        yield _label(tasks, root)
        yield from _draw_below(tasks, below, root, "")


def _draw_below(tasks: dict[int, Any], below: dict[int, list[int]], above: int, indent: str) -> Iterator[str]:
    # A chain may be longer than Python's stack is deep.
    open_: list[tuple[int, str, bool]] = [(ix, indent, ix == below[above][-1]) for ix in reversed(below[above])]
    while open_:
        ix, indent, is_last = open_.pop()
        yield f"{indent}{'└── ' if is_last else '├── '}{_label(tasks, ix)}"
        deeper = indent + ("    " if is_last else "│   ")
        open_ += [(child, deeper, child == below[ix][-1]) for child in reversed(below[ix])]


def _label(tasks: dict[int, Any], ix: int) -> str:
    task = tasks[ix]
    others = [tasks[above]["task_id"] for above in sorted(task["upstream"])[:-1]]
    notes = ["mapped"] if "mapping" in task else []
    notes += [rule] if (rule := task.get("trigger_rule", "all_success")) != "all_success" else []
    notes += [name for name in ("setup", "teardown") if task.get(f"is_{name}")]
    notes += [f"also after {', '.join(others)}"] if others else []
    return str(task["task_id"]) + (f"  ({'; '.join(notes)})" if notes else "")


def draw_mermaid(plan: dict[str, Any]) -> Iterator[str]:
    """The lines of a Mermaid flowchart: paste it into Markdown, or into mermaid.live. Task groups are subgraphs, edge labels stand beside arrows."""
    yield "flowchart LR"
    members: dict[str | None, list[dict[str, Any]]] = {}
    for task in plan["tasks"]:
        members.setdefault(task.get("group"), []).append(task)
    yield from _draw_group(None, plan.get("groups", []), members, "    ")
    labels = {(above, below): text for above, below, text in plan.get("labels", [])}
    for task in plan["tasks"]:
        for below in task["downstream"]:
            text = labels.get((task["ix"], below))
            yield f"    t{task['ix']} -->{f'|{_quote(text)}|' if text else ''} t{below}"


def _draw_group(group: str | None, groups: list[dict[str, Any]], members: dict[str | None, list[dict[str, Any]]], indent: str) -> Iterator[str]:
    for task in members.get(group, []):
        left, right = ("[[", "]]") if "mapping" in task else ("{{", "}}") if task.get("decides") else ("[", "]")
        yield f"{indent}t{task['ix']}{left}{_quote(task['task_id'])}{right}"
    for number, inner in enumerate(groups):
        if inner["parent"] == group:
            yield f"{indent}subgraph g{number} [{_quote(inner['group_id'])}]"
            yield from _draw_group(inner["group_id"], groups, members, indent + "    ")
            yield f"{indent}end"


def _quote(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'


def print_plan(versions: list[VersionRow]) -> None:
    """A dag's tasks in their order, and its versions."""
    current = next((row for row in versions if row.is_current), None)
    if current is not None:
        typer.echo("\ntasks")
        for line in draw_tree(current.plan):
            typer.echo(line)
    if versions:
        typer.echo("\nversions")
        print_rows(versions, VERSION_COLUMNS, False)
