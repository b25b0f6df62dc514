"""A picture of the newest recorded figures, as plain SVG: our ratios to the ceiling, and how many times as fast as each peer. Readable on light and dark pages."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from bench.record import HISTORY

WIDTH, LABEL, BAR, LINE = 760, 230, 400, 26
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .note { font-size: 11px; fill: #59636e }
  .ours { fill: #0969da } .theirs { fill: #8c959f } .ground { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 } .ours { fill: #4493f8 } .theirs { fill: #656c76 } .ground { fill: #0d1117 }
  }"""
RATIOS = ("transactional", "transactional_grouped", "external", "sql", "sql_grouped")
SEQUENCES = (("40 light tasks in sequence", "dag_40_light", "_40_light"), ("10 long tasks in sequence", "dag_10_long", "_10_long"))
Bar = tuple[str, float, str, bool]
"""Label, value, the value as text, is it ours?"""


def draw_history(history: Path = HISTORY) -> str:
    """The SVG of the newest figure of each row in the history; a peer beside ours of the same run, for ratios of two runs say nothing."""
    results = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    ours = newest(results, lambda result: any(name in result["rows"] for name in RATIOS[2:]))
    jobs = newest(results, lambda result: any(peer.get("unit") == "jobs/s" for peer in result.get("peers", {}).values()))
    panels: list[tuple[str, str, list[Bar]]] = []
    if ours:
        bars = [(name, row["ratio"], f"{row['ratio']:.2f}", True) for name in RATIOS if (row := ours["rows"].get(name))]
        panels.append(("Steps per second, as a part of pgbench's INSERT+COMMIT at 16 clients (1 = the ceiling)", describe(ours), bars))
    if jobs:
        panels.append(("One INSERT per job: ours with effect and record in one transaction; the same server and run", describe(jobs), list_jobs(jobs)))
    for title, own, ending in SEQUENCES:
        if found := newest(
            results, lambda result, own=own, ending=ending: own in result["rows"] and any(name.endswith(ending) for name in result.get("peers", {}))
        ):
            panels.append((f"{title}, seconds (less is better)", describe(found), list_sequence(found, own, ending)))
    return draw(panels)


def newest(results: list[dict[str, Any]], fits: Any) -> dict[str, Any] | None:
    return next((result for result in reversed(results) if fits(result)), None)


def describe(result: dict[str, Any]) -> str:
    return f"{result['at'][:10]}, {result['commit']}; {result['machine'].split(', Linux')[0]}, everything on it; load {result['load'][0][0]:g}; ceiling {result['ceiling_tps']:,.0f}/s"


def list_jobs(result: dict[str, Any]) -> list[Bar]:
    bars: list[Bar] = [(f"Onceflow, {name}", row["ratio"], f"{row['value']:,.0f}/s", True) for name in RATIOS[:2] if (row := result["rows"].get(name))]
    return bars + [(name, peer["ratio"], f"{peer['value']:,.0f}/s", False) for name, peer in result["peers"].items() if peer.get("unit") == "jobs/s"]


def list_sequence(result: dict[str, Any], own: str, ending: str) -> list[Bar]:
    bars: list[Bar] = [("Onceflow", result["rows"][own]["value"], f"{result['rows'][own]['value']:,.2f} s", True)]
    for name, peer in result["peers"].items():
        if name.endswith(ending) and "value" in peer:
            bars.append((name.removesuffix(ending), peer["value"], f"{peer['value']:,.2f} s", False))
    return bars


def draw(panels: list[tuple[str, str, list[Bar]]]) -> str:
    parts, y = [], 10
    for title, note, bars in panels:
        parts.append(f'<text class="title" x="16" y="{y + 18}">{escape(title)}</text>')
        y += 28
        longest = max((value for _, value, _, _ in bars), default=1.0)
        for label, value, text, is_ours in bars:
            length = max(1.0, BAR * value / longest)
            parts.append(f'<text x="{LABEL - 8}" y="{y + 17}" text-anchor="end">{escape(label)}</text>')
            parts.append(f'<rect class="{"ours" if is_ours else "theirs"}" x="{LABEL}" y="{y + 4}" width="{length:.1f}" height="{LINE - 8}" rx="2"/>')
            parts.append(f'<text x="{LABEL + length + 8:.1f}" y="{y + 17}">{escape(text)}</text>')
            y += LINE
        parts.append(f'<text class="note" x="16" y="{y + 14}">{escape(note)}</text>')
        y += 34
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" aria-label="Benchmarks of Onceflow">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", f'<rect class="ground" width="{WIDTH}" height="{y}" rx="6"/>', *parts, "</svg>"]) + "\n"
