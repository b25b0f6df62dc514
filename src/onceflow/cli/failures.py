"""How commands fail: one red line that says what, where and what to do; and an exit code that scripts can rely on.

0   done
1   the answer is no: a run that failed, a ledger with findings, a cause found by doctor
2   a mistake of the user's: a wrong option, name, state or setting
3   the database cannot be reached
70  a defect of Onceflow's: with a traceback

With --json standard output has {"error": {"type": ..., "message": ...}} too, so that a program always finds one document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from onceflow.errors import InvalidArgument, NoDatabase, OnceflowError

NEGATIVE, MISTAKE, UNREACHABLE, DEFECT = 1, 2, 3, 70
_LOGGING = ("worker", "scheduler", "triggerer", "dev")  # their --json is the form of the log, on stderr


class GuardedGroup(TyperGroup):
    """The root of all commands: turns the errors of any command, and of the command line itself, into a line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            _check_arguments(given)
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            code = _fail(error, given)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _check_arguments(given: list[str]) -> None:
    """What is no UTF-8 comes from the system as lone surrogates, which neither a database nor a terminal takes."""
    for number, argument in enumerate(given, 1):
        if any("\ud800" <= char <= "\udfff" for char in argument):
            raise InvalidArgument(f"argument {number} of the command line is not UTF-8: {argument!a}. Is the terminal's encoding UTF-8?")


def _fail(error: Exception, given: list[str]) -> int:
    """Tells an error; its exit code. One that is a defect is raised again."""
    from onceflow.db.driver_errors import explain

    if isinstance(error, typer.Abort):
        typer.echo("Aborted.", err=True)
        return NEGATIVE
    if (known := explain(error)) is not None:
        _tell(type(known).__name__, str(known).strip(), given)
        return UNREACHABLE if isinstance(known, NoDatabase) else MISTAKE
    if not hasattr(error, "format_message"):
        raise error
    context: Any = getattr(error, "ctx", None)  # of Typer, or of the Click below an older one
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help(), err=True)
    else:
        command = context.command_path if context is not None else "onceflow"
        _tell("UsageError", f"{' '.join(error.format_message().split()).rstrip('.')}. See: {command} --help", given)
    return MISTAKE


def _tell(name: str, message: str, given: list[str]) -> None:
    from onceflow.logs import mask_secrets

    text = mask_secrets(message)
    wants_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    if wants_json:
        typer.echo(json.dumps({"error": {"type": name, "message": text}}, ensure_ascii=False), err=given[0] in _LOGGING)
    if not wants_json or given[0] not in _LOGGING:
        typer.secho(f"{name}: {text}", fg="red", err=True)


def print_failure(error: OnceflowError) -> None:
    """The error on stderr, red on a terminal; its class's name leads, as it is what one searches for."""
    _tell(type(error).__name__, str(error).strip(), [])
