"""A moment that comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from onceflow.authoring.deferral import BaseTrigger, TriggerEvent
from onceflow.checks import check_duration, check_moment


class DateTimeTrigger(BaseTrigger):
    """Fires at a moment, or at once when it is past; the event is the moment. A naive one is UTC."""

    def __init__(self, moment: datetime) -> None:
        self.moment = check_moment(moment, "DateTimeTrigger: moment")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (left_s := (self.moment - datetime.now(UTC)).total_seconds()) > 0:
            await asyncio.sleep(min(left_s, 60.0))  # clocks are set now and then
        yield TriggerEvent(self.moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires when a time has passed since it was made."""

    def __init__(self, delta: timedelta | None = None, moment: datetime | None = None) -> None:
        self.delta = delta
        super().__init__(moment or datetime.now(UTC) + check_duration(delta, "TimeDeltaTrigger: delta"))
