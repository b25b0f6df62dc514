"""What a bank statement is: its entries, its balances, and the one named error for a file that cannot be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum


class Fault(StrEnum):
    """Why a file cannot be posted; the value is the reason people read."""

    EMPTY = "empty"
    NOT_PARSEABLE = "not parseable"
    NO_OPENING = "missing opening balance"
    NO_CLOSING = "missing closing balance"
    BALANCE_MISMATCH = "balance mismatch"
    MIXED_CURRENCIES = "mixed currencies"
    IMPOSSIBLE_DATE = "impossible date"
    BINARY = "binary characters"


REMEDY = "Nothing of this file was posted. Ask the bank for the file again, then start a new run with it."


class BrokenStatement(ValueError):
    """A statement file that must not be posted; `reason` says which fault, `file` and `detail` say where."""

    def __init__(self, file: str, reason: Fault, detail: str) -> None:
        # The arguments stay in `args`, so that the error comes back equal from the ledger and over process borders.
        super().__init__(file, Fault(reason).value, detail)
        self.file = file
        self.reason = Fault(reason)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.file}: {self.reason.value}: {self.detail}. {REMEDY}"


@dataclass(frozen=True)
class Entry:
    """One line of a statement. `amount` is signed: money that comes in is positive, money that leaves is negative."""

    seq: int
    booked_on: date
    amount: Decimal
    currency: str
    text: str
    reference: str


@dataclass(frozen=True)
class Statement:
    """One statement of one account, with the bank's own balances (signed like the entries)."""

    file: str
    account: str
    reference: str
    currency: str
    opening: Decimal
    closing: Decimal
    opening_date: date
    closing_date: date
    entries: tuple[Entry, ...]

    @property
    def computed(self) -> Decimal:
        """The closing balance that follows from the opening balance and the entries."""
        return self.opening + sum((entry.amount for entry in self.entries), Decimal(0))


def check_balance(statement: Statement) -> Statement:
    """Return the statement if opening + entries = closing in one currency; raise BrokenStatement otherwise.

    The sum is the ground truth: whatever a parser repaired or dropped in silence shows up here.
    """
    strangers = {entry.currency for entry in statement.entries} - {statement.currency}
    if strangers:
        detail = f"statement {statement.reference!r} is in {statement.currency}, entries also in {sorted(strangers)}"
        raise BrokenStatement(statement.file, Fault.MIXED_CURRENCIES, detail)
    if statement.computed != statement.closing:
        detail = (
            f"statement {statement.reference!r}: opening {statement.opening} and {len(statement.entries)} entries make "
            f"{statement.computed} {statement.currency}, the bank's closing balance is {statement.closing}, "
            f"difference {statement.closing - statement.computed}"
        )
        raise BrokenStatement(statement.file, Fault.BALANCE_MISMATCH, detail)
    return statement
