"""A parser process: imports dag files one after another, each as if it were alone, and tells what they declare.

`python -m onceflow.engine.parse_child SOCKET`. It has no secrets: see sandbox. A file that takes too long is interrupted where it is; one that
cannot be interrupted, and whatever else goes wrong, is for the parent to see.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from onceflow.authoring import registry
from onceflow.authoring.reading import reading_files
from onceflow.engine.dag_files import folder_of
from onceflow.engine.loader import add_to_path, describe_dags, import_file
from onceflow.engine.sandbox import enter_sandbox
from onceflow.errors import AuthoringError

_PACKAGE = str(Path(__file__).parents[1])
MOST_LINES = 60  # of a traceback


class ImportTimeout(BaseException):
    """The import of a dag file takes too long."""


class Parser:
    """Reads files of one folder."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder = folder_of(Path(options["root"]))
        self._prefix = f"{self._folder}/"
        self._limit_s, self._code_version, self._pause_new = options["limit_s"], options["code_version"], options["pause_new"]
        self._opened: set[str] = set()
        add_to_path(self._folder)
        sys.addaudithook(self._note_opened)
        self._kept = set(sys.modules)
        self._path, self._environment, self._cwd = sys.path.copy(), dict(os.environ), os.getcwd()

    def parse(self, file: str) -> dict[str, Any]:
        """What the file declares, or what is wrong with it; which files of the folder it read; may this process parse another?"""
        started = time.monotonic()
        self._opened.clear()
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        answer: dict[str, Any] = {"dags": [], "error": None, "warnings": []}
        try:
            answer["dags"] = self._read(file)
            if any("plan" in row for row in answer["dags"]) and time.monotonic() - started < self._limit_s / 3:
                answer["warnings"] = list(find_differences(answer["dags"], self._read(file)))
        except BaseException as error:
            answer["error"] = self._tell(file, error)
            answer["is_final"] = isinstance(error.__cause__, SyntaxError)  # no other process would see it otherwise
            answer["is_spent"] = isinstance(error, ImportTimeout | MemoryError) or isinstance(error.__cause__, ImportTimeout | MemoryError)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        answer["sources"] = sorted(self._opened | {file})
        answer["parse_s"] = time.monotonic() - started
        answer["is_spent"] = answer.get("is_spent", False) or threading.active_count() > 1 or _has_children()
        self._clean()
        return answer

    def _read(self, file: str) -> list[dict[str, Any]]:
        self._clean()
        with reading_files():
            import_file(self._folder, Path(file))
            rows = describe_dags(self._code_version, self._pause_new)
        self._opened |= {path for name, module in list(sys.modules.items()) if name not in self._kept and self._is_ours(path := _file_of(module)) and path}
        steps = {step.name: _file_of(sys.modules.get(step.reference.split(":")[0])) for step in registry.list_steps()}
        # What another file of the folder declares, and this one only imports, is told by that one.
        return [row for row in rows if (of := row.get("fileloc") or steps.get(row["dag_id"])) == file or not self._is_ours(of)]

    def _clean(self) -> None:
        """As it was before the last file: what lies outside of the folder stays imported."""
        registry.forget_all()
        for name in [name for name in sys.modules if name not in self._kept]:
            if self._is_ours(_file_of(sys.modules[name])):
                del sys.modules[name]
            else:
                self._kept.add(name)
        sys.path[:] = self._path
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        os.chdir(self._cwd)
        importlib.invalidate_caches()

    def _is_ours(self, path: str | None) -> bool:
        return bool(path) and str(path).startswith(self._prefix)

    def _note_opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Which files of the folder are read besides modules: SQL, YAML, lists of tables."""
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.join(self._cwd, os.fspath(arguments[0])) if not isinstance(os.fspath(arguments[0]), bytes) else ""
            if self._is_ours(path) and "__pycache__" not in path:
                self._opened.add(os.path.normpath(path))

    def _tell(self, file: str, error: BaseException) -> str:
        """What is wrong, where, and the traceback through the user's own code."""
        cause = error.__cause__ if isinstance(error, AuthoringError) and error.__cause__ is not None else error
        said = f"{file}: the import took longer than {self._limit_s:g} s (dagbag_import_timeout)" if isinstance(cause, ImportTimeout) else str(error)
        if isinstance(cause, MemoryError):
            said = f"{file}: the import needs more memory than a parser process may have (parsing_memory_mb)"
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not frame.filename.startswith((_PACKAGE, "<frozen importlib"))]
        if not said.startswith(file):
            said = f"{file}: {type(cause).__name__}: {said}"
        if isinstance(cause, ImportTimeout | MemoryError) and frames:
            said += f"; it was in line {next((f.lineno for f in reversed(frames) if f.filename == file), frames[-1].lineno)}"
        trail = "".join(traceback.format_list(frames[-MOST_LINES:]) + ([] if isinstance(cause, ImportTimeout) else traceback.format_exception_only(cause)))
        return f"{said}\n\nTraceback (most recent call last):\n{trail}".rstrip()


def find_differences(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Any:
    """What a file says otherwise when it is read twice: for each such dag, the place that is to blame."""
    others = {row["dag_id"]: row for row in second}
    for row in first:
        other = others.get(row["dag_id"])
        at, values = ("its dag_id", (row["dag_id"], "none")) if other is None else _first_difference(row, other)
        if at:
            yield {
                "dag_id": row["dag_id"],
                "text": f"dag {row['dag_id']} in {row['fileloc']} is another each time the file is read: {at} was {values[0]} and then {values[1]}. "
                "The first is kept. Something like uuid4(), random() or now() stands there: move it into a task, or use {{ ts }} or {{ run_id }}.",
            }


def _first_difference(one: Any, other: Any, at: str = "") -> tuple[str, tuple[str, str]]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            name = f"{at}, {key}" if at else "" if key == "plan" else str(key)
            if (found := _first_difference(one[key], other[key], name))[0]:
                return found
        return "", ("", "")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            task = left.get("task_id") if isinstance(left, dict) else None
            if (found := _first_difference(left, right, f"task {task}" if task else f"{at}[{index}]"))[0]:
                return found
        return "", ("", "")
    return ("", ("", "")) if one == other else (at or "the plan", (_show(one), _show(other)))


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise ImportTimeout


def _file_of(module: Any) -> str | None:
    return getattr(module, "__file__", None)


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _limit_memory(most_mb: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = most_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _receive(talk: socket.socket) -> dict[str, Any] | None:
    """None: the parent is gone."""
    read: Callable[[int], bytes] = lambda size: talk.recv(size, socket.MSG_WAITALL)  # noqa: E731
    head = read(4)
    return json.loads(read(struct.unpack("!I", head)[0])) if len(head) == 4 else None


def _send(talk: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    talk.sendall(struct.pack("!I", len(body)) + body)


def main() -> None:
    """Parses what it is told to, until the parent closes the socket."""
    talk = socket.socket(fileno=int(sys.argv[1]))
    options = _receive(talk)
    if options is None:
        return
    held = enter_sandbox(network=options["network"])
    os.listdir(folder_of(Path(options["root"])))  # raises, if this user may not: then the parent starts one that may
    _limit_memory(options["memory_mb"])
    parser = Parser(options)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what files print is no business of ours; workers log it
    _send(talk, {"ready": held})
    while (asked := _receive(talk)) is not None:
        _send(talk, parser.parse(asked["file"]))


if __name__ == "__main__":
    main()
