"""Every error Onceflow raises, in one tree.

The docstring of a class is its default message. Errors raised by the SQL functions carry a SQLSTATE of class OF;
`error_for_sqlstate` turns them into these classes, so Python and psql users see the same names.
"""

from __future__ import annotations


class OnceflowError(Exception):
    """Onceflow could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class LeaseLost(OnceflowError):
    """The task was rescued or cancelled while this worker held it; its writes were rolled back."""


class RunConflict(OnceflowError):
    """The run id is used, or the deduplicate text is held, by a run of the same dag with other arguments."""


class StepSplit(OnceflowError):
    """The step ended its own transaction; a step must not COMMIT, ROLLBACK, BEGIN or PREPARE: the engine commits its writes with its record."""


class NotFound(OnceflowError):
    """There is no such run, dag or task."""


class InvalidTransition(OnceflowError):
    """The state machine has no such arrow from the present state."""


class VersionSkew(OnceflowError):
    """The database schema is of another release than this code; run `onceflow db migrate` or upgrade the code."""


class AlreadyRecorded(OnceflowError):
    """The step already has its one final outcome in the ledger."""


class InvalidArgument(OnceflowError):
    """An argument is not acceptable to the engine."""


class NonDeterminismError(OnceflowError):
    """On replay the workflow's body took another path than the one recorded in the ledger."""


class LostContext(OnceflowError):
    """A step was called in a worker process, but outside any run (a bare thread or task); it would go unrecorded."""


class WrongColour(OnceflowError):
    """A plain `def` step was called from an `async def` body (use `await step.aio(...)`), or an async one from a `def` body."""


class WorkerLost(OnceflowError):
    """The task was rescued too often: every worker that took it died or stopped answering."""


class RunFailed(OnceflowError):
    """The run ended in state failed."""


class RunCancelled(OnceflowError):
    """The run was cancelled."""


class RunStopped(OnceflowError):
    """The run is stopped: it needs a worker with the code version it was recorded by."""


class SkipTask(OnceflowError):
    """Raised by a task of a dag to end itself as skipped; what it wrote is rolled back."""


class FailTask(OnceflowError):
    """Raised by a step to fail for good: it is not tried again."""


class SensorTimeout(FailTask):
    """What the sensor waits for did not come within its timeout."""


class TriggerFailed(OnceflowError):
    """The trigger that a task waits for raised an error of its own."""


class WaitTimeout(OnceflowError, TimeoutError):
    """The time to wait was over before the result was there."""


class StepTimeout(OnceflowError):
    """The step exceeded its execution_timeout."""


class StepIdle(OnceflowError):
    """The step held its transaction idle for longer than step_idle_s; compute outside and commit late with commit_with."""


class StepAborted(OnceflowError):
    """The step went on after a database error that it had caught; put a part that may fail into a savepoint."""


class StepDisconnected(OnceflowError):
    """The step's connection was lost again and again while it ran; its writes were rolled back each time."""


class EncodingError(OnceflowError, TypeError):
    """A value cannot be kept in the ledger."""


class DecodingError(OnceflowError):
    """A value in the ledger cannot be read back with this code."""


class AuthoringError(OnceflowError, TypeError):
    """A workflow or step is not written in a way the engine can run."""


class ImportFailed(AuthoringError):
    """A file of dags cannot be imported."""

    def __init__(self, message: str, file: str = "") -> None:
        super().__init__(message)
        self.file = file


class SettingsError(OnceflowError):
    """A setting is missing or wrong."""


class NoDatabase(OnceflowError):
    """The database cannot be reached, or there is none configured."""


class MigrationError(OnceflowError):
    """The schema could not be migrated; nothing was changed."""


SQLSTATES: dict[str, type[OnceflowError]] = {
    "OF001": LeaseLost,
    "OF002": RunConflict,
    "OF003": StepSplit,
    "OF004": NotFound,
    "OF005": InvalidTransition,
    "OF006": VersionSkew,
    "OF007": AlreadyRecorded,
    "OF008": InvalidArgument,
}


def error_for_sqlstate(sqlstate: str | None, message: str) -> OnceflowError | None:
    """The Onceflow error for a SQLSTATE of class OF; None for any other state."""
    found = SQLSTATES.get(sqlstate or "")
    return found(message) if found else None
