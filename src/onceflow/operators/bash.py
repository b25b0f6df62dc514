"""`BashOperator`: a shell command as a task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.errors import AuthoringError, OnceflowError, SkipTask

log = logging.getLogger("onceflow.task.bash")
MOST_LINE = 1_000_000
KILL_S = 3.0  # a worker that drains waits for 5 s


class CommandFailed(OnceflowError):
    """The command ended with a code other than 0."""


class BashOperator(BaseOperator):
    """Runs a command with bash. Its output is logged line by line; the last line is the task's output.

    The command has a process group of its own: a time limit, a cancel or the end of the worker ends all of it, with SIGTERM and three seconds later
    with SIGKILL. Exit code 99 (or one of `skip_on_exit_code`) ends the task as skipped, any other but 0 fails it. `env` is the whole environment, or
    with append_env=True added to the worker's, whose own settings (ONCEFLOW_…) the command never sees. A remote effect: at least once.

    >>> BashOperator(task_id="pack", bash_command="tar czf /backup/{{ ds }}.tgz /data")   # doctest: +SKIP
    """

    template_fields = ("bash_command", "env", "cwd")
    template_ext = (".sh", ".bash")

    def __init__(
        self,
        task_id: str,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        append_env: bool = False,
        skip_on_exit_code: int | list[int] | None = 99,
        cwd: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(task_id, **options)
        self.bash_command, self.env, self.append_env, self.cwd = bash_command, env, append_env, cwd
        self.skip_on_exit_code = [] if skip_on_exit_code is None else skip_on_exit_code if isinstance(skip_on_exit_code, list) else [skip_on_exit_code]
        if self.skip_on_exit_code.count(0):
            raise AuthoringError(f"task {self.task_id} of dag {self.dag.dag_id}: skip_on_exit_code cannot be 0, which is success")
        self.follow_fields()

    async def execute(self, context: dict[str, Any]) -> str | None:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            self.bash_command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(context),
            cwd=self.cwd,
            start_new_session=True,
            limit=MOST_LINE,
        )
        try:
            last = await self._read_lines(process, str(context["ti"].task_id))
            code = await process.wait()
        finally:
            await _end_group(process)
        if code in self.skip_on_exit_code:
            raise SkipTask(f"the command of task {self.task_id} ended with code {code}")
        if code != 0:
            raise CommandFailed(f"the command of task {self.task_id} ended with code {code}; its last line: {last!r}")
        return last

    def _environment(self, context: dict[str, Any]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONCEFLOW_")}
        own = inherited if self.env is None else {**(inherited if self.append_env else {}), **{name: str(value) for name, value in self.env.items()}}
        run = {"DAG_ID": context["dag"].dag_id, "TASK_ID": self.task_id, "RUN_ID": context["run_id"], "LOGICAL_DATE": context["ts"]}
        return {**own, **{f"ONCEFLOW_CTX_{name}": value for name, value in run.items()}}

    async def _read_lines(self, process: asyncio.subprocess.Process, name: str) -> str | None:
        assert process.stdout is not None
        last = None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than MOST_LINE: what was read of it is gone
                continue
            if not line:
                return last
            last = line.decode(errors="replace").rstrip("\r\n")
            log.info("%s", last, extra={"task": name})


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Nothing of the command outlives the task."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_S):
                await process.wait()
                while _lives(process.pid):
                    await asyncio.sleep(0.05)
                break
    await asyncio.shield(process.wait())


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
