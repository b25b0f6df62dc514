"""When a failed step is tried again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from onceflow.checks import LONGEST_S, check_duration, check_flag, check_whole, show
from onceflow.errors import AuthoringError, FailTask, InvalidArgument, NonDeterminismError, StepSplit

# Trying again cannot help: the code itself is at fault.
_NEVER = (NonDeterminismError, StepSplit, AuthoringError, InvalidArgument, FailTask)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to `retries` tries after the first one; delays in seconds.

    `exponential` doubles the delay on each further try, `max_delay` caps it, `jitter` takes a random part of up to that
    share off (0.1 = 90 to 100 %); no delay is longer than 100 years. `retry_on`: a tuple of exception classes, or a predicate;
    others fail at once.

    >>> RetryPolicy(retries=3, delay=timedelta(seconds=2), exponential=True).delay_s(3)
    8.0
    """

    retries: int = 0
    delay: timedelta = timedelta(0)
    exponential: bool = False
    max_delay: timedelta | None = None
    jitter: float = 0.0
    retry_on: tuple[type[BaseException], ...] | Callable[[BaseException], bool] = (Exception,)

    def __post_init__(self) -> None:
        check_whole(self.retries, "retries", 0, error=AuthoringError)
        check_duration(self.delay, "the delay of retries", zero=True, error=AuthoringError)
        check_flag(self.exponential, "exponential", error=AuthoringError)
        if self.max_delay is not None:
            check_duration(self.max_delay, "max_delay", zero=True, error=AuthoringError)
        if not isinstance(self.jitter, int | float) or isinstance(self.jitter, bool) or not 0 <= self.jitter <= 1:
            raise AuthoringError(f"jitter must be a share from 0 to 1, not {show(self.jitter)}")
        is_classes = isinstance(self.retry_on, tuple) and all(isinstance(one, type) and issubclass(one, BaseException) for one in self.retry_on)
        if not is_classes and (isinstance(self.retry_on, type) or not callable(self.retry_on)):  # a class is callable, and what it makes is true
            raise AuthoringError(f"retry_on must be a tuple of exception classes, such as (OSError,), or a function of the error, not {show(self.retry_on)}")

    def is_worth_it(self, error: BaseException) -> bool:
        """Whether this error may be tried again at all; how many tries are left is decided in SQL."""
        if isinstance(error, _NEVER):
            return False
        return isinstance(error, self.retry_on) if isinstance(self.retry_on, tuple) else self.retry_on(error)

    def delay_s(self, try_number: int) -> float:
        """Seconds to wait after the failure of try `try_number` (1 is the first)."""
        delay = self.delay.total_seconds() * (2 ** min(try_number - 1, 60) if self.exponential else 1)
        delay = min(delay, LONGEST_S if self.max_delay is None else self.max_delay.total_seconds())
        return delay * (1 - random.random() * self.jitter) if self.jitter else delay
