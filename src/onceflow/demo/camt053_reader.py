"""camt.053 XML (ISO 20022, versions 02 and 08) to statements, with the standard library only."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from xml.etree import ElementTree

from onceflow.demo.bank import BrokenStatement, Entry, Fault, Statement

ROOT = re.compile(r"\{urn:iso:std:iso:20022:tech:xsd:camt\.053\.001\.(?P<version>\d\d)\}Document")
VERSIONS = ("02", "08")
AMOUNT = re.compile(r"\d+(\.\d+)?")
OPENING = ("OPBD", "PRCD")
CLOSING = ("CLBD",)
REFERENCES = ("AcctSvcrRef", "NtryRef", "NtryDtls/TxDtls/Refs/EndToEndId")
TEXTS = (
    "AddtlNtryInf",
    "NtryDtls/TxDtls/RmtInf/Ustrd",
    "NtryDtls/TxDtls/RmtInf/Strd/CdtrRefInf/Ref",
    "NtryDtls/TxDtls/AddtlTxInf",
)


class _PlainXml(ElementTree.TreeBuilder):
    """Refuses a DOCTYPE before any of its entities is expanded; camt.053 has none."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ElementTree.ParseError(f"it declares a DOCTYPE {name!r}, which camt.053 never has")


def read_camt053(file: str, raw: bytes) -> list[Statement]:
    """Every statement of a camt.053 message, in order; the balances are not compared yet. Raises BrokenStatement."""
    try:
        root = ElementTree.fromstring(raw, parser=ElementTree.XMLParser(target=_PlainXml()))
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, f"as XML: {error}") from error
    found = ROOT.fullmatch(root.tag)
    if found is None or found["version"] not in VERSIONS:
        detail = f"its root is {root.tag!r}; known are camt.053 versions {' and '.join(VERSIONS)}"
        raise BrokenStatement(file, Fault.NOT_PARSEABLE, detail)
    statements = _find_all(root, "BkToCstmrStmt/Stmt")
    if not statements:
        raise BrokenStatement(file, Fault.EMPTY, "the message has a header and no statement (Stmt)")
    return [_Reader(file, number).read(node) for number, node in enumerate(statements, start=1)]


class _Reader:
    """Reads one Stmt; keeps the place for the error messages."""

    def __init__(self, file: str, number: int) -> None:
        self.file = file
        self.where = f"statement {number}"

    def read(self, node: ElementTree.Element) -> Statement:
        opening = self.balance(node, OPENING, Fault.NO_OPENING)
        closing = self.balance(node, CLOSING, Fault.NO_CLOSING)
        currency, closing_currency = self.currency(opening), self.currency(closing)
        if currency != closing_currency:
            detail = f"{self.where} opens in {currency} and closes in {closing_currency}"
            raise BrokenStatement(self.file, Fault.MIXED_CURRENCIES, detail)
        # Only booked entries are part of the booked balances; pending and informational ones come again when booked.
        booked = [entry for entry in _find_all(node, "Ntry") if _text(entry, "Sts/Cd", "Sts") == "BOOK"]
        return Statement(
            file=self.file,
            account=self.require(node, "Acct/Id/IBAN", "Acct/Id/Othr/Id"),
            reference=self.require(node, "Id"),
            currency=currency,
            opening=self.amount(opening),
            closing=self.amount(closing),
            opening_date=self.day(opening, "Dt"),
            closing_date=self.day(closing, "Dt"),
            entries=tuple(self.entry(seq, entry) for seq, entry in enumerate(booked, start=1)),
        )

    def entry(self, seq: int, node: ElementTree.Element) -> Entry:
        texts = [found.text or "" for path in TEXTS for found in _find_all(node, path)]
        return Entry(
            seq=seq,
            booked_on=self.day(node, "BookgDt", "ValDt"),
            amount=self.amount(node),
            currency=self.currency(node),
            text=" ".join(" ".join(texts).split()),
            reference=_text(node, *REFERENCES) or "NOTPROVIDED",
        )

    def balance(self, node: ElementTree.Element, codes: tuple[str, ...], fault: Fault) -> ElementTree.Element:
        for code in codes:
            found = [bal for bal in _find_all(node, "Bal") if _text(bal, "Tp/CdOrPrtry/Cd") == code]
            if len(found) > 1:
                raise self.broken(f"has {len(found)} balances of type {code}")
            if found:
                return found[0]
        raise BrokenStatement(self.file, fault, f"{self.where} has no balance of type {' or '.join(codes)}")

    def amount(self, node: ElementTree.Element) -> Decimal:
        """The signed amount, with every decimal the bank wrote. CdtDbtInd is the true direction, also of a reversal."""
        text, mark = self.require(node, "Amt"), self.require(node, "CdtDbtInd")
        if not AMOUNT.fullmatch(text) or mark not in ("CRDT", "DBIT"):
            raise self.broken(f"has an amount that reads {text!r} {mark!r}")
        return Decimal(text) if mark == "CRDT" else -Decimal(text)

    def currency(self, node: ElementTree.Element) -> str:
        amount = _find_all(node, "Amt")
        code = amount[0].get("Ccy", "") if amount else ""
        if not re.fullmatch("[A-Z]{3}", code):
            raise self.broken(f"has an amount without a currency in {_name(node)}")
        return code

    def day(self, node: ElementTree.Element, *names: str) -> date:
        text = self.require(node, *[f"{name}/{form}" for name in names for form in ("Dt", "DtTm")])
        if not re.match(r"\d{4}-\d\d-\d\d", text):
            raise self.broken(f"has a date that reads {text!r}")
        try:
            return date.fromisoformat(text[:10])
        except ValueError as error:
            raise BrokenStatement(self.file, Fault.IMPOSSIBLE_DATE, f"{self.where}: {text[:10]}: {error}") from error

    def require(self, node: ElementTree.Element, *paths: str) -> str:
        found = _text(node, *paths)
        if not found:
            raise self.broken(f"has no {' or '.join(paths)} in {_name(node)}")
        return found

    def broken(self, what: str) -> BrokenStatement:
        return BrokenStatement(self.file, Fault.NOT_PARSEABLE, f"{self.where} {what}")


def _find_all(node: ElementTree.Element, path: str) -> list[ElementTree.Element]:
    return node.findall("/".join(f"{{*}}{part}" for part in path.split("/")))


def _text(node: ElementTree.Element, *paths: str) -> str:
    """The text at the first path that has one; empty if none has."""
    texts = ((found.text or "").strip() for path in paths for found in _find_all(node, path))
    return next((text for text in texts if text), "")


def _name(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]
