"""The README's program survives its crash, wherever the power goes off."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onceflow import Client
from tests.database import TestDatabase
from tests.examples.blocks import read_blocks
from tests.examples.page_run import ROOT
from tests.processes import Workers

CRASH_BETWEEN = """\
    if current_run().try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)    # the power goes off: half of the money is on its way
"""
# A step's try that died with its worker left no trace at all, so the program itself must remember that it has crashed.
CRASH_INSIDE = """\
    if not os.path.exists("crashed"):
        open("crashed", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def read_program() -> str:
    """The first block of the README."""
    return read_blocks(ROOT / "README.md")[0].text


def crash_in_step(name: str) -> str:
    """The README's program, with its crash moved into a step, behind the update."""
    program = read_program()
    assert CRASH_BETWEEN in program
    head, found, rest = program.replace(CRASH_BETWEEN, "").partition(f"async def {name}(")
    update, end, rest = rest.partition("account, amount)\n")
    assert found and end
    return head + found + update + end + CRASH_INSIDE + rest


@pytest.mark.parametrize("program", [read_program(), crash_in_step("debit"), crash_in_step("credit")], ids=["between", "in debit", "in credit"])
def test_each_update_happens_once(program: str, db: TestDatabase, workers: Workers, tmp_path: Path) -> None:
    """One worker dies between the two steps, or inside one; the next finishes the run, and each balance changed once."""
    dags = tmp_path / "transfer.py"
    dags.write_text(program)
    with db.connect("app") as app:
        app.execute("create table account (id int primary key, balance int not null)")
        app.execute("insert into account values (1, 100), (2, 100)")
    first = workers.start(dags, env={"ONCEFLOW_LEASE_S": "2"})
    with Client(db.app_dsn) as client:
        run = client.trigger("transfer", params={"source": 1, "target": 2, "amount": 10})
        assert first.process.wait(timeout=30) == -signal.SIGKILL
        assert db.sql("select sum(balance) from account") in ([(200,)], [(190,)])
        workers.start(dags, env={"ONCEFLOW_LEASE_S": "2"})
        assert run.result(timeout_s=60) == "moved 10"
        entries = [(entry["step_key"], entry["to_state"]) for entry in run.steps()]
    assert db.sql("select id, balance from account order by id") == [(1, 90), (2, 110)]
    assert sorted(entries) == [("credit#0", "success"), ("debit#0", "success"), ("transfer", "rescued"), ("transfer", "success")]


def test_the_example_is_the_same_program() -> None:
    """examples/transfer.py and the quick start hold the README's program line by line."""
    lines = read_program()
    assert lines.partition("@step")[2] in (ROOT / "examples" / "transfer.py").read_text()
    assert lines in [block.text for block in read_blocks(ROOT / "docs" / "quickstart.md")]
