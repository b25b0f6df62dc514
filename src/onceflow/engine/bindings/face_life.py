"""The life of a step's face: alive while the step runs, dead for ever after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from onceflow.db.driver_errors import is_aborted, sqlstate_of
from onceflow.db.guard import check_statement, spoils_session
from onceflow.errors import AuthoringError, LostContext, StepAborted, StepSplit


class FaceLife:
    """Says whether a face may be used, checks its SQL and counts its running calls (`with life:`)."""

    __slots__ = ("alive", "calls", "error", "pooled", "savepoint", "spoiled", "step", "undone")

    def __init__(self, step: str, pooled: bool, savepoint: str) -> None:
        self.step = step
        self.savepoint = savepoint  # how one is written with this driver
        self.pooled = pooled  # behind pgbouncer: closing our connection does not end the server's session
        self.alive = True
        self.calls = 0
        self.spoiled = False  # the session holds something the next step's opening cannot undo
        self.undone = ""  # why the step's transaction cannot be completed any more
        self.error: BaseException | None = None  # the database's last one, but for those that only follow from it

    def __enter__(self) -> None:
        self.check()
        self.calls += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.calls -= 1
        if error is not None:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """Remember an error of the database's: the step's function may catch it and go on."""
        if sqlstate_of(error) is not None and not is_aborted(error):
            self.error = error

    @contextmanager
    def noting(self) -> Iterator[None]:
        """For what is sent past `with life:`."""
        try:
            yield
        except Exception as error:
            self.note(error)
            raise

    def explain(self, error: BaseException) -> BaseException:
        """The error to report for a step: where one only says that the transaction is aborted, what has aborted it and what to do."""
        cause = self.error
        if not is_aborted(error) and not (self.undone and isinstance(error, StepSplit) and cause is not None):
            return error
        if cause is not None and sqlstate_of(cause) in ("40001", "40P01"):
            return cause  # whoever catches a serialization failure is run again all the same
        what = f" ({type(cause).__name__}: {str(cause).partition(chr(10))[0]})" if cause is not None else ""
        told = StepAborted(
            f"step {self.step!r} went on after a database error that it had caught{what}; PostgreSQL takes nothing more in a transaction after an "
            f"error, so the step's writes were rolled back. Around what may fail use a savepoint: {self.savepoint}"
        )
        told.__cause__ = cause or error
        return told

    def check(self) -> None:
        """Raise LostContext if the step is over, StepSplit if its transaction is."""
        if not self.alive:
            raise LostContext(
                f"the connection of step {self.step!r} was used after the step ended; nothing was sent. "
                "Await or join all work a step starts before it returns, and do not keep its connection."
            )
        if self.undone:
            raise StepSplit(f"step {self.step!r} cannot go on: {self.undone}")

    def check_text(self, sql: str) -> None:
        """Raise as `check`, or StepSplit if the text holds a command that a step must not send."""
        self.check()
        check_statement(sql)
        if not self.spoiled and spoils_session(sql):
            if self.pooled:
                raise StepSplit(
                    f"PREPARE, DEALLOCATE, LISTEN and LOAD are refused in step {self.step!r}: behind pgbouncer they outlive "
                    "the step and reach other clients. Leave preparing to the driver, and listening to a connection of your own."
                )
            self.spoiled = True

    def refuse(self, call: str) -> StepSplit:
        """The error for a driver's method that would end the step's transaction or connection."""
        self.check()
        return StepSplit(
            f"{call} is refused in step {self.step!r}: the engine opens the connection and commits the step's writes "
            "together with its record. Remove it; raise to undo the step, use a savepoint to undo a part of it: "
            f"{self.savepoint}"
        )

    def busy(self) -> AuthoringError:
        """The error for a send or a start in the midst of something else on the connection, which will not end before it."""
        return AuthoringError(
            f"the connection of step {self.step!r} is in use: nothing can be sent or started with it in the midst of a stream. "
            "Read the stream to its end first."
        )

    def still_running(self) -> StepSplit:
        """The error for a step that returned while one of its calls was still going on."""
        return StepSplit(
            f"step {self.step!r} returned while a call on its connection was still running; its writes are rolled "
            "back. Await or join all work a step starts before it returns."
        )
