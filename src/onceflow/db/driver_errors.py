"""Reading the errors of asyncpg, psycopg and SQLAlchemy: the SQLSTATE, and whether the connection is gone."""

from __future__ import annotations

import re
import sys

from onceflow.errors import InvalidArgument, NoDatabase, OnceflowError, StepSplit, VersionSkew, error_for_sqlstate

# A server that was reached and does not want this login: asking again cannot help. libpq gives no SQLSTATE for it.
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(?:role|database) \".*\" does not exist|permission denied for database"
)


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error of asyncpg, psycopg or SQLAlchemy (unwrapped); None if it has none."""
    state = getattr(_unwrapped(error), "sqlstate", None)
    return state if isinstance(state, str) else None


def is_connection_lost(error: BaseException) -> bool:
    """Does the error say that the connection is gone, so whatever was in flight has an unknown outcome?

    >>> is_connection_lost(ConnectionResetError())
    True
    """
    error = _unwrapped(error)
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
    if isinstance(error, OSError):
        return not isinstance(error, TimeoutError) or bool(error.errno)  # a plain TimeoutError is a driver's own timeout
    return _is_lost_asyncpg(error) or _is_lost_psycopg(error)


def is_aborted(error: BaseException) -> bool:
    """Does the error only say that an earlier one has aborted the transaction?"""
    sqlalchemy_errors = sys.modules.get("sqlalchemy.exc")
    return sqlstate_of(error) == "25P02" or (sqlalchemy_errors is not None and isinstance(error, sqlalchemy_errors.PendingRollbackError))


def is_stale_plan(error: BaseException) -> bool:
    """Did a cached statement's result type, or a type in it, change under it? The same step on a new try succeeds: asyncpg has dropped what it knew."""
    if type(error).__name__ in ("InvalidCachedStatementError", "OutdatedSchemaCacheError"):
        return True
    return sqlstate_of(error) == "0A000" and "cached plan must not change result type" in str(error)


def is_refused(error: BaseException) -> bool:
    """Does the server refuse the login or the database's name, so that another attempt would end the same way?"""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("28") or state == "3D000"
    return _is_lost_psycopg(_unwrapped(error)) and _REFUSALS.search(str(error)) is not None


def explain(error: BaseException) -> OnceflowError | None:
    """What a driver's error means to whoever asked something of Onceflow, and what to do; None for one that is a defect of ours."""
    if isinstance(error, OnceflowError):
        return error
    if (own := translate(error)) is not None:
        return own
    state = sqlstate_of(error)
    if state is None and not type(_unwrapped(error)).__module__.startswith(("psycopg", "asyncpg")):
        return None
    text = str(_unwrapped(error)).strip().split("\n")[0]
    if state in ("3F000", "42P01", "42883", "42703") and "onceflow" in text:
        return VersionSkew(f"The database has no Onceflow schema, or one of another release ({text}). Run `onceflow db migrate`.")
    if state == "42501":
        return InvalidArgument(f"This login may not do that ({text}). Use one with role onceflow_operator, or onceflow_auditor to read only: --dsn URL.")
    if state == "25006":
        return NoDatabase(f"The database takes no writes ({text}). Is it a standby? Point ONCEFLOW_DSN to the primary.")
    if state in ("55P03", "57014", "53300"):
        return NoDatabase(f"The database is too busy ({text}). Try again.")
    if is_refused(error):
        return NoDatabase(f"The database refuses this login: {text}. Correct user, password or database in the DSN.")
    if is_connection_lost(error) or state is None:
        return NoDatabase(f"The connection to the database failed: {text}. Is the server up, and ONCEFLOW_DSN right?")
    return None


def translate(error: BaseException) -> OnceflowError | None:
    """The Onceflow error behind a driver's error of SQLSTATE class OF; None for any other."""
    plain = _unwrapped(error)
    state = sqlstate_of(plain)
    if state is None:
        return None  # an error of the user's own, whose __str__ may well fail
    if state == "34000" and '"onceflow_step"' in str(plain):
        return StepSplit("the step ended its own transaction before the engine could record it, or said CLOSE ALL: close your own cursors, by name.")
    return error_for_sqlstate(state, str(plain).split("\n")[0])


def _is_lost_asyncpg(error: BaseException) -> bool:
    driver = sys.modules.get("asyncpg")
    if driver is None or not isinstance(error, driver.InterfaceError | driver.InternalClientError):
        return False
    return "connection is closed" in str(error) or "connection was closed" in str(error) or is_stuck(error)


def is_stuck(error: BaseException) -> bool:
    """Was an asyncpg connection used after the server's last words (a FATAL error while it was idle) and before its end?

    Nothing was sent then: the protocol waits for the rest of an error message that never comes.
    """
    return type(error).__name__ == "InternalClientError" and re.search(r"another operation \([24]\)", str(error)) is not None


def _is_lost_psycopg(error: BaseException) -> bool:
    driver = sys.modules.get("psycopg")
    if driver is None or not isinstance(error, driver.OperationalError):
        return False
    # An OperationalError without SQLSTATE was made by libpq or psycopg: the server was not there to send one.
    return not isinstance(error, driver.errors.PipelineAborted)


def _unwrapped(error: BaseException) -> BaseException:
    sqlalchemy_errors = sys.modules.get("sqlalchemy.exc")
    if sqlalchemy_errors is not None and isinstance(error, sqlalchemy_errors.DBAPIError) and error.orig is not None:
        original: BaseException = error.orig
        return original
    return error
