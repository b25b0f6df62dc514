"""The pure half of the demo: bank statements, euro rates, and what each file should lead to. No database."""

from __future__ import annotations

import csv
import io
import pickle
import zipfile
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from currency_converter import CURRENCY_FILE

from onceflow.demo.expectation import OWN_STATEMENTS, Expectation, foresee
from onceflow.demo.rates import NoRate, euro_rate, to_euro
from onceflow.demo.statements import BrokenStatement, Fault, Statement, read_statement

REAL_STATEMENTS = Path(__file__).parents[2] / "../shared/data/statements"

# file -> (statements, entries), or the reason why it is refused. Checked by hand: opening + entries = closing.
OWN: dict[str, tuple[int, int] | Fault] = {
    "firnlicht_optics.sta": (3, 13),
    "fjordkiosk_wrong_closing.sta": Fault.BALANCE_MISMATCH,
    "loom_cut_off.sta": Fault.NO_CLOSING,
    "nordlicht_coffee.sta": (1, 14),
    "tidewater_imports.sta": (3, 22),
}
REAL: dict[str, tuple[int, int] | Fault] = {
    "abnamro.sta": Fault.BALANCE_MISMATCH,
    "camt053.v2.five.decimals.xml": Fault.BALANCE_MISMATCH,
    "camt053.v2.multi.statement.xml": (2, 2),
    "camt053.v2.wrong.xml": Fault.EMPTY,
    "camt053.v8.xml": Fault.MIXED_CURRENCIES,
    "february_30.sta": Fault.IMPOSSIBLE_DATE,
    "generic.sta": (2, 2),
    "ing.sta": Fault.BALANCE_MISMATCH,
    "invalid_statement.sta": Fault.NOT_PARSEABLE,
    "knab.sta": Fault.BALANCE_MISMATCH,
    "postfinance.sta": Fault.BALANCE_MISMATCH,
    "rabobank.sta": Fault.BALANCE_MISMATCH,
    "sepa_mt9401.sta": (26, 97),
    "sns.sta": (2, 2),
    "sparkassen.sta": Fault.NO_OPENING,
    "triodos.sta": Fault.BALANCE_MISMATCH,
    "with_binary_character.sta": (2, 4),
}

MT940 = """:20:REF
:25:ACCOUNT
:28C:1/1
:60F:C230301EUR100,00
:61:2303010301D30,00NTRFRENT//B1
:86:Rent
:61:2303020302C5,5NTRFNONREF//B2
:86:Refund
:62F:C230302EUR75,50
:86:the bank wishes a good day
-
"""

CAMT = """<?xml version="1.0" encoding="UTF-8"?>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.{version}"><BkToCstmrStmt><GrpHdr/><Stmt><Id>S1</Id>
<Acct><Id><IBAN>XX00</IBAN></Id></Acct>
<Bal><Tp><CdOrPrtry><Cd>OPBD</Cd></CdOrPrtry></Tp><Amt Ccy="USD">1.00001</Amt><CdtDbtInd>CRDT</CdtDbtInd>
<Dt><Dt>2023-03-01</Dt></Dt></Bal>
<Bal><Tp><CdOrPrtry><Cd>CLBD</Cd></CdOrPrtry></Tp><Amt Ccy="USD">2.00002</Amt><CdtDbtInd>DBIT</CdtDbtInd>
<Dt><Dt>2023-03-02</Dt></Dt></Bal>
<Ntry><Amt Ccy="USD">3.00003</Amt><CdtDbtInd>DBIT</CdtDbtInd><Sts>{booked}</Sts>
<BookgDt><DtTm>2023-03-02T23:59:00+01:00</DtTm></BookgDt><NtryDtls><TxDtls><RmtInf><Ustrd>Fee</Ustrd></RmtInf></TxDtls></NtryDtls></Ntry>
<Ntry><Amt Ccy="USD">9</Amt><CdtDbtInd>CRDT</CdtDbtInd><Sts>{pending}</Sts><BookgDt><Dt>2023-03-02</Dt></BookgDt></Ntry>
</Stmt></BkToCstmrStmt></Document>
"""
CAMT_2 = CAMT.format(version="02", booked="BOOK", pending="PDNG")
CAMT_8 = CAMT.format(version="08", booked="<Cd>BOOK</Cd>", pending="<Cd>PDNG</Cd>")


def read_text(folder: Path, text: str | bytes, name: str = "file.sta") -> list[Statement]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_statement(path)


def outcome(path: Path) -> tuple[int, int] | Fault:
    try:
        statements = read_statement(path)
    except BrokenStatement as error:
        return error.reason
    return len(statements), sum(len(statement.entries) for statement in statements)


@pytest.mark.parametrize("name", OWN)
def test_own_files(name: str) -> None:
    """Each statement file of the demo leads to the statements and entries, or to the named failure, it was made for."""
    assert outcome(OWN_STATEMENTS / name) == OWN[name]


def test_own_files_are_all_listed() -> None:
    """No file of the demo goes untested."""
    assert {path.name for path in OWN_STATEMENTS.iterdir()} == OWN.keys()


@pytest.mark.skipif(not REAL_STATEMENTS.is_dir(), reason="needs the banks' files in ../shared/data/statements")
def test_real_files() -> None:
    """Every file as banks write them is read in full or refused by the right name; none is skipped."""
    assert {path.name: outcome(path) for path in REAL_STATEMENTS.iterdir()} == REAL


def test_what_is_read_is_what_the_bank_wrote(tmp_path: Path) -> None:
    """Account, signs, dates, texts and references come back as written; the note after the closing balance is no text
    of the last entry."""
    (statement,) = read_text(tmp_path, MT940.replace("\n", "\r\n"))
    assert (statement.file, statement.account, statement.reference) == ("file.sta", "ACCOUNT", "REF 1/1")
    assert (statement.opening, statement.closing, statement.currency) == (Decimal("100.00"), Decimal("75.50"), "EUR")
    assert (statement.opening_date, statement.closing_date) == (date(2023, 3, 1), date(2023, 3, 2))
    rent, refund = statement.entries
    assert (rent.seq, rent.booked_on, rent.amount, rent.text) == (1, date(2023, 3, 1), Decimal("-30.00"), "Rent")
    assert (rent.reference, refund.reference, refund.text) == ("RENT", "B2", "Refund")


def test_a_reversed_credit_takes_money_away(tmp_path: Path) -> None:
    """RC counts as money that leaves and RD as money that returns: the parser's default gets the first one wrong."""
    reversed_marks = MT940.replace("0301D30", "0301RC30").replace("0302C5", "0302RD5")
    assert [e.amount for e in read_text(tmp_path, reversed_marks)[0].entries] == [Decimal("-30.00"), Decimal("5.5")]


def test_the_booking_day_may_fall_into_the_next_year(tmp_path: Path) -> None:
    """An entry valued on 31 December and booked on 2 January belongs to the new year; 99 is 1999, not 2099."""
    text = MT940.replace("2303010301D", "2212310102D").replace("60F:C230301", "60F:C991231")
    (statement,) = read_text(tmp_path, text)
    assert statement.entries[0].booked_on == date(2023, 1, 2)
    assert statement.opening_date == date(1999, 12, 31)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (":62F:C230302EUR75,50", ":62F:C230302EUR75,05", Fault.BALANCE_MISMATCH),
        (":62F:C230302EUR75,50", ":62F:D230302EUR75,50", Fault.BALANCE_MISMATCH),
        (":62F:C230302EUR75,50", ":62F:C230302USD75,50", Fault.MIXED_CURRENCIES),
        (":62F:C230302EUR75,50", ":62F:C230302EUR75,50x", Fault.NOT_PARSEABLE),
        (":62F:C230302EUR75,50", ":62F:c230302EUR75,50", Fault.NOT_PARSEABLE),
        (":62F:C230302EUR75,50", ":62F:C230230EUR75,50", Fault.IMPOSSIBLE_DATE),
        (":62F:C230302EUR75,50\n", "", Fault.NO_CLOSING),
        (":60F:C230301EUR100,00\n", "", Fault.NO_OPENING),
        (":60F:", ":60F:C230301EUR1,00\n:60F:", Fault.NOT_PARSEABLE),
        (":61:2303010301D", ":61:2302300301D", Fault.IMPOSSIBLE_DATE),
        (":61:2303010301D", ":61:2303010231D", Fault.IMPOSSIBLE_DATE),
        (":61:2303010301D", ":61:2303010301X", Fault.NOT_PARSEABLE),
        ("D30,00NTRFRENT//B1", "D30,00", Fault.NOT_PARSEABLE),
        ("C5,5NTRFNONREF//B2", "C5,5", Fault.NOT_PARSEABLE),
        ("D30,00N", "D30,0,0N", Fault.NOT_PARSEABLE),
        (":86:the bank", ":61:2303020302C0,NTRFLATE\n:86:the bank", Fault.NOT_PARSEABLE),
        (":20:REF\n", ":61:2303010301C1,NTRFLOST\n:20:REF\n", Fault.NO_OPENING),
        (":25:ACCOUNT\n", "", Fault.NOT_PARSEABLE),
        ("Rent", "Re\x00nt", Fault.BINARY),
        (MT940, "", Fault.EMPTY),
        (MT940, " \n\n", Fault.EMPTY),
        (MT940, "Dear customer,\n", Fault.NOT_PARSEABLE),
    ],
)
def test_each_fault_has_a_name(tmp_path: Path, old: str, new: str, reason: Fault) -> None:
    """A file with one fault is refused by that fault's name, also where the parser would repair or drop in silence."""
    assert old in MT940
    with pytest.raises(BrokenStatement) as raised:
        read_text(tmp_path, MT940.replace(old, new))
    assert raised.value.reason == reason
    assert str(raised.value).startswith(f"file.sta: {reason.value}: ")


def test_a_file_cut_off_anywhere_is_never_half_read(tmp_path: Path) -> None:
    """Wherever a transfer breaks off, what is read is all that the bank wrote, or nothing."""
    whole = read_text(tmp_path, MT940)
    raw = MT940.encode()
    complete = raw.index(b"75,50") + len(b"75,5")  # without the last zero it is the same amount
    for length in range(len(raw)):
        try:
            assert read_text(tmp_path, raw[:length]) == whole and length >= complete
        except BrokenStatement:
            assert length < complete


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Letters of old code pages are read; bytes that belong to no text are refused as binary."""
    (statement,) = read_text(tmp_path, MT940.replace("Rent", "Müll").encode("cp1252"))
    assert statement.entries[0].text == "Müll"
    with pytest.raises(BrokenStatement, match="binary characters"):
        read_text(tmp_path, MT940.encode().replace(b"Rent", b"\x81\xff"))


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    """A file of another kind is refused, and the message says which kinds are known."""
    with pytest.raises(BrokenStatement, match=r"known are \.sta .* and \.xml"):
        read_text(tmp_path, "a;b", "file.csv")


@pytest.mark.parametrize("text", [CAMT_2, CAMT_8], ids=["v02", "v08"])
def test_camt053(tmp_path: Path, text: str) -> None:
    """Versions 02 and 08: five decimals stay exact, debits are negative, pending entries are not booked."""
    (statement,) = read_text(tmp_path, text, "file.xml")
    assert (statement.account, statement.reference, statement.currency) == ("XX00", "S1", "USD")
    assert (statement.opening, statement.closing) == (Decimal("1.00001"), Decimal("-2.00002"))
    (fee,) = statement.entries
    assert (fee.amount, fee.booked_on, fee.text) == (Decimal("-3.00003"), date(2023, 3, 2), "Fee")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("OPBD", "OPAV", Fault.NO_OPENING),
        ("CLBD", "CLAV", Fault.NO_CLOSING),
        ("3.00003", "3.00002", Fault.BALANCE_MISMATCH),
        ('Ccy="USD">3.00003', 'Ccy="EUR">3.00003', Fault.MIXED_CURRENCIES),
        ('Ccy="USD">2.00002', 'Ccy="EUR">2.00002', Fault.MIXED_CURRENCIES),
        ("2023-03-02T23", "2023-02-30T23", Fault.IMPOSSIBLE_DATE),
        ("3.00003", "3e0", Fault.NOT_PARSEABLE),
        ("<IBAN>XX00</IBAN>", "", Fault.NOT_PARSEABLE),
        ("</Document>", "", Fault.NOT_PARSEABLE),
        ("camt.053.001.02", "camt.052.001.02", Fault.NOT_PARSEABLE),
        ("<Document", '<!DOCTYPE d [<!ENTITY e "1">]><Document', Fault.NOT_PARSEABLE),
    ],
)
def test_each_fault_of_camt053_has_a_name(tmp_path: Path, old: str, new: str, reason: Fault) -> None:
    """The same names for the same faults in XML; a DOCTYPE is refused before its entities are expanded."""
    assert old in CAMT_2
    with pytest.raises(BrokenStatement) as raised:
        read_text(tmp_path, CAMT_2.replace(old, new), "file.xml")
    assert raised.value.reason == reason


def test_the_error_survives_a_process_border() -> None:
    """Pickled, or rebuilt from its arguments, the error is the same: a worker's failure reads alike everywhere."""
    error = BrokenStatement("a.sta", Fault.EMPTY, "nothing in it")
    for copy in (pickle.loads(pickle.dumps(error)), BrokenStatement(*error.args)):
        assert (str(copy), copy.reason) == (str(error), Fault.EMPTY)
    lost = NoRate("XXX", date(2023, 1, 1), "why")
    assert str(pickle.loads(pickle.dumps(lost))) == str(lost)


def test_rates_are_the_ecbs_digit_for_digit() -> None:
    """Every rate of a day has the very digits of the ECB's file; what it prints as N/A raises NoRate."""
    with zipfile.ZipFile(CURRENCY_FILE) as archive:
        rows = csv.DictReader(io.StringIO(archive.read(archive.namelist()[0]).decode()))
        row = next(row for row in rows if row["Date"] == "2014-03-28")
    printed = {currency: text for currency, text in row.items() if currency and currency != "Date"}
    for currency, text in printed.items():
        if text == "N/A":
            with pytest.raises(NoRate, match=currency):
                euro_rate(currency, date(2014, 3, 28))
        else:
            assert str(euro_rate(currency, date(2014, 3, 28))) == text
    assert len(printed) > 40


@pytest.mark.parametrize(
    ("day", "quoted"),
    [
        (date(2023, 3, 4), date(2023, 3, 3)),  # a Saturday
        (date(2023, 4, 10), date(2023, 4, 6)),  # Easter Monday
        (date(2014, 3, 28), date(2014, 3, 28)),
    ],
)
def test_a_day_without_rates_takes_the_last_earlier_one(day: date, quoted: date) -> None:
    """On weekends and holidays the last earlier business day counts."""
    assert euro_rate("USD", day) == euro_rate("USD", quoted)


@pytest.mark.parametrize(
    ("currency", "day"),
    [
        ("XXX", date(2023, 3, 1)),  # no currency
        ("ISK", date(2010, 3, 1)),  # Iceland was not quoted from 2008 to 2018
        ("HRK", date(2023, 3, 1)),  # Croatia had the euro by then
        ("RUB", date(2023, 3, 1)),  # not quoted since March 2022
        ("USD", date(1998, 12, 31)),  # before the euro
        ("USD", date(2099, 1, 1)),  # after the end of the file
    ],
)
def test_no_rate_is_an_error_not_a_guess(currency: str, day: date) -> None:
    """Where the ECB has no rate within a week, NoRate names currency and day; no old rate is taken instead."""
    with pytest.raises(NoRate, match=f"{currency} on {day}"):
        euro_rate(currency, day)


def test_euro_amounts_are_rounded_to_the_cent_halves_away_from_zero() -> None:
    """1 EUR is 1 EUR; a half cent goes away from zero on both sides, so the two legs of an entry stay opposites."""
    day = date(2014, 3, 28)
    assert euro_rate("EUR", day) == 1
    assert to_euro(Decimal("100.00"), "USD", day) == Decimal("72.68")
    assert [to_euro(Decimal(a), "EUR", day) for a in ("0.125", "-0.125")] == [Decimal("0.13"), Decimal("-0.13")]


def test_foresee(tmp_path: Path) -> None:
    """What a file should lead to is known before any engine runs: counts and euro, or the named failure."""
    good = foresee(OWN_STATEMENTS / "firnlicht_optics.sta")
    assert (good.statements, good.entries, good.eur, good.failure) == (3, 13, Decimal("12010.36"), None)
    assert good.accounts == (("CH00FIRN00000000001", "CHF"), ("CH00FIRN00000000002", "JPY"))
    broken = OWN_STATEMENTS / "loom_cut_off.sta"
    refused = foresee(broken)
    assert refused == Expectation(broken, failure=refused.failure, reason="missing closing balance")
    assert str(refused.failure).startswith("BrokenStatement: loom_cut_off.sta: missing closing balance: ")
    unquoted = tmp_path / "unquoted.sta"
    unquoted.write_text(MT940.replace("EUR", "RUB"))
    assert str(foresee(unquoted).failure).startswith("NoRate: no euro rate for RUB on 2023-03-01: ")
