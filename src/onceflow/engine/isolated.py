"""`isolate="process"`: an external step in a process of its own, which a time limit can really end.

Run as `python -m onceflow.engine.isolated MODULE:QUALNAME`; arguments come as one JSON line, the outcome goes back as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from onceflow.authoring.context import Here, here
from onceflow.authoring.step import Step
from onceflow.codec import decode, decode_error, encode, encode_error
from onceflow.errors import AuthoringError, StepTimeout, WorkerLost

_TOLD = ("run_id", "dag_id", "step_key", "try_number", "idempotency_key")


async def run_isolated(step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Here) -> Any:
    """The step's result, or its error. A process that dies raises WorkerLost with its exit code."""
    limit = step.execution_timeout.total_seconds() if step.execution_timeout else None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "onceflow.engine.isolated",
        step.reference,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(limit) as timer:
            out, _ = await process.communicate(encode([list(args), kwargs, {name: getattr(place, name) for name in _TOLD}]).encode())
    except TimeoutError as error:
        if timer.expired():
            raise StepTimeout(f"step {step.name} exceeded its execution_timeout of {limit} s; its process was ended") from error
        raise
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0 or not out:
        raise WorkerLost(f"the process of step {step.name} ended with code {process.returncode} and no result")
    answer = json.loads(out.decode().splitlines()[-1])
    if "error" in answer:
        raise decode_error(answer["error"])
    return decode(answer["value"])


@dataclass(frozen=True)
class IsolatedPlace:
    """What a step in a process of its own knows of its run; whatever needs the engine is refused."""

    run_id: str
    dag_id: str
    step_key: str
    try_number: int
    idempotency_key: str

    def __getattr__(self, name: str) -> Any:
        raise AuthoringError(f"step {self.step_key} runs in a process of its own (isolate='process'): it can call no other step and no durable form there")


def main() -> None:
    module, _, qualname = sys.argv[1].partition(":")
    # What the step, or a program it runs, prints must not mix with the answer.
    real_out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    args, kwargs, told = decode(sys.stdin.read())
    here.set(IsolatedPlace(**told))
    step: Any = importlib.import_module(module)
    for part in qualname.split("."):
        step = getattr(step, part)
    try:
        value = step.fn(*args, **kwargs)
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
        answer = {"value": encode(value)}
    except Exception as error:
        answer = {"error": encode_error(error)}
    real_out.write(json.dumps(answer) + "\n")
    real_out.flush()


if __name__ == "__main__":
    main()
