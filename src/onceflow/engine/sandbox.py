"""What keeps a process that imports dag files away from secrets, the network and other processes; as much as the system allows.

Linux only, by calls of the C library: elsewhere nothing here holds but a clean environment and the limits of time and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_PDEATHSIG, _DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 1, 4, 24, 38
_MOUNT_REC, _MOUNT_SLAVE, _MOUNT_SAFE = 0x4000, 0x80000, 0xE  # nosuid, nodev, noexec
_LAST_CAPABILITY = 63
_CAPABILITIES_V3 = 0x20080522


def hide_process() -> bool:
    """Has the kernel hide this process' environment, memory and open files from others of the same user (/proc, ptrace). They give no core dump then."""
    return _call("prctl", _DUMPABLE, 0, 0, 0, 0)


def die_with_parent(number: int) -> None:
    """Has the kernel send this process a signal when its parent dies, even by SIGKILL."""
    _call("prctl", _PDEATHSIG, number, 0, 0, 0)


def enter_sandbox(*, network: bool) -> list[str]:
    """Cuts this process off, before it imports anybody's code; answers what holds: "user" (other processes' memory and environment cannot be
    read), "processes" (it sees and ends only its own), "network" (it has none), "privileges" (it has none, and gets none).

    May fork: the caller goes on in the child, which dies with its parent; the parent waits for it and leaves with its code.
    """
    net = 0 if network else NEW_NET
    ids = os.geteuid(), os.getegid()
    held: list[str] = []
    for flags, names in (
        (NEW_USER | NEW_PIDS | NEW_MOUNTS | NEW_IPC | net, ["user", "processes", *(["network"] if net else [])]),
        (NEW_USER | net, ["user", *(["network"] if net else [])]),
        (net, ["network"]),
    ):
        if flags and _call("unshare", flags):
            held = names
            if flags & NEW_USER:
                _map_user(*ids)
            if flags & NEW_PIDS:
                _become_first_process()
            break
    if _drop_privileges():
        held.append("privileges")
    return held


def _map_user(uid: int, gid: int) -> None:
    """Under the same numbers as outside: what it may read and write of files stays as it was."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError):
            Path(f"/proc/self/{name}").write_text(text)


def _become_first_process() -> None:
    """Whoever makes a process namespace is not in it: a child is. What the child starts ends with it."""
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.closerange(0, 256)  # the child's end is seen by the end of its socket
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _call("mount", None, b"/", None, _MOUNT_REC | _MOUNT_SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _MOUNT_SAFE, None)  # a container may refuse; then /proc shows others, and lets nothing of them be read


def _drop_privileges() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    for number in range(_LAST_CAPABILITY):
        _call("prctl", _DROP_BOUND, number, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    return _call("capset", header, nothing) and _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _call(name: str, *arguments: object) -> bool:
    """Did a function of the C library succeed? Where there is none of that name it did not."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    return function is not None and function(*arguments) == 0
