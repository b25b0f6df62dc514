"""Where the workflows of the fault tests stop until their test lets them go on.

Where a fault has to strike at an exact place, the code stands at a gate: it leaves a mark, and goes on when the test opens it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

GATES = Path(os.environ.get("FAULT_GATES", "/nowhere"))
LOOK_S = 0.01


def stand(gate: str, who: str) -> bool:
    """Leave a mark at a gate, and tell whether it is open. A gate that says exit ends the process at once, as a crash."""
    if not gate:
        return True
    (GATES / f"{gate}@{os.getpid()}@{who.replace('/', '.')}").touch()
    if (GATES / f"{gate}.exit").exists():
        os._exit(70)
    return (GATES / f"{gate}.open").exists()


def count_visits(name: str) -> int:
    """How often this was called with that name, over all processes."""
    with (GATES / name).open("a+") as file:
        file.write("x")
        return file.tell()


async def pass_gate(gate: str, who: str) -> None:
    """Wait at a gate in an async step."""
    while not stand(gate, who):
        await asyncio.sleep(LOOK_S)


def pass_gate_blocking(gate: str, who: str) -> None:
    """Wait at a gate in a def step."""
    while not stand(gate, who):
        time.sleep(LOOK_S)
