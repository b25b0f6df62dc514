"""`onceflow approvals` and `onceflow triggers`: what tasks wait for outside of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow.cli.actor import name_actor
from onceflow.cli.database import open_reads
from onceflow.cli.options import Dsn, Json, Run
from onceflow.cli.output import Column, print_json, print_rows

approvals = typer.Typer(no_args_is_help=True, help="What people are asked.")
triggers = typer.Typer(no_args_is_help=True, help="What deferred tasks wait for.")

APPROVALS: list[Column] = [
    ("run", lambda a: f"{a.dag_id}/{a.run_id}"),
    ("task", lambda a: a.task_id if a.map_index < 0 else f"{a.task_id}[{a.map_index}]"),
    ("subject", "subject"),
    ("options", lambda a: ", ".join(a.options)),
    ("approvers", lambda a: ", ".join(a.approvers) or "anybody"),
    ("until", "due_at"),
    ("answer", "answer"),
    ("actor", "actor"),
]
TRIGGERS: list[Column] = [
    ("id", "id"),
    ("class", "classpath"),
    ("dag", "dag_id"),
    ("run id", "run_id"),
    ("task", lambda t: t.task_id if t.map_index < 0 else f"{t.task_id}[{t.map_index}]"),
    ("since", "created_date"),
    ("triggerer", lambda t: "a person answers" if t.is_manual else t.triggerer or "none: start `onceflow triggerer`"),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many rows at most.")]


@approvals.command("list")
def list_approvals_(
    everything: Annotated[bool, typer.Option("--all", help="Those that were answered, too.")] = False, limit: Limit = 100, dsn: Dsn = None, json: Json = False
) -> None:
    """What waits for an answer, newest first."""
    from onceflow.db.waiting_queries import list_approvals

    with open_reads(dsn) as reader:
        print_rows(list_approvals(reader, everything, limit), APPROVALS, json, empty="nothing waits for an answer")


@approvals.command()
def answer(
    run: Run,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task that asks.")],
    decision: Annotated[str, typer.Argument(metavar="ANSWER", help="One of its options.")],
    comment: Annotated[str | None, typer.Option("--comment", help="Why; it stands in the ledger.")] = None,
    map_index: Annotated[int, typer.Option("--map-index", min=-1, help="Which instance of a mapped task.")] = -1,
    actor: Annotated[str | None, typer.Option("--actor", help="Who answers; by default you, as user@host.")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Answer; the first answer counts, and the task goes on with it."""
    from onceflow.db import trigger_calls
    from onceflow.db.queries import find_run
    from onceflow.db.sync_runner import run_call

    who = actor or name_actor()
    with open_reads(dsn) as reader:
        number = find_run(reader, run)
        run_call(reader, trigger_calls.answer_approval(number, task, decision, who, comment, map_index))
    if json:
        print_json({"run": str(number), "task_id": task, "answer": decision, "actor": who})
    else:
        typer.echo(f"{task} of run {run} was answered: {decision}, by {who}")


@triggers.command("list")
def list_triggers_(limit: Limit = 100, dsn: Dsn = None, json: Json = False) -> None:
    """The triggers, and who runs them."""
    from onceflow.db.waiting_queries import list_triggers

    with open_reads(dsn) as reader:
        print_rows(list_triggers(reader, limit), TRIGGERS, json, empty="nothing is deferred")
