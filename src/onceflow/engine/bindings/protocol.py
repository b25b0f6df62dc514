"""What the engine asks of a step's connection, whatever the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from typing import Any, ClassVar, Protocol, runtime_checkable

APPLICATION_NAME = "onceflow-step"
ABANDON_TIMEOUT_S = 5.0

# What leaves nothing of the last step in a session: its settings, listeners, cursors, locks, temporary tables. The same as in sql/run_sql_steps.sql.
CLEAN_SESSION = "reset session authorization; reset all; unlisten *; close all; select pg_advisory_unlock_all(); discard temp; discard sequences"

SqlArgument = str | int | list[int] | None


class StepConnection(Protocol):
    """One physical connection in use by one step; it goes back to its binding at the end of finish or abandon.

    Order of calls: begin, then face and call as often as needed, then finish. If any of them raises, or instead of
    finish: abandon. Driver errors pass through unchanged.
    """

    async def begin(self, text: str) -> None:
        """Send `text` as one simple query (one round trip); it must leave a transaction open.

        A pooled connection the server closed meanwhile is replaced by a new one, once.
        """

    def face(self) -> Any:
        """The object for the user's function, of the annotated type; after finish or abandon every use raises."""

    async def call(self, sql: str, *args: SqlArgument) -> str | None:
        """Run one statement with $1-style arguments in the step's transaction; the first row's first column as text."""

    async def settle(self) -> bool:
        """Between two functions that share the transaction: send what a session holds back. Is the transaction surely the one that began?

        False where the client cannot tell: the server reports an application_name set in the opening for as long as its transaction lives.
        """

    async def finish(self, text: str) -> None:
        """End the face, flush a session, then send `text` as one simple query; it must end the transaction.

        Raises StepSplit if a call on the face is still running or the step's transaction is already gone.
        """

    def explain(self, error: BaseException) -> BaseException:
        """The error to report in place of one of the step's: StepAborted, with the original, where it only follows from one that was caught."""

    def is_broken(self) -> bool:
        """Is the connection itself gone? Then an error of the user's function may be just that."""

    async def abandon(self) -> None:
        """Roll back and end the face, in whatever state it is; a connection in doubt is cancelled and closed.

        Never raises a driver's error; may be called again, and after finish, without effect.
        """


@runtime_checkable
class BlockingSteps(Protocol):
    """The same for the kinds used by `def` functions, so that begin, function and finish share one thread and one hop.

    Call them in one thread, in the order of StepConnection, and `release()` afterwards on the event loop's thread.
    """

    def begin_blocking(self, text: str) -> None:
        """As begin."""

    def call_blocking(self, sql: str, *args: SqlArgument) -> str | None:
        """As call."""

    def finish_blocking(self, text: str) -> None:
        """As finish, without giving the connection back."""

    def abandon_blocking(self) -> None:
        """As abandon, without giving the connection back."""

    def release(self) -> None:
        """Give the connection back after a finish_blocking or abandon_blocking; again without effect."""


class Binding(ABC):
    """The connections of one kind in one process: opened when needed, at most `limit`, kept open between steps."""

    runs_in_thread: ClassVar[bool] = False
    """Is the face for `def` functions? Then the steps it opens are BlockingSteps too."""
    savepoint: ClassVar[str]
    """How a savepoint is written on its face."""

    def __init__(self, dsn: str, limit: int, pgbouncer: bool = False, executor: Executor | None = None) -> None:
        """`pgbouncer`: no named prepared statements. `executor`: where the blocking kinds run; default the loop's."""
        self.dsn = dsn
        self.limit = limit
        self.pgbouncer = pgbouncer
        self.executor = executor

    @classmethod
    def for_class(cls, annotated: type) -> type[Binding]:
        """The binding whose faces are instances of `annotated`."""
        return cls

    @abstractmethod
    async def open(self, step: str = "") -> StepConnection:
        """A connection for one step; waits while `limit` are in use. `step` names the step in error messages."""

    @abstractmethod
    async def close_all(self) -> None:
        """Close the idle connections; those in use are closed when their steps end."""
