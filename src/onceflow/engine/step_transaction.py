"""What a transactional step and the late commit of an external one have in common: a transaction of the user's that the engine ends."""

from __future__ import annotations

from onceflow.db.calls import quote_text
from onceflow.db.driver_errors import sqlstate_of
from onceflow.db.tokens import mark_token
from onceflow.engine.claimed import Claimed
from onceflow.errors import StepIdle

# A cursor WITH HOLD is read to its end at COMMIT, and this one raises: no COMMIT but the engine's, which closes it first, commits what a step has
# written, whatever way it took past the guard (sql/complete_group.sql).
REFUSE_COMMIT = "declare onceflow_step cursor with hold for select onceflow.refuse_commit()"
LET_COMMIT = "close onceflow_step"


def adopt_token(ti: int, key: str, began_with: str, present: str) -> str:
    """SQL that makes an open transaction of ours go by the lease's present token, if another branch had it replaced.

    Without effect in a transaction that is not the one we began: its end is refused then, as it should be.
    """
    if began_with == present:
        return ""
    began, now = quote_text(mark_token(ti, began_with, key)), quote_text(mark_token(ti, present, key))
    return f"select set_config('onceflow.step', {now}, true) where current_setting('onceflow.step', true) = {began}; "


def find_idle_error(error: BaseException, open_s: float, idle_s: float, step: str, claimed: Claimed) -> StepIdle | None:
    """The named error, when a connection was most likely lost because its transaction was idle for too long."""
    if sqlstate_of(error) != "25P03" and open_s < idle_s:  # asyncpg shows no SQLSTATE for what came while it was idle
        return None
    return StepIdle(
        f"step {step} of {claimed} held its transaction idle for longer than step_idle_s ({idle_s:g} s); its writes were rolled back. "
        "Compute outside the transaction and commit late (an external step with commit_with), or raise step_idle_s."
    )
