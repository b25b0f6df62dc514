"""What each file should lead to, worked out from the file alone: the yardstick for what the engine did."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from onceflow.demo.rates import NoRate, to_euro
from onceflow.demo.statements import BrokenStatement, read_statement

OWN_STATEMENTS = Path(__file__).parent / "data"
REAL_STATEMENTS = Path("../shared/data/statements")


@dataclass(frozen=True)
class Expectation:
    """What must be in the books after the file's run. A refused file leaves nothing there.

    `failure` is the name and the message of the error that must be recorded, word for word; None for a good file.
    `reason` is the same in a few words.
    """

    path: Path
    statements: int = 0
    entries: int = 0
    eur: Decimal = Decimal(0)
    accounts: tuple[tuple[str, str], ...] = ()
    failure: str | None = None
    reason: str = ""

    @property
    def run_id(self) -> str:
        return f"statement-{self.path.name}"


def find_statements() -> list[Path]:
    """The statement files of the demo: its own, and those beside the checkout where they are present."""
    found = [path for folder in (OWN_STATEMENTS, REAL_STATEMENTS) for path in sorted(folder.glob("*"))]
    return [path.resolve() for path in found if path.suffix in (".sta", ".xml")]


def foresee(path: Path) -> Expectation:
    """Read and convert the file as the workflow will, without a database; never raises for a broken file."""
    try:
        statements = read_statement(path)
        euros = [to_euro(e.amount, e.currency, e.booked_on) for statement in statements for e in statement.entries]
    except (BrokenStatement, NoRate) as error:
        reason = error.reason.value if isinstance(error, BrokenStatement) else f"no euro rate for {error.currency}"
        return Expectation(path, failure=f"{type(error).__name__}: {error}", reason=reason)
    accounts = tuple(dict.fromkeys((statement.account, statement.currency) for statement in statements))
    return Expectation(path, len(statements), len(euros), sum(euros, Decimal(0)), accounts)
