"""The dag processor: files of dags, parsed by processes of their own, in a real scheduler."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.database import TestDatabase
from tests.processes import WorkerProcess, start_process, worker_environment

DAG = """
from onceflow import dag, task

@task
def load() -> int:
    return {number}

@dag
def {name}():
    load()
"""
CANARY = "canary-7c1f0e"


@dataclass
class Place:
    """A folder of dags and the schedulers that parse it."""

    db: TestDatabase
    folder: Path
    logs: Path
    started: list[WorkerProcess] = field(default_factory=list)

    def write(self, name: str, source: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder / ".draft"
        draft.write_text(textwrap.dedent(source).lstrip("\n"))
        draft.chmod(0o644)
        file.parent.chmod(0o755)
        draft.rename(file)  # at once, as editors do
        return file

    def write_dag(self, name: str, number: int = 1, *, dag_id: str | None = None) -> Path:
        return self.write(f"{name}.py", DAG.format(name=dag_id or Path(name).name, number=number))

    def start(self, **settings: str) -> WorkerProcess:
        env = {**worker_environment(self.db), "ONCEFLOW_DAG_DIR_LIST_INTERVAL": "0.2", **settings}
        command = [sys.executable, "-m", "onceflow", "scheduler", "--dags", str(self.folder), "--log-level", "debug"]
        self.started.append(start_process(command, env=env, log=self.logs / f"scheduler-{len(self.started)}.log"))
        return self.started[-1]

    def dag(self, dag_id: str) -> dict[str, Any]:
        return dict(self.db.sql("select to_jsonb(d) from onceflow.dag d where dag_id = %s", dag_id)[0][0])

    def error(self, file: Path | str) -> str | None:
        """The error of a file as a whole."""
        found = self.db.sql("select stacktrace from onceflow.import_error where filename = %s and not is_warning", str(file))
        return str(found[0][0]) if found else None

    def wait(self, condition: Callable[[], Any], timeout: float = 30) -> Any:
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, "the condition did not come true\n" + "\n".join(one.log_tail() for one in self.started)
            assert all(one.running or one.process.returncode in (0, -9) for one in self.started), "\n".join(one.log_tail() for one in self.started)
            time.sleep(0.02)
        return value

    def wait_for_dag(self, dag_id: str, where: str = "is_active", timeout: float = 30) -> None:
        self.wait(lambda: self.db.sql(f"select 1 from onceflow.dag where dag_id = %s and {where}", dag_id), timeout)

    def wait_for_error(self, file: Path, timeout: float = 30) -> str:
        return str(self.wait(lambda: self.error(file), timeout))


@pytest.fixture
def place(db: TestDatabase) -> Iterator[Place]:
    """A folder that everybody may read, as dags folders are; its schedulers are ended with the test."""
    made = Path(tempfile.mkdtemp(prefix="onceflow-parse-", dir="/tmp"))
    made.chmod(0o755)
    logs = made / "logs"
    logs.mkdir(mode=0o700)
    dags = made / "dags"
    dags.mkdir(mode=0o755)
    found = Place(db, dags, logs)
    yield found
    for one in found.started:
        print(f"--- {one.log.name} ---\n{one.log_text()[-6000:]}")
        one.end()
    shutil.rmtree(made)


def test_dags_of_a_folder_are_known_and_nothing_of_them_runs_in_the_scheduler(place: Place) -> None:
    """Files of subfolders and helpers too; each dag's file, folder and time of parsing are told; what .onceflowignore names is left out."""
    place.write("shared/__init__.py", "")
    place.write("shared/names.py", "import os\nNAME = 'made'\nPID = os.getpid()")
    place.write("_private.py", "raise RuntimeError('helpers are not read by themselves')")
    file = place.write(
        "team/sales.py",
        """
        import os
        from onceflow import DAG, EmptyOperator
        from shared.names import NAME, PID

        assert PID == os.getpid()
        with DAG(f"{NAME}_{os.getppid() == 0 or 'child'}", description="from a subfolder") as dag:
            EmptyOperator("begin")
        """,
    )
    place.write("old/broken.py", "import onceflow\nraise RuntimeError")
    place.write("tests.py", "raise RuntimeError")
    place.write(".onceflowignore", "# not these\nold/\ntest*\n")
    place.write_dag("plain")
    scheduler = place.start()
    place.wait_for_dag("plain")
    place.wait(lambda: place.db.sql("select 1 from onceflow.dag where dag_id like 'made%%'"))
    (dag_id,) = place.db.sql("select dag_id from onceflow.dag where dag_id like 'made%%'")[0]
    made = place.dag(dag_id)
    assert (made["fileloc"], made["processor_subdir"], made["description"]) == (str(file), str(place.folder), "from a subfolder")
    assert made["last_parsed_time"] and not made["has_import_errors"] and made["version"]
    assert place.db.sql("select count(*) from onceflow.import_error") == [(0,)]
    assert place.db.sql("select count(*) from onceflow.dag where kind = 'step'") == [(1,)]
    assert scheduler.terminate() == 0


def test_an_edit_is_seen_within_two_seconds_and_only_what_changed_is_parsed(place: Place) -> None:
    """With the default settings: a new version of that dag, the others' files untouched; what is only touched is not parsed; a helper's edit reaches its readers."""
    place.write("helper.py", "TASKS = ['one']")
    place.write("lists.txt", "a")
    place.write(
        "reads.py",
        """
        from pathlib import Path
        from onceflow import DAG, EmptyOperator
        from helper import TASKS

        with DAG("reads") as dag:
            for name in TASKS + Path(__file__).with_name("lists.txt").read_text().split():
                EmptyOperator(name)
        """,
    )
    other = place.write_dag("other")
    edited = place.write_dag("edited")
    place.start(ONCEFLOW_DAG_DIR_LIST_INTERVAL="0.5")  # as it is, when nobody sets it
    for name in ("reads", "other", "edited"):
        place.wait_for_dag(name)
    place.wait(lambda: place.db.sql("select count(*) from onceflow.dag_file") == [(4,)])
    before = {name: place.dag(name) for name in ("reads", "other", "edited")}

    def await_version(name: str, within: float) -> float:
        started = time.monotonic()
        place.wait_for_dag(name, f"version > {place.dag(name)['version']}", within)
        return time.monotonic() - started

    within_s = []
    for count in range(2, 7):  # a machine that is busy may be late once, not each time
        place.write("edited.py", DAG.format(name="edited", number=2).replace("    load()", "    " + " >> ".join(["load()"] * count)))
        within_s.append(await_version("edited", 30))
        if within_s[-1] < 2:
            break
    assert within_s[-1] < 2, f"seen after {within_s} s"
    place.write("helper.py", "TASKS = ['one', 'two']")
    await_version("reads", 30)
    place.write("lists.txt", "a b")
    await_version("reads", 30)
    os.utime(other)
    later = place.write_dag("later")
    place.wait_for_dag("later")
    assert place.dag("other") == before["other"]
    assert place.db.sql("select count(*) from onceflow.dag_version where dag_id = 'reads'") == [(3,)]
    assert place.db.sql("select array_agg(key order by key) from onceflow.dag_file, jsonb_object_keys(sources) key where filename = %s", str(later)) == [
        (["", str(later)],)
    ]
    assert str(edited) == place.dag("edited")["fileloc"]


def test_a_scheduler_that_starts_anew_parses_nothing_again(place: Place) -> None:
    """What was parsed is remembered, whoever parsed it; a file edited meanwhile is parsed."""
    for name in ("one", "two"):
        place.write_dag(name)
    first = place.start()
    place.wait_for_dag("one")
    place.wait_for_dag("two")
    assert first.terminate() == 0
    times = {name: place.dag(name)["last_parsed_time"] for name in ("one", "two")}
    place.write_dag("two", 2)
    place.start()
    place.wait(lambda: place.dag("two")["last_parsed_time"] != times["two"])
    assert place.dag("one")["last_parsed_time"] == times["one"]


def test_a_removed_file_takes_its_dags_along_and_brings_them_back(place: Place) -> None:
    """The dag is inactive, its run stays and waits; with the file it is active again, in the same version. A file that moves keeps its dag active."""
    file = place.write_dag("goes")
    place.write_dag("moves")
    place.start()
    place.wait_for_dag("goes")
    place.wait_for_dag("moves")
    version = place.dag("goes")["version"]
    run = place.db.sql("select (onceflow.start_run('goes') ->> 'run')::bigint")[0][0]
    file.unlink()
    (place.folder / "moves.py").rename(place.folder / "moved.py")
    place.wait_for_dag("goes", "not is_active")
    place.wait_for_dag("moves", f"is_active and fileloc = '{place.folder}/moved.py'")
    assert place.db.sql("select state is null from onceflow.run where id = %s", run) == [(True,)]
    place.write_dag("goes")
    place.wait_for_dag("goes")
    assert place.dag("goes")["version"] == version
    place.wait(lambda: place.db.sql("select count(*) from onceflow.import_error") == [(0,)])


def test_bad_files_are_their_own_errors(place: Place) -> None:
    """An endless loop, a syntax error, an eater of memory, one that crashes, one that exits, a cycle: each is told with file, line and traceback,
    within its time; the others are served; fixing clears."""
    bad = {
        "endless": ("import os\nx = 1\nwhile True:\n    pass\n", "dagbag_import_timeout", "line 3"),
        "stubborn": (
            "import time\nwhile True:\n    try:\n        time.sleep(9)\n    except BaseException: pass\n",
            "dagbag_import_timeout",
            "could not be interrupted",
        ),
        "syntax": ("from onceflow import dag\ndef broken(:\n    pass\n", "SyntaxError", "line 2"),
        "hungry": ("eaten = []\nwhile True:\n    eaten.append(bytearray(50_000_000))\n", "parsing_memory_mb", "line 3"),
        "crashes": ("import ctypes\nctypes.string_at(0)\n", "ended", "SIGSEGV"),
        "leaves": ("import os\nos._exit(7)\n", "ended", "code 7"),
        "raises": ("def f():\n    return {}['no']\n\nf()\n", "KeyError", "line 2, in f"),
        "lacks": ("import not_there_at_all\n", "ModuleNotFoundError", "Install not_there_at_all"),
        "cycle": (
            "from onceflow import dag, EmptyOperator\n@dag\ndef cycle():\n    a, b = EmptyOperator('a'), EmptyOperator('b')\n    a >> b >> a\n",
            "cycle",
            "a >> b >> a",
        ),
    }
    place.write_dag("good")
    files = {name: place.write(f"{name}.py", source) for name, (source, _, _) in bad.items()}
    started = time.monotonic()
    scheduler = place.start(ONCEFLOW_DAGBAG_IMPORT_TIMEOUT="2", ONCEFLOW_PARSING_MEMORY_MB="256", ONCEFLOW_PARSING_PROCESSES="3")
    place.wait_for_dag("good", timeout=15)
    for name, (_, what, where) in bad.items():
        told = place.wait_for_error(files[name], timeout=40)
        assert what in told and where in told and str(files[name]) in told, (name, told)
        print(name, round(time.monotonic() - started, 1), told, sep="\n")
    assert place.db.sql("select count(*) from onceflow.import_error") == [(len(bad),)] and not place.dag("good")["has_import_errors"]
    for name in bad:
        place.write_dag(name)
    for name in bad:
        place.wait_for_dag(name)
    place.wait(lambda: place.db.sql("select count(*) from onceflow.import_error") == [(0,)])
    assert scheduler.running


def test_a_broken_edit_keeps_the_dag_as_it_was(place: Place) -> None:
    """It stays active, in its version, and says that its file has errors; two dags of one id are told, and the first is served."""
    file = place.write_dag("kept")
    place.start()
    place.wait_for_dag("kept")
    before = place.dag("kept")
    place.write("kept.py", "raise RuntimeError('half an edit')")
    assert "half an edit" in place.wait_for_error(file)
    assert place.dag("kept") == {**before, "has_import_errors": True}
    place.write_dag("kept", 5)
    place.wait_for_dag("kept", "not has_import_errors")
    twin = place.write_dag("twin", dag_id="kept")
    assert f"two files declare kept: {file} and {twin}" in place.wait_for_error(twin)
    assert place.dag("kept")["fileloc"] == str(file)
    file.unlink()
    place.wait_for_dag("kept", f"fileloc = '{twin}' and is_active")
    place.wait(lambda: place.db.sql("select count(*) from onceflow.import_error") == [(0,)])


def test_a_parameter_made_by_chance_makes_no_version_each_time(place: Place) -> None:
    """The first plan is kept, the culprit is named as a warning, and the dag has no errors; an edit makes a version."""
    source = """
        import uuid
        from onceflow import DAG, EmptyOperator, task

        @task
        def use(x): ...

        with DAG("chance", params={"fixed": 1, "token": str(uuid.uuid4())}) as dag:
            EmptyOperator("begin")
        with DAG("mapped") as other:
            use.expand(x=[str(uuid.uuid4())])
        """
    file = place.write("chance.py", source)
    first = place.start()
    place.wait_for_dag("mapped")
    warnings = dict(place.db.sql("select dag_id, stacktrace from onceflow.import_error where is_warning and filename = %s", str(file)))
    assert "params, token was" in warnings["chance"] and "task use, mapping" in warnings["mapped"]
    assert not place.dag("chance")["has_import_errors"]
    assert first.terminate() == 0
    place.db.sql("update onceflow.dag_file set sources = '{}'")  # so that it is parsed again, as after an update of Onceflow
    place.start()
    place.wait(lambda: place.db.sql("select 1 from onceflow.dag_file where sources <> '{}'"))
    assert place.db.sql("select count(*) from onceflow.dag_version") == [(2,)]
    place.write("chance.py", source.replace('"fixed": 1', '"fixed": 2'))
    place.wait(lambda: place.db.sql("select count(*) from onceflow.dag_version where dag_id = 'chance'") == [(2,)])


HUNTER = """
import os, pathlib, socket, sys
from onceflow import DAG, EmptyOperator

found = []
def look(where, text):
    if {canary!r} in text or "ONCEFLOW_DSN" in text:
        found.append(where)

look("environment", repr(os.environ))
for path in [*pathlib.Path("/proc").glob("[0-9]*/environ"), *pathlib.Path("/proc").glob("[0-9]*/cmdline"), *pathlib.Path("/proc").glob("[0-9]*/fd/*")]:
    if path.parent.name == str(os.getpid()) and path.name == "cmdline":
        continue
    try:
        look(str(path), path.read_bytes()[:100_000].decode(errors="replace") if path.parent.name != "fd" else os.readlink(path))
    except OSError:
        pass
for number in range(3, 300):
    try:
        kind = os.readlink(f"/proc/self/fd/{{number}}")
    except OSError:
        continue
    if not kind.startswith("socket:") and "/dev/null" not in kind and "urandom" not in kind and "/proc" not in kind and "hunter.py" not in kind:
        found.append(f"open: {{kind}}")
try:
    with open(f"/proc/{parent}/mem", "rb") as memory:
        found.append("memory")
except OSError:
    pass
try:
    os.kill({parent}, 0)
    found.append("signal")
except OSError:
    pass
try:
    socket.create_connection(("127.0.0.1", {port}), 2)
    found.append("network")
except OSError:
    pass
with DAG("hunter", description=f"found: {{found}}"):
    EmptyOperator("begin")
"""


@pytest.mark.parametrize("user", ["nobody", "root"])
def test_a_file_finds_no_secret_of_the_scheduler(place: Place, user: str) -> None:
    """Neither in its environment nor in /proc (environment, memory, command line, open files of any process), no open file, no network; nor can it
    signal the scheduler. As another user, and as the same one without privileges (a folder that only its owner may read)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        scheduler = place.start(CANARY=CANARY, ONCEFLOW_PARSING_USER=user)
        place.write("hunter.py", HUNTER.format(canary=CANARY, parent=scheduler.pid, port=server.getsockname()[1]))
        place.wait_for_dag("hunter")
        assert place.dag("hunter")["description"] == "found: []"


def test_of_two_schedulers_one_parses_and_the_other_takes_over(place: Place) -> None:
    """No file is parsed twice; when the first is gone without a word, the second parses what changes."""
    place.write_dag("one")
    first = place.start()
    place.wait_for_dag("one")
    second = place.start()
    place.wait(lambda: "scheduler ready" in second.log_text())
    place.write_dag("two")
    place.wait_for_dag("two")
    assert place.db.sql("select pid from onceflow.dag_folder") == [(first.pid,)]
    first.terminate()
    place.write_dag("three")
    place.wait_for_dag("three")
    assert place.db.sql("select pid from onceflow.dag_folder") == [(second.pid,)]
