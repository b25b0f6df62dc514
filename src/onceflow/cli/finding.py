"""What `onceflow doctor` says: one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["cause", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`cause`: work stands still because of it. `warning`: work goes on, but something is wrong. `info`: this is how it stands."""

    code: str
    severity: Severity
    what: str
    do: str = ""
