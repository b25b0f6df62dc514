"""MT940 text to statements, through the package `mt-940`.

The package is lenient: it moves 30 February to the last of the month, drops what stands before the first :20:, lets a
second balance replace the first, and overwrites an entry that has no type code. A ledger must not be built on repairs,
so each of these is refused here by name.
"""

from __future__ import annotations

import logging
import re
from datetime import date
from decimal import Decimal
from typing import Any

import mt940

from onceflow.demo.bank import BrokenStatement, Entry, Fault, Statement

# Without a handler, Python would print the package's messages on stderr; the same faults are raised here by name.
logging.getLogger("mt940").addHandler(logging.NullHandler())

TAG = re.compile(r"^:\n?(?P<tag>\d{2})(?P<sub>[A-Z]?):", re.MULTILINE)
BALANCE = re.compile(r"[CD]\d{6}[A-Z]{3}\d{1,15}(,\d*)?")
OPENING = ("final_opening_balance", "intermediate_opening_balance", "opening_balance")
CLOSING = ("final_closing_balance", "intermediate_closing_balance", "closing_balance")
TEXTS = ("applicant_name", "purpose", "end_to_end_reference", "transaction_details", "extra_details")
# Two digits of a year: the format is older than 1999, and no bank has sent statements of 2080 yet.
CENTURY_PIVOT = 2080
OPTIONS = mt940.Options.all()


def read_mt940(file: str, text: str) -> list[Statement]:
    """Every statement of an MT940 text, in order; the balances are not compared yet. Raises BrokenStatement."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not TAG.search(text):
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, "no MT940 field (such as :20: or :61:) stands in it")
    blocks = [block for block in re.split(r"(?m)^(?=:20:)", text) if TAG.search(block)]
    return [_read_block(file, number, block) for number, block in enumerate(blocks, start=1)]


def _read_block(file: str, number: int, block: str) -> Statement:
    where = f"statement {number}"
    body = _check_fields(file, where, block)
    parsed = _parse(file, where, body)
    data: dict[str, Any] = parsed.data
    opening, closing = _first(data, OPENING), _first(data, CLOSING)
    currency = str(opening.amount.currency)
    if closing.amount.currency != currency:
        detail = f"{where} opens in {currency} and closes in {closing.amount.currency}"
        raise BrokenStatement(file, Fault.MIXED_CURRENCIES, detail)
    if len(parsed.transactions) != len(_tags(block, "61")) or not all(t.data.get("id") for t in parsed.transactions):
        detail = f"{where}: a :61: has no type code after its amount, or follows the closing balance"
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, detail)
    return Statement(
        file=file,
        account=str(data["account_identification"]).strip(),
        reference=_reference(data),
        currency=currency,
        opening=opening.amount.amount,
        closing=closing.amount.amount,
        opening_date=_date(opening.date),
        closing_date=_date(closing.date),
        entries=tuple(_entry(seq, currency, t.data) for seq, t in enumerate(parsed.transactions, start=1)),
    )


def _check_fields(file: str, where: str, block: str) -> str:
    """Return the block up to its closing balance; raise unless each balance stands there once and in full."""
    for tag, fault, name in (("60", Fault.NO_OPENING, "opening"), ("62", Fault.NO_CLOSING, "closing")):
        found = _tags(block, tag)
        if not found:
            raise BrokenStatement(file, fault, f"{where} has no :{tag}F: or :{tag}M:; it may be cut off")
        if len(found) > 1:
            raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"{where} has {len(found)} {name} balances")
        value = _value(block, found[0])
        if not BALANCE.fullmatch(value):
            raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"{where}: the {name} balance reads {value!r}")
    for tag, name in (("20", "reference"), ("25", "account")):
        if not any(_value(block, found) for found in _tags(block, tag)):
            raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"{where} has no {name} (:{tag}:)")
    # An :86: after the closing balance speaks of the whole statement; the package would add it to the last entry.
    last = _tags(block, "62")[0]
    return block[: last.end() + len(block[last.end() :].partition("\n")[0])]


def _parse(file: str, where: str, body: str) -> mt940.models.Transactions:
    # Replaces the package's own pre-processor, which moves 30 February to the last of the month in silence.
    parsed = mt940.models.Transactions(processors={"pre_statement": [_check_value_date]}, options=OPTIONS)
    try:
        parsed.parse(body)
    except RuntimeError as error:
        field = f":{error.args[1].id}:{error.args[2]}" if len(error.args) == 3 else str(error)
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"{where}: cannot read {field!r}") from error
    except ValueError as error:
        raise BrokenStatement(file, Fault.IMPOSSIBLE_DATE, f"{where}: {error}") from error
    except ArithmeticError as error:
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"{where}: an amount is not a number") from error
    return parsed


def _check_value_date(_all: object, _tag: object, fields: dict[str, Any], *_rest: object) -> dict[str, Any]:
    try:
        date(2000 + int(fields["year"]), int(fields["month"]), int(fields["day"]))
    except ValueError as error:
        written = "".join(fields[part] for part in ("year", "month", "day"))
        raise ValueError(f"an entry's value date reads {written} (yymmdd): {error}") from error
    return fields


def _entry(seq: int, currency: str, data: dict[str, Any]) -> Entry:
    amount: Decimal = data["amount"].amount
    booked_on = data.get("guessed_entry_date") or data.get("entry_date") or data["date"]
    references = [str(data.get(key) or "").strip() for key in ("customer_reference", "bank_reference")]
    text = " ".join(str(data[key]) for key in TEXTS if data.get(key))
    return Entry(
        seq=seq,
        booked_on=_date(booked_on),
        amount=amount,
        currency=currency,
        text=" ".join(text.split()),
        reference=next((found for found in references if found and found != "NONREF"), "NONREF"),
    )


def _reference(data: dict[str, Any]) -> str:
    """The sender's reference and the statement's number: :20: alone is often the same on every statement."""
    number = "/".join(str(data[key]) for key in ("statement_number", "sequence_number") if data.get(key))
    return f"{str(data['transaction_reference']).strip()} {number}".strip()


def _date(found: date) -> date:
    year = found.year - 100 if found.year >= CENTURY_PIVOT else found.year
    return date(year, found.month, found.day)


def _first(data: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next(data[key] for key in keys if data.get(key) is not None)


def _tags(block: str, tag: str) -> list[re.Match[str]]:
    return [match for match in TAG.finditer(block) if match["tag"] == tag]


def _value(block: str, match: re.Match[str]) -> str:
    return block[match.end() :].partition("\n")[0].strip()
