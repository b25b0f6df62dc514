"""`ApprovalOperator`: a task that waits for a person's decision."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from onceflow.authoring.deferral import TaskDeferred
from onceflow.authoring.graph.operator import BaseOperator
from onceflow.checks import check_duration, check_text, show
from onceflow.errors import AuthoringError, FailTask, SkipTask


class ApprovalOperator(BaseOperator):
    """Asks people, and waits without a slot for the one answer: `onceflow approvals answer`, or `onceflow.answer_approval(…)` in SQL.

    `subject` and `body` are shown to them; `options` are the answers to choose from. `approvers`: names, or "role:name"; without any, whoever
    may operate. An answer of `refuse` (the last option) fails the task for good, or with `refuse_skips` skips it. After `timeout` the answer is `default`, or without one the
    task fails. Who said what, and when, stands in the ledger; of two answers, or an answer and the timeout, the first counts. The output is {"answer", "actor", "comment"}.

    >>> ApprovalOperator("release", subject="Pay {{ ds }}?", approvers=["role:treasury"], timeout=timedelta(hours=8))   # doctest: +SKIP
    """

    template_fields = ("subject", "body", "approvers")

    def __init__(
        self,
        task_id: str,
        *,
        subject: str,
        body: str | None = None,
        options: Sequence[str] = ("approve", "reject"),
        approvers: Sequence[str] = (),
        refuse: str | None = "reject",
        refuse_skips: bool = False,
        default: str | None = None,
        timeout: timedelta | None = None,
        **task_options: Any,
    ) -> None:
        super().__init__(task_id, **task_options)
        where = f"approval {self.task_id}"
        self.subject, self.body = check_text(subject, f"{where}: subject"), body
        self.choices, self.approvers = _texts(options, f"{where}: options"), _texts(approvers, f"{where}: approvers")
        if len(self.choices) < 1:
            raise AuthoringError(f"{where}: options must name at least one answer")
        self.refuse = refuse if refuse in self.choices else None
        self.refuse_skips, self.default = refuse_skips, default
        if default is not None and default not in self.choices:
            raise AuthoringError(f"{where}: default {default!r} is none of the options {self.choices}")
        self.timeout = None if timeout is None else check_duration(timeout, f"{where}: timeout", error=AuthoringError)
        self.follow_fields()

    def execute(self, context: dict[str, Any]) -> NoReturn:
        asked = {"subject": self.subject, "body": self.body, "options": self.choices, "approvers": list(self.approvers)}
        raise TaskDeferred(None, "execute_complete", {}, self.timeout, asked)

    def execute_complete(self, context: dict[str, Any], event: Any = None) -> dict[str, Any]:
        answer = dict(event)
        if answer["answer"] == self.refuse:
            why = f"{answer['actor'] or 'nobody'} answered {self.refuse}" + (f": {answer['comment']}" if answer["comment"] else "")
            raise SkipTask(why) if self.refuse_skips else FailTask(why)
        return answer

    def settle_wait(self, error: Exception) -> Any:
        if self.default is None or not isinstance(error, TimeoutError):
            raise error
        return {"answer": self.default, "actor": None, "comment": "nobody answered in time"}


def _texts(values: Any, where: str) -> list[str]:
    if isinstance(values, str) or not all(isinstance(one, str) and one for one in values):
        raise AuthoringError(f"{where} must be a list of texts, not {show(values)}")
    return list(values)
