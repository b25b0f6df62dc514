"""The ledger as a file of JSON lines, and an auditor's own check of such a file: every hash computed again, without a database.

Whoever owns the database can change an entry and make all hashes and seals anew. Only a copy of the seals out of the owner's
reach catches that: export regularly, keep the files elsewhere, and compare (`verify_export(new, earlier=old)`).

The lines: one `export`, the `entry` lines, the `seal` lines, one `end` that counts them. In an entry, inputs, output and
error are texts that hold JSON, exactly as they were hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import scalar_row

Reader = psycopg.Connection[Any]

# The order in which an entry's fields are hashed (version v1).
ENTRY_FIELDS = (
    *("id", "dag_run", "ti", "dag_id", "run_id", "task_id", "map_index", "epoch", "step_key", "step_name", "kind", "try_number", "from_state", "to_state"),
    *("final", "inputs", "inputs_hash", "output", "error", "started_at", "at", "worker", "host", "code_version", "actor", "fence", "xid", "cluster"),
)
SEAL_FIELDS = ("no", "xid_from", "xid_to", "xid_next", "cluster", "entries", "root", "sealed_at")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_EXPORT = "select jsonb_build_object('record', 'export', 'version', 1, 'cluster', cluster, 'at', pg_catalog.clock_timestamp()) from onceflow.engine"
_ENTRIES = """
    select jsonb_build_object('record', 'entry') || to_jsonb(e) || jsonb_build_object(
        'inputs', e.inputs::text, 'output', e.output::text, 'error', e.error::text, 'hash', encode(e.hash, 'hex'))
    from {} e order by e.xid, e.id"""
_SEALS = """
    select jsonb_build_object('record', 'seal') || to_jsonb(s) || jsonb_build_object('root', encode(s.root, 'hex'), 'hash', encode(s.hash, 'hex'))
    from onceflow.ledger_seal s order by s.no"""
_HAS_ARCHIVE = "select exists (select from pg_catalog.pg_tables where schemaname = 'onceflow_archive' and tablename = 'step_ledger')"


def export_ledger(reader: Reader) -> Iterator[str]:
    """The lines of an export: every entry (archived ones too) and every seal, all of one snapshot. The login is an auditor's or an operator's."""
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read, read only")
        reader.execute("set local timezone = 'UTC'")
        yield from _read_lines(reader, _EXPORT)
        tables = ["onceflow_archive.step_ledger"] if reader.execute(_HAS_ARCHIVE).fetchone() == (True,) else []
        entries = seals = 0
        for table in [*tables, "onceflow.step_ledger"]:
            for line in _read_lines(reader, _ENTRIES.format(table)):
                entries += 1
                yield line
        for line in _read_lines(reader, _SEALS):
            seals += 1
            yield line
        yield json.dumps({"record": "end", "entries": entries, "seals": seals})


def _read_lines(reader: Reader, query: str) -> Iterator[str]:
    with reader.cursor(name="onceflow_export", row_factory=scalar_row) as cursor:
        cursor.itersize = 1000
        yield from cursor.execute(f"select line::text from ({query}) q(line)".encode())


@dataclass(frozen=True, slots=True)
class ExportFinding:
    """Something wrong with an export. `where` names the entry, the seal or the line."""

    problem: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.where}: {self.detail}"


def verify_export(path: Path | str, *, earlier: Path | str | None = None) -> list[ExportFinding]:
    """What is wrong with an exported ledger; an empty list if nothing is.

    Each entry's hash, each seal's count, root and hash, and the chain of windows are computed here again from the fields. With
    `earlier`, an export kept from before: each seal in it must stand in this one unchanged, so its entries do too; and so must each entry that
    was not sealed yet.
    """
    export = _Export()
    findings = [*_read_export(Path(path), export), *_check_entries(export), *_check_chain(export), *_check_windows(export)]
    if earlier is not None:
        before = _Export()
        findings += [*_read_export(Path(earlier), before), *_compare_seals(before, export), *_compare_unsealed(before, export)]
    return findings


@dataclass(slots=True)
class _Export:
    """What the checks need of a file; payloads are dropped once they are hashed."""

    entries: list[tuple[str, int, int, str]] = field(default_factory=list)  # cluster, xid, id, hash
    wrong: list[tuple[str, str]] = field(default_factory=list)  # entries whose hash is another one
    seals: list[dict[str, Any]] = field(default_factory=list)


def _read_export(path: Path, export: _Export) -> Iterator[ExportFinding]:
    first, counted, end = None, {"entry": 0, "seal": 0}, None
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                item = json.loads(line)
                record = item["record"]
                if record == "entry":
                    _keep_entry(export, item)
                elif record == "seal":
                    export.seals.append(item)
                first, end = first or record, item if record == "end" else end
                counted[record] = counted.get(record, 0) + 1
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                yield ExportFinding("unreadable line", f"{path.name}:{number}", f"{type(error).__name__}: {error}")
    if first != "export":
        yield ExportFinding("not an export", path.name, "its first line is not that of an export of onceflow")
    if end is None or (end["entries"], end["seals"]) != (counted["entry"], counted["seal"]):
        said = "it has no last line" if end is None else f"its last line says {end['entries']} entries and {end['seals']} seals"
        yield ExportFinding("incomplete file", path.name, f"{said}; there are {counted['entry']} and {counted['seal']}")


def _keep_entry(export: _Export, item: dict[str, Any]) -> None:
    export.entries.append((str(item["cluster"]), int(item["xid"]), int(item["id"]), item["hash"]))
    if hash_entry(item) != item["hash"]:
        export.wrong.append((str(item["id"]), f"{item['dag_id']}/{item['run_id']} {item['step_key']}"))


def hash_entry(entry: dict[str, Any]) -> str:
    """The hash (hex) that an exported entry must have: sha256 over its fields in their order, each with its length, after the version."""
    return hashlib.sha256(f"v1{''.join(_hash_field(entry[name], name) for name in ENTRY_FIELDS)}".encode()).hexdigest()


def hash_seal(seal: dict[str, Any], previous: str | None) -> str:
    """The hash (hex) that an exported seal must have, given that of the seal before it."""
    fields = "".join(_hash_field(seal[name], name) for name in SEAL_FIELDS)
    return hashlib.sha256(f"v1{fields}{_hash_field(previous, 'hash')}".encode()).hexdigest()


def _hash_field(value: Any, name: str) -> str:
    """Octets, a colon, the text; ~ for null. Times are whole microseconds since 1970, truth is t or f."""
    if value is None:
        return "~"
    if name.endswith("at"):
        value = (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    text = ("t" if value else "f") if isinstance(value, bool) else str(value)
    return f"{len(text.encode())}:{text}"


def _check_entries(export: _Export) -> Iterator[ExportFinding]:
    for wrong, where in export.wrong:
        yield ExportFinding("changed entry", f"entry {wrong}", f"its hash is not that of its fields ({where})")
    seen: set[int] = set()
    for _, _, number, _ in export.entries:
        if number in seen:
            yield ExportFinding("added entry", f"entry {number}", "there are two entries of this number")
        seen.add(number)


def _check_chain(export: _Export) -> Iterator[ExportFinding]:
    previous: dict[str, Any] | None = None
    ends: dict[str, int] = {}
    for seal in export.seals:
        where, cluster = f"seal {seal['no']}", str(seal["cluster"])
        if seal["no"] != (previous["no"] if previous else 0) + 1:
            yield ExportFinding("broken seal", where, f"it follows {'seal ' + str(previous['no']) if previous else 'nothing'}: those between are gone")
        if hash_seal(seal, previous["hash"] if previous else None) != seal["hash"]:
            yield ExportFinding("broken seal", where, "its hash is not that of its fields and of the seal before it")
        if int(seal["xid_from"]) != ends.get(cluster, 0):
            yield ExportFinding("broken seal", where, f"it begins at transaction {seal['xid_from']}, the one before it ends at {ends.get(cluster, 0)}")
        ends[cluster] = int(seal["xid_to"])
        previous = seal


def _check_windows(export: _Export) -> Iterator[ExportFinding]:
    by_cluster: dict[str, list[tuple[int, int, str]]] = {}
    for cluster, xid, number, digest in export.entries:
        by_cluster.setdefault(cluster, []).append((xid, number, digest))
    for entries in by_cluster.values():
        entries.sort(reverse=True)
    for seal in export.seals:
        inside = [digest for _, _, digest in _take_below(by_cluster.get(str(seal["cluster"]), []), int(seal["xid_to"]))]
        root = hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in inside)).hexdigest()
        if (len(inside), root) != (seal["entries"], seal["root"]):
            problem = "removed entry" if len(inside) < seal["entries"] else "added entry" if len(inside) > seal["entries"] else "changed entry"
            yield ExportFinding(problem, f"seal {seal['no']}", f"it was made over {seal['entries']} entries; there are {len(inside)}, or others")


def _take_below(entries: list[tuple[int, int, str]], end: int) -> Iterable[tuple[int, int, str]]:
    """Takes those with a lower xid off the list, which is sorted downwards, lowest first."""
    while entries and entries[-1][0] < end:
        yield entries.pop()


def _compare_seals(before: _Export, now: _Export) -> Iterator[ExportFinding]:
    present = {seal["no"]: seal for seal in now.seals}
    for seal in before.seals:
        if seal["no"] not in present:
            yield ExportFinding("missing seal", f"seal {seal['no']}", "the earlier export has it")
        elif present[seal["no"]] != seal:
            yield ExportFinding("changed seal", f"seal {seal['no']}", "the earlier export has another one of this number: the ledger before it was made anew")


def _compare_unsealed(before: _Export, now: _Export) -> Iterator[ExportFinding]:
    """No seal speaks for what the earlier export holds beyond its last one."""
    sealed = {str(seal["cluster"]): int(seal["xid_to"]) for seal in before.seals}
    present = {number: digest for _, _, number, digest in now.entries}
    for cluster, xid, number, digest in before.entries:
        if xid >= sealed.get(cluster, 0) and present.get(number) != digest:
            is_there = number in present
            detail = f"the earlier export, made before it was sealed, has {'another one of this number' if is_there else 'it'}"
            yield ExportFinding("changed entry" if is_there else "missing entry", f"entry {number}", detail)
