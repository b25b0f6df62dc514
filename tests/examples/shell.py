"""One shell for a page: what its console blocks export, start in the background or leave in the folder stays for the next."""

from __future__ import annotations

import atexit
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TIMEOUT_S = 90.0


@cache
def _make_command() -> str:
    """A folder with the command `onceflow`, as an installation puts it beside python."""
    folder = tempfile.TemporaryDirectory(prefix="onceflow-command-")
    atexit.register(folder.cleanup)
    command = Path(folder.name) / "onceflow"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m onceflow "$@"\n')
    command.chmod(0o755)
    return folder.name


class Shell:
    """A bash in a folder. `run` answers what a command printed (both streams) and its exit code."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        if not (Path(sys.executable).parent / "onceflow").exists():  # on the path without being installed
            path = f"{_make_command()}{os.pathsep}{path}"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env={**environment, "PATH": path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str, timeout_s: float = TIMEOUT_S) -> tuple[str, int]:
        """Run a command to its end; one that ends in & goes on in the background."""
        mark = f"--{secrets.token_hex(8)}--"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{mark} %d\\n' $?\n".encode())
        self._process.stdin.flush()
        output = self._read_until(mark, command, timeout_s)
        printed, _, code = output.rpartition(mark)
        return printed.removesuffix("\n"), int(code)

    def value(self, name: str) -> str:
        """The value of a variable of this shell."""
        return self.run(f'printf %s "${name}"')[0].strip()

    def close(self) -> None:
        """End the shell and all it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(timeout=10)

    def _read_until(self, mark: str, command: str, timeout_s: float) -> str:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        output = b""
        deadline = time.monotonic() + timeout_s
        while not (mark.encode() in output and output.endswith(b"\n")):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(pipe, 65536) if ready else b""
            if not part:
                reason = "the shell ended" if ready else f"not done after {timeout_s:g} s"
                raise AssertionError(f"$ {command}\n{output.decode(errors='replace')}\n{reason}")
            output += part
        return output.decode(errors="replace")
