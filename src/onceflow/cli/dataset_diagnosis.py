"""Why has no run taken what was told of datasets? Facts in, findings out, as diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceflow.cli.finding import Finding, Severity

if TYPE_CHECKING:
    from onceflow.db.dataset_queries import DatasetWait

LATE_S = 15.0
STUCK_S = 3600.0


def find_dataset_waits(waits: list[DatasetWait], dag_id: str | None, is_busy: bool) -> Iterator[Finding]:
    """`is_busy`: tasks of the dag run, so that it does not stand still."""
    for wait in waits:
        gathered = f"{wait.events or 'queue rows, but no'} events of {', '.join(wait.datasets)} wait for dag {wait.dag_id}" if wait.datasets else ""
        severity: Severity = "cause" if dag_id is not None else "warning" if (wait.queue_age_s or 0) > STUCK_S else "info"
        if wait.reason == "missing":
            lacks = _name(wait.missing)
            what = (
                f"{gathered}, which still waits for {lacks}" if gathered else f"dag {wait.dag_id} waits for {lacks}: nothing was told of it since its last run"
            )
            show = f"See who writes it with: onceflow datasets show {wait.missing[0] if wait.missing else 'URI'}"
            yield Finding("dataset_missing", "info" if is_busy or not gathered else severity, what, show)
        elif wait.reason == "paused" and gathered:
            yield Finding(
                "datasets_wait_paused", severity, f"{gathered}, which is paused", f"Unpause it: onceflow dags unpause {wait.dag_id}. One run takes all of them."
            )
        elif wait.reason == "max_active_runs" and gathered:
            full = f"{gathered}, which has {wait.active} of at most {wait.max_active_runs} runs (max_active_runs)"
            yield Finding(
                "datasets_wait_full",
                severity,
                full,
                "The first run that may begin takes all of them: wait for one to end, cancel one, or raise max_active_runs.",
            )
        elif wait.reason in ("inactive", "unsubscribed") and gathered:
            why = "whose file is gone" if wait.reason == "inactive" else "which runs by no dataset any more"
            yield Finding("datasets_wait_gone", severity, f"{gathered}, {why}", "Put its file back, or delete these rows of dataset_dag_run_queue.")
        elif wait.reason == "tick" and (wait.queue_age_s or 0) > LATE_S:
            yield Finding(
                "datasets_wait_tick",
                "cause",
                f"{gathered}, and a run may begin: no tick has made it",
                "Start a worker or scheduler; see its log for errors of run_tick.",
            )


def _name(uris: list[str]) -> str:
    return ", ".join(uris) or "another of its datasets"
