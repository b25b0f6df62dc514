"""`onceflow doctor`: why is nothing running?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.cli.database import open_dsn
from onceflow.cli.failures import NEGATIVE
from onceflow.cli.options import Dsn, Json
from onceflow.cli.output import print_json
from onceflow.errors import VersionSkew
from onceflow.settings import load_settings

if TYPE_CHECKING:
    from onceflow.cli.finding import Finding
    from onceflow.db.queries import Reader

LOOK_AGAIN_S = 2.0


def doctor(
    dag: Annotated[str | None, typer.Argument(metavar="DAG", help="A dag or workflow; without it the whole engine.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Why is nothing running? Names the one cause first, and what to do. Exit code 1 if something stands in the way."""
    from onceflow.cli.diagnosis import show_seal_lag
    from onceflow.cli.finding import Finding
    from onceflow.db.migrate import check_schema
    from onceflow.db.queries import open_reader

    lag: dict[str, Any] | None = None
    with open_dsn(dsn) as found:
        try:
            check_schema(found)
        except VersionSkew as error:
            findings = [Finding("schema_skew", "cause", str(error))]
        else:
            with open_reader(found) as reader:
                findings, lag = _examine(reader, dag)
    if json:
        print_json({"cause": findings[0] if findings and findings[0].severity == "cause" else None, "findings": findings, "seal_lag": lag})
    else:
        _print(findings)
        if lag is not None and not any(finding.code == "seal_lag" for finding in findings):
            typer.echo(f"Seals: {show_seal_lag(lag)}.")
    raise typer.Exit(NEGATIVE if any(f.severity == "cause" for f in findings) else 0)


def _examine(reader: Reader, dag: str | None) -> tuple[list[Finding], dict[str, Any]]:
    """What was found, and how far the seals are behind."""
    from onceflow.cli.diagnosis import diagnose
    from onceflow.cli.finding import Finding
    from onceflow.db.facts import read_facts

    facts, earlier = read_facts(reader, dag), None
    if any(lane.alive for lane in facts.lanes):  # do those tasks move?
        time.sleep(LOOK_AGAIN_S)
        facts, earlier = read_facts(reader, dag), facts
    findings = diagnose(facts, earlier)
    settings = load_settings()
    if facts.engine.is_pooled and settings.direct_dsn is None:
        findings.append(
            Finding(
                "pooler_without_direct_dsn",
                "warning",
                "the database is reached through a transaction pooler (pgbouncer), where LISTEN does not work: workers find new work by polling only",
                "Set ONCEFLOW_DIRECT_DSN to the server behind it.",
            )
        )
    if settings.dsn is not None and settings.step_dsn is None:
        findings.append(
            Finding(
                "roles_not_separated",
                "warning",
                "ONCEFLOW_STEP_DSN is not set here: a worker with these settings runs steps with the engine's own login",
                "Set it to the same database with login onceflow_step.",
            )
        )
    return findings, facts.engine.seal_lag


def _print(findings: list[Finding]) -> None:
    marks = {"cause": ("red", "The cause: "), "warning": ("yellow", "Warning: "), "info": (None, "")}
    if not findings:
        typer.echo("Nothing stands in the way.")
    for number, finding in enumerate(findings):
        colour, mark = marks[finding.severity]
        if number and finding.severity == "cause":
            mark = "Also: "
        typer.secho(f"{mark}{finding.what}", fg=colour)
        if finding.do:
            typer.echo(f"    {finding.do}")
