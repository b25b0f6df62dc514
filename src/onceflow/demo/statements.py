"""Read a bank statement file, MT940 (.sta) or camt.053 (.xml): what comes back adds up, the rest is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

from onceflow.demo.bank import BrokenStatement, Entry, Fault, Statement, check_balance
from onceflow.demo.camt053_reader import read_camt053
from onceflow.demo.mt940_reader import read_mt940

__all__ = ["BrokenStatement", "Entry", "Fault", "Statement", "read_statement"]

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
# What banks write, most likely first. Only texts depend on the guess: tags, amounts and dates are ASCII in both.
ENCODINGS = ("utf-8-sig", "cp1252")


def read_statement(path: Path | str) -> list[Statement]:
    """Every statement of the file, in order, each with opening + entries = closing in one currency.

    All or nothing: one bad statement refuses the file, so that no file is ever half posted.
    Amounts are exact decimals as the bank wrote them. Raises BrokenStatement; its `reason` names the fault.

    >>> statements = read_statement("src/onceflow/demo/data/nordlicht_coffee.sta")
    >>> statements[0].opening + sum(entry.amount for entry in statements[0].entries) == statements[0].closing
    True
    """
    path = Path(path)
    raw = path.read_bytes()
    if not raw.strip():
        raise BrokenStatement(path.name, Fault.EMPTY, f"the file has {len(raw)} bytes and no statement")
    suffix = path.suffix.lower()
    if suffix == ".xml":
        found = read_camt053(path.name, raw)
    elif suffix == ".sta":
        found = read_mt940(path.name, _decode(path.name, raw))
    else:
        detail = f"its name ends in {suffix!r}; known are .sta (MT940) and .xml (camt.053)"
        raise BrokenStatement(path.name, Fault.NOT_PARSEABLE, detail)
    return [check_balance(statement) for statement in found]


def _decode(file: str, raw: bytes) -> str:
    """The text of the bytes; raises BrokenStatement where they hold control characters or are no text at all."""
    for encoding in ENCODINGS:
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        found = CONTROL.search(text)
        if found is None:
            return text
        line = text.count("\n", 0, found.start()) + 1
        raise BrokenStatement(file, Fault.BINARY, f"line {line} holds the character {found.group()!a}")
    raise BrokenStatement(file, Fault.BINARY, f"it is no text in {' or '.join(ENCODINGS)}")
