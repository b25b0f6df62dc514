"""The text of an SQL step, made fit for `run_sql_steps`: typed parameters out of arrays, rows in the ledger's form.

Only what is exact: a parameter's type, a value or a column's type that is not listed here makes the step run through its driver,
like any other transactional step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from onceflow.db.calls import quote_text
from onceflow.errors import AuthoringError

Slots = tuple[list[str | None], list[str | None]]
Writer = Callable[[Any], str | None]
INFINITE = (date.max, date.min, datetime.max, datetime.min)  # what the driver takes for the infinities of Postgres


@dataclass(frozen=True, slots=True)
class SqlForm:
    """`text` takes two arrays: of texts and of moments (without a zone, in UTC). `answers`: it yields one jsonb, the step's output."""

    text: str
    answers: bool
    parameters: tuple[int, ...]

    def bind(self, args: Sequence[Any]) -> Slots | None:
        """The two arrays; None when a value is not exactly of its parameter's type, or there are more or fewer than parameters."""
        if len(args) != len(self.parameters):
            return None
        slots: Slots = ([None] * len(args), [None] * len(args))
        for i, (value, oid) in enumerate(zip(args, self.parameters, strict=True)):
            if value is None:
                continue
            kind = PARAMETERS[oid]
            written = kind.write(value) if type(value) in kind.classes else None
            if written is None:
                return None
            slots[kind.slot][i] = written
        return slots


@dataclass(frozen=True, slots=True)
class _Parameter:
    """How values of a type travel. `cast`: the expression that makes the parameter of its place in the array, as an immutable one, so that Postgres
    computes it once."""

    cast: str
    classes: tuple[type, ...]
    write: Writer
    slot: int = 0


def _whole(bits: int) -> Writer:
    return lambda value: str(value) if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _number(value: Any) -> str | None:
    if isinstance(value, int):
        return str(value) if value.bit_length() < 3000 else None
    return str(value) if value.is_finite() and abs(value.adjusted()) < 1000 and len(value.as_tuple().digits) < 1000 else None


def _moment(value: datetime) -> str | None:
    return None if value.tzinfo is not None or value in INFINITE else value.isoformat(" ")


def _moment_with_zone(value: datetime) -> str | None:
    return None if value.tzinfo is None or not 2 < value.year < 9998 else value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")


PARAMETERS: dict[int, _Parameter] = {
    16: _Parameter("{}::pg_catalog.bool", (bool,), lambda value: str(value).lower()),
    17: _Parameter("{}::pg_catalog.bytea", (bytes,), lambda value: rf"\x{value.hex()}"),
    20: _Parameter("{}::pg_catalog.int8", (int,), _whole(64)),
    21: _Parameter("{}::pg_catalog.int2", (int,), _whole(16)),
    23: _Parameter("{}::pg_catalog.int4", (int,), _whole(32)),
    25: _Parameter("{}", (str,), str),
    114: _Parameter("{}::pg_catalog.json", (str,), str),
    701: _Parameter("{}::pg_catalog.float8", (float,), repr),
    1042: _Parameter("{}::pg_catalog.bpchar", (str,), str),
    1043: _Parameter("{}::pg_catalog.varchar", (str,), str),
    1082: _Parameter("{}::pg_catalog.date", (date,), lambda value: None if value in INFINITE else value.isoformat(), 1),
    1083: _Parameter("{}::pg_catalog.time", (time,), lambda value: None if value.tzinfo is not None else f"2000-01-01 {value.isoformat()}", 1),
    1114: _Parameter("{}", (datetime,), _moment, 1),
    1184: _Parameter("pg_catalog.timezone('UTC', {})", (datetime,), _moment_with_zone, 1),
    1700: _Parameter("{}::pg_catalog.numeric", (Decimal, int), _number),
    2950: _Parameter("{}::pg_catalog.uuid", (UUID,), str),
    3802: _Parameter("{}::pg_catalog.jsonb", (str,), str),
}
VOID = 2278
# bool, bytea, name, int8, int2, int4, text, oid, json, float4, float8, bpchar, varchar, date, time, timestamp, timestamptz, numeric, uuid, void, jsonb:
# as in sql/encode_value.sql
COLUMNS = frozenset({16, 17, 19, 20, 21, 23, 25, 26, 114, 700, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1700, 2950, VOID, 3802})


ARRAYS = "$1", "$2"
NO_ARRAYS = "null::pg_catalog.text[]", "null::pg_catalog.timestamp[]"  # for a text that is only to be looked at by the server


def make_form(text: str, parameters: Sequence[int], columns: Sequence[tuple[str, int]], arrays: tuple[str, str] = ARRAYS) -> SqlForm | None:
    """The form of a text whose parameters and columns the server has described; None where it would not be exact.

    >>> make_form("insert into t values ($1)", [23], []).text
    'insert into t values ((($1)[1]::pg_catalog.int4))'
    """
    if any(oid not in PARAMETERS for oid in parameters) or any(oid not in COLUMNS or name[:1] == "$" for name, oid in columns):
        return None
    kinds = [PARAMETERS[oid] for oid in parameters]
    placed = place_parameters(text, [kind.cast.format(f"({arrays[kind.slot]})[{i}]") for i, kind in enumerate(kinds, 1)])
    return SqlForm(encode_rows(placed, columns) if columns else placed, bool(columns), tuple(parameters))


def check_columns(step: str, names: Sequence[str]) -> None:
    """Raises AuthoringError for a name that several columns have: an object can hold only one of them."""
    if len(set(names)) < len(names):
        twin = next(name for name in names if list(names).count(name) > 1)
        raise AuthoringError(f"SQL step {step} answers several columns named {twin!r}, of which only one could be kept: give them names by AS")


def encode_rows(text: str, columns: Sequence[tuple[str, int]]) -> str:
    """A statement that answers the rows of another one as one jsonb: what codec.encode makes of a list of dicts.

    The union adds no row: it fails when the statement has got more columns since; when it has lost one, its name is not found.
    """
    names = [name for name, _ in columns]
    values = [f"{quote_text(name)}::pg_catalog.text, {'null' if oid == VOID else f'onceflow.encode_value(r.{_identifier(name)})'}" for name, oid in columns]
    if names != sorted(names, key=lambda name: (len(name.encode()), name.encode())):
        values.append(f"'$order', pg_catalog.jsonb_build_array({', '.join(f'{quote_text(name)}::pg_catalog.text' for name in names)})")
    nulls = ", ".join(["null"] * len(columns))
    return (
        f'with "onceflow rows" as materialized ({text.rstrip().rstrip(";")}\n) '
        f"select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object({', '.join(values)})), '[]') "
        f'from (select * from "onceflow rows" union all select {nulls} where false) r'
    )


def _identifier(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_START = r"A-Za-z_\x80-\U0010ffff"
_PIECE = re.compile(
    rf"""[eE]'(?:[^'\\]|\\.|'')*+'    # with backslashes
    | '[^']*+'                        # '' is two of them
    | "[^"]*+"
    | --[^\n\r]*
    | (?P<comment>/\*)
    | (?P<dollar>\$(?:[{_START}][{_START}0-9]*)?\$)
    | [{_START}][{_START}0-9$]*+
    | \$(?P<number>[0-9]++)
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE = re.compile(r"/\*|\*/")


def place_parameters(text: str, expressions: Sequence[str]) -> str:
    """The text with an expression in place of each $1, $2… that is one: not in literals, names, comments.

    >>> place_parameters("select $1, '$1', $2 -- $1", ["a", "b"])
    "select (a), '$1', (b) -- $1"
    """
    out: list[str] = []
    done = position = 0
    while found := _PIECE.search(text, position):
        position = found.end()
        if found["number"]:
            out += text[done : found.start()], f"({expressions[int(found['number']) - 1]})"
            done = position
        elif found["dollar"]:
            end = text.find(found["dollar"], position)
            position = len(text) if end < 0 else end + len(found["dollar"])
        elif found["comment"]:
            position = _skip_comment(text, position)
    return "".join([*out, text[done:]])


def _skip_comment(text: str, position: int) -> int:
    """The position after a comment opened before `position`; comments nest."""
    depth = 1
    for edge in _EDGE.finditer(text, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
