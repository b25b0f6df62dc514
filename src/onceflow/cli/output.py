"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

import typer

_SAFE_INT = 2**53  # ids are larger: JavaScript and jq would round them, so JSON has them as texts
_STYLES = {
    "success": "green",
    "done": "green",
    "alive": "green",
    "failed": "red",
    "cancelled": "red",
    "rescued": "red",
    "silent": "red",
    "needs_code": "yellow",
    "up_for_retry": "yellow",
    "running": "cyan",
    "deferred": "blue",
}
_WRAPPED = 20  # a column that wraps is not narrower than this
Column = tuple[str, str | Callable[[Any], Any]]


def to_plain(row: Any) -> Any:
    """A dataclass as a dict for JSON. Payloads inside stay as they are; our own ids become texts."""
    if is_dataclass(row) and not isinstance(row, type):
        return {field.name: to_plain(getattr(row, field.name)) for field in fields(row)}
    if isinstance(row, int) and not isinstance(row, bool) and abs(row) >= _SAFE_INT:
        return str(row)
    return row


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_as_json))


def print_rows(rows: Sequence[Any], columns: Iterable[Column], as_json: bool, *, empty: str = "nothing") -> None:
    """A table with these columns (title, and attribute or function), or all fields of the rows as a JSON list."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        typer.echo(empty, err=True)
    else:
        print_table(columns, rows)


def print_table(columns: Iterable[Column], rows: Sequence[Any], title: str | None = None) -> None:
    """In a pipe every column, never wrapped. On a terminal columns that say something, of which only the widest wraps; too narrow for that, row by row."""
    from rich.console import Console

    columns = list(columns)
    names, cells = [name for name, _ in columns], [[_cell(read(row) if callable(read) else getattr(row, read)) for _, read in columns] for row in rows]
    if not sys.stdout.isatty():
        _draw(Console(width=100_000), names, cells, None, title)
        return
    console = Console()
    said = [at for at in range(len(names)) if not cells or any(line[at].plain for line in cells)]
    names, cells = [names[at] for at in said], [[line[at] for at in said] for line in cells]
    widths = [max(len(text) for text in (name, *(line[at].plain for line in cells))) for at, name in enumerate(names)]
    widest = widths.index(max(widths))
    if sum(widths) + 2 * (len(widths) - 1) - widths[widest] + min(widths[widest], _WRAPPED) <= console.width:
        _draw(console, names, cells, widest, title)
        return
    if title:
        console.print(title)
    for line in cells:
        print_pairs({name: cell.plain for name, cell in zip(names, line, strict=True)})
        typer.echo()


def _draw(console: Any, names: list[str], cells: list[list[Any]], wraps: int | None, title: str | None) -> None:
    from rich import box
    from rich.table import Table

    drawn = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(title=title, title_justify="left", box=drawn, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0) if drawn else (0, 1))
    for at, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=at != wraps)
    for line in cells:
        table.add_row(*line)
    console.print(table)


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Names and values beneath each other; those without a value are left out."""
    shown = {name: value for name, value in pairs.items() if value not in (None, "")}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        typer.echo(f"{name:<{width}}  {show_value(value)}")


def show_value(value: Any) -> str:
    """One value as people read it: times in UTC to the millisecond, JSON on one line."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    return json.dumps(value, ensure_ascii=False, default=_as_json) if isinstance(value, dict | list) else str(value)


def read_object(text: str | None, option: str) -> dict[str, Any]:
    """The JSON object that an option was given; {} when it was not."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{text} is not JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object, not {text}", param_hint=option)
    return value


def _cell(value: Any) -> Any:
    from rich.text import Text

    text = show_value(value)
    return Text(text, style=_STYLES.get(text, ""))  # a Text: brackets in it are no markup


def _as_json(value: Any) -> Any:
    if is_dataclass(value):
        return to_plain(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
