"""`DeadlineAlert`: somebody is called when a run has not ended in time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from onceflow.authoring.task_options import check_callbacks
from onceflow.checks import show
from onceflow.errors import AuthoringError

MOST_INTERVAL = timedelta(days=36_500)


@dataclass(frozen=True)
class DeadlineReference:
    """From which moment a deadline counts: DAGRUN_QUEUED_AT, when the run was made; DAGRUN_LOGICAL_DATE; FIXED_DATETIME(moment), naive ones in UTC."""

    kind: str
    at: datetime | None = None

    DAGRUN_QUEUED_AT: ClassVar[DeadlineReference]
    DAGRUN_LOGICAL_DATE: ClassVar[DeadlineReference]

    @classmethod
    def FIXED_DATETIME(cls, moment: datetime) -> DeadlineReference:
        """The same moment for every run."""
        if not isinstance(moment, datetime):
            raise AuthoringError(f"FIXED_DATETIME takes a datetime, not {show(moment)}; write for example datetime(2026, 1, 1)")
        return cls("fixed", moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)


DeadlineReference.DAGRUN_QUEUED_AT = DeadlineReference("queued_at")
DeadlineReference.DAGRUN_LOGICAL_DATE = DeadlineReference("logical_date")


@dataclass(frozen=True)
class DeadlineAlert:
    """A run that lives `interval` after the reference (before it, if negative) has `callback` called: a function of the context, or a list of these.

    At least once, by a worker, soon after that moment, whatever crashes meanwhile; a run that has ended by then calls nobody. It changes no state. Of a run that
    is cleared or retried after its end the deadline is over. Runs of a backfill, whose dates are past, have none.

    >>> DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(minutes=15), print).interval
    datetime.timedelta(seconds=900)
    """

    reference: DeadlineReference
    interval: timedelta
    callback: Any

    def __post_init__(self) -> None:
        if not isinstance(self.reference, DeadlineReference):
            raise AuthoringError(f"DeadlineAlert: reference must be one of DeadlineReference, such as DAGRUN_QUEUED_AT, not {show(self.reference)}")
        if not isinstance(self.interval, timedelta) or abs(self.interval) > MOST_INTERVAL:
            raise AuthoringError(f"DeadlineAlert: interval must be a timedelta of at most 100 years, not {show(self.interval)}")
        if self.callback is None or self.callback == []:
            raise AuthoringError("DeadlineAlert: callback must be a function of the context, or a list of these; else nobody is told")
        check_callbacks({"callback": self.callback}, "DeadlineAlert")

    def describe(self) -> dict[str, Any]:
        """For the dag's plan."""
        at = None if self.reference.at is None else self.reference.at.isoformat()
        return {"reference": self.reference.kind, "at": at, "interval_s": self.interval.total_seconds()}


def read_deadlines(given: Any, where: str) -> list[DeadlineAlert]:
    """What was given as a dag's `deadline`: one, a list, or None."""
    found = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
    for one in found:
        if not isinstance(one, DeadlineAlert):
            raise AuthoringError(f"{where}: deadline must be a DeadlineAlert, or a list of these, not {show(one)}")
    return found
