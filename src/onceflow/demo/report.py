"""What the demo prints: what it does, what came of each file, and each claim of the proof with what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from onceflow.demo import proof
from onceflow.demo.expectation import OWN_STATEMENTS, Expectation
from onceflow.demo.processes import LEASE_S


class Report:
    """Prints to the terminal, 80 columns or wider. `verbose` adds every statement, and why a file was refused."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.verbose = verbose

    def say(self, text: str) -> None:
        self.console.print(text)

    def fail(self, error: Exception) -> None:
        self.say(f"[bold red]The demo could not be finished:[/] {type(error).__name__}: {escape(str(error))}")

    def open(self, expected: Sequence[Expectation], folder: Path) -> None:
        own = sum(1 for want in expected if want.path.is_relative_to(OWN_STATEMENTS.resolve()))
        real = f", {len(expected) - own} of real banks" if own < len(expected) else ""
        self.say(
            f"{len(expected)} bank statement files ({own} made up for the demo{real}), two workers, a new PostgreSQL in {folder}.\n"
            "Each file is one run; each entry in it is converted to euro and posted by a step of its own.\n"
            f"A worker counts as lost after {LEASE_S:g} s without a heartbeat (the default is 10 s)."
        )

    def show_kill(self, kill: proof.Kill) -> None:
        runs, open_ones = _count(len(kill.runs), "run"), _count(len(kill.xids), "open transaction")
        self.say(
            f"\n[bold]kill -9 {kill.pid}[/]: one of the workers is gone, inside a step of {runs}: "
            f"{open_ones} ({', '.join(sorted(kill.xids, key=int))})\nin which postings were written and not committed."
        )

    def show_logs(self, logs: Iterable[Path]) -> None:
        for log in logs:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            self.say(f"[bold]The end of {log.name}:[/]\n" + escape("\n".join(tail)))

    def show_proof(self, auditor: proof.Connection, expected: Sequence[Expectation], kill: proof.Kill) -> bool:
        """Print what the database holds now; True if every claim holds."""
        for lost in proof.read_lost_tries(auditor):
            waited = (lost.rescued_at - kill.at).total_seconds()
            self.say(f"  {lost.run_id}: taken over after {waited:.1f} s by process {lost.finished_by_pid}: {lost.finished_as}")
        self._show_files(proof.read_ends(auditor), expected)
        if self.verbose:
            self._show_statements(auditor)
        checks = proof.check_all(auditor, expected, kill)
        self.say("\n[bold]The proof[/], asked of the database by a login that can only read:")
        for check in checks:
            self.say(f"  {'[green]holds[/]' if check.holds else '[bold red]FAILS[/]'}  {check.claim:52}{escape(check.found)}")
        self._show_writer(auditor, expected, kill)
        return all(check.holds for check in checks)

    def close(self, holds: bool, seconds: float) -> None:
        verdict = "[bold green]Every claim holds.[/]" if holds else "[bold red]A claim does not hold.[/]"
        self.say(f"\n{verdict} {seconds:.1f} s")

    def _show_files(self, ends: dict[str, proof.RunEnd], expected: Sequence[Expectation]) -> None:
        self.say("")
        for want in expected:
            self.say(f"  {want.path.name:32}{_outcome(ends.get(want.run_id), want, self.verbose)}")

    def _show_statements(self, auditor: proof.Connection) -> None:
        self.say("\nfile, account, currency: opening balance, entries, computed closing balance, the bank's")
        for file, account, currency, opening, entries, computed, closing, reconciled in proof.read_statements(auditor):
            verdict = "=" if reconciled else "[red]differs[/]"
            self.say(f"  {file:32}{account:26}{currency:4}{opening:>14}{entries:>5}{computed:>14}  {verdict} {closing}")

    def _show_writer(self, auditor: proof.Connection, expected: Sequence[Expectation], kill: proof.Kill) -> None:
        writer = proof.read_writer(auditor, expected, kill)
        self.say(f"\n[bold]Who wrote this row?[/]\n  {proof.WHO_WROTE_TEXT.format(id=writer.get('id'))}")
        for name, value in writer.items():
            if value is not None and name not in ("id", "file"):
                self.say(f"  {name:14}{escape(str(value))}")


def _outcome(end: proof.RunEnd | None, want: Expectation, verbose: bool) -> str:
    if end is None:
        return "[red]missing[/]"
    if end.state == "success":
        return f"{_count(want.statements, 'statement')}, {_count(want.entries, 'entry', 'entries')}, {want.eur:,} EUR"
    return "refused: " + escape(end.failure if verbose else want.reason)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
