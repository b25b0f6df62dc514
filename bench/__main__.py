"""`python -m bench`: see --help. Without --groups and --rows all groups but soak, which takes over a quarter of an hour."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.peer_rows import PEERS, measure_peers
from bench.picture import draw_history
from bench.place import BenchPlace, bench_place
from bench.record import describe_machine, keep, read_commit, read_load, show
from bench.rows import GROUPS, ROWS
from bench.size import QUICK, Size
from bench.step_rows import Figures

LEFT_OUT = ("soak",)
AGAINST_PEERS = ("transactional", "transactional_grouped", "dag_40_light", "dag_10_long")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers, workers and peers are ended
    parser = make_parser()
    options = parser.parse_args()
    if options.svg and not (options.rows or options.groups or options.peers):
        options.svg.write_text(draw_history())
        return
    rows = pick_names(parser, options)
    peers = pick_peers(parser, options.peers) if options.peers else []
    result = measure(rows, peers, pick_size(options))
    show(result)
    if options.record:
        keep(result)
    if options.svg:
        options.svg.write_text(draw_history())
    if options.json:
        print(json.dumps(result))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Ratios to pgbench's INSERT+COMMIT at 16 clients, measured before and after, in one run.")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="add the run to bench/RESULTS.md and bench/results.jsonl")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the newest recorded figures; alone, nothing is measured")
    parser.add_argument("--rows", help=f"names, separated by commas: {', '.join(ROWS)}")
    parser.add_argument("--groups", help=f"names, separated by commas, or all: {', '.join(GROUPS)}; default: all but {', '.join(LEFT_OUT)}")
    parser.add_argument("--peers", nargs="?", const="all", help=f"other engines beside {', '.join(AGAINST_PEERS)}: all, or names of {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, not how fast")
    parser.add_argument("--count", type=int, help=f"steps per throughput row, jobs of a peer ({Size.count})")
    parser.add_argument("--finished", type=int, help=f"finished runs for claim_over_history ({Size.finished})")
    parser.add_argument("--depth", type=int, help=f"of the queue, for queue_depth ({Size.depth})")
    parser.add_argument("--held", type=float, dest="held_s", metavar="SECONDS", help=f"of the open transaction of pinned_xmin ({Size.held_s:g})")
    parser.add_argument("--minutes", type=float, help=f"of sustained_dags ({Size.minutes:g})")
    parser.add_argument("--idle", type=int, help=f"idle workers of fleets ({Size.idle})")
    return parser


def pick_size(options: argparse.Namespace) -> Size:
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Size) if getattr(options, f.name, None) is not None}
    return dataclasses.replace(QUICK if options.quick else Size(), **given)


def pick_names(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The rows that were asked for, in the order of the table; an unknown name ends the command before anything is measured."""
    wanted = split_known(parser, "--rows", options.rows, list(ROWS))
    groups = list(GROUPS) if options.groups == "all" else split_known(parser, "--groups", options.groups, list(GROUPS))
    if not wanted and not groups:
        if options.peers:
            wanted = list(AGAINST_PEERS)
        else:
            groups = [name for name in GROUPS if name not in LEFT_OUT]
    return [name for group, rows in GROUPS.items() for name in rows if name in wanted or group in groups]


def pick_peers(parser: argparse.ArgumentParser, text: str) -> list[str]:
    return list(PEERS) if text == "all" else split_known(parser, "--peers", text, list(PEERS))


def split_known(parser: argparse.ArgumentParser, option: str, text: str | None, known: list[str]) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option}: unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def measure(rows: list[str], peers: list[str], size: Size) -> dict[str, Any]:
    """One run on one server, the ceiling before and after it."""
    load = read_load()
    result: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(["python -m bench", *sys.argv[1:]])}
    with bench_place() as place:
        before = place.ceiling(size.ceiling_s)
        figures: Figures = {}
        for name in rows:
            figures |= run_row(place, name, size)
        theirs = measure_peers(place, peers, size)
        place.renew()
        after = place.ceiling(size.ceiling_s)
        result["postgres"] = place.sql("show server_version")[0][0]
    ceiling = (before + after) / 2
    measured = {name: {"value": round(value, 3), "unit": unit, "ratio": find_ratio(value, unit, ceiling)} for name, (value, unit) in figures.items()}
    result |= {"ceiling_tps": round(ceiling, 1), "ceilings": [round(before, 1), round(after, 1)], "rows": measured}
    if theirs:
        result["peers"] = {name: compare(peer, figures, ceiling) for name, peer in theirs.items()}
    return result | {"machine": describe_machine(), "commit": read_commit(), "load": [load, read_load()], "size": dataclasses.asdict(size)}


def run_row(place: BenchPlace, name: str, size: Size) -> Figures:
    started = time.monotonic()
    place.renew()
    figures = ROWS[name](place, size)
    print(f"{name}: {', '.join(f'{key} {value:.4g} {unit}' for key, (value, unit) in figures.items())} ({time.monotonic() - started:.0f} s)", file=sys.stderr)
    return figures


def compare(peer: dict[str, Any], ours: Figures, ceiling: float) -> dict[str, Any]:
    """The peer's figure, and how many times as fast ours is, in the same run."""
    if "absent" in peer:
        return peer
    own = ours.get(peer["against"])
    faster = None if own is None else own[0] / peer["value"] if peer["unit"] == "jobs/s" else peer["value"] / own[0]
    return {
        **peer, "value": round(peer["value"], 3), "ratio": find_ratio(peer["value"], peer["unit"], ceiling),
        "ours_to_theirs": None if faster is None else round(faster, 2),
    }  # fmt: skip


def find_ratio(value: float, unit: str, ceiling: float) -> float | None:
    return round(value / ceiling, 3) if unit in ("steps/s", "jobs/s") else None


if __name__ == "__main__":
    main()
