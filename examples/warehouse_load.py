"""A folder of bank statements goes into a warehouse: a task for each file, a look at the quality, and then all of it or nothing is published.

In both:      eval "$(python examples/server.py)"
Terminal 1:   onceflow worker --dags examples/warehouse_load.py
Terminal 2:   python examples/warehouse_load.py [FOLDER]      MT940 (.sta) and camt.053 (.xml); else the statements of `make demo`

Two of the demo's five files are broken, so its load is held back. Say how much may be refused, and it is published:
              onceflow runs start warehouse_load --params '{"max_refused": 0.5}' --wait --dsn "$APP_DSN"
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg

import onceflow.demo
from onceflow import Client, Param, commit_with, dag, task
from onceflow.demo.statements import BrokenStatement, read_statement

FOLDER = str(Path(onceflow.demo.__file__).parent / "data")
SCHEMA = """
create table if not exists staged (run_id text, file text, account text, booked_on date, amount numeric, currency text);
create table if not exists entry (id bigint generated always as identity primary key, file text, account text, booked_on date, amount numeric, currency text);
create table if not exists load (run_id text primary key, files int, entries int, refused text[], is_published bool);"""


@dataclass
class Loaded:
    """What became of one file."""

    file: str
    entries: int = 0
    refused: str | None = None


@task
def list_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).iterdir() if path.suffix in (".sta", ".xml"))


@task(max_active_tis_per_dagrun=4, retries=2)
def load_file(file: str, run_id: str) -> Loaded:
    """Reads without a transaction, however long that takes; then the file's rows commit together with this instance. A broken file gives none."""
    name = Path(file).name
    try:
        statements = read_statement(file)
    except BrokenStatement as error:
        return Loaded(name, refused=str(error.reason))
    rows = [(run_id, name, one.account, entry.booked_on, entry.amount, entry.currency) for one in statements for entry in one.entries]
    with commit_with(psycopg.Connection) as conn:
        conn.cursor().executemany("insert into staged values (%s, %s, %s, %s, %s, %s)", rows)
    return Loaded(name, len(rows))


@task
def summarise(conn: psycopg.Connection, files: list[Loaded], run_id: str) -> float:
    """The reducer: it gets what all instances returned, in the order of the files. Answers which part was refused."""
    refused = [f"{one.file}: {one.refused}" for one in files if one.refused]
    conn.execute("insert into load values (%s, %s, %s, %s, false)", [run_id, len(files), sum(one.entries for one in files), refused])
    return len(refused) / max(len(files), 1)


@task.branch
def is_good_enough(refused: float, params: dict) -> str:
    return "publish" if refused <= params["max_refused"] else "hold_back"


@task
def publish(conn: psycopg.Connection, run_id: str) -> int:
    """Transactional: staged rows become entries, or stay what they are."""
    moved = conn.execute(
        """with moved as (delete from staged where run_id = %s returning *)
        insert into entry (file, account, booked_on, amount, currency) select file, account, booked_on, amount, currency from moved""",
        [run_id],
    )
    conn.execute("update load set is_published = true where run_id = %s", [run_id])
    return moved.rowcount


@task
def hold_back(conn: psycopg.Connection, run_id: str) -> list[str]:
    """Nothing of this load is published; its output names the files to mend."""
    conn.execute("delete from staged where run_id = %s", [run_id])
    return conn.execute("select refused from load where run_id = %s", [run_id]).fetchone()[0]


@dag(schedule=None, params={"folder": FOLDER, "max_refused": Param(0.1, type="number", minimum=0, maximum=1)})
def warehouse_load():
    files = load_file.expand(file=list_files("{{ params.folder }}"))
    is_good_enough(summarise(files)) >> [publish(), hold_back()]


def main() -> None:
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        conn.execute(SCHEMA)
    with Client(os.environ["APP_DSN"]) as client:
        run = client.trigger(warehouse_load, params={"folder": sys.argv[1] if len(sys.argv) > 1 else FOLDER})
        run.result(timeout_s=120)
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        files, entries, refused, is_published = conn.execute(
            "select files, entries, refused, is_published from load where run_id = %s", [run.run_id]
        ).fetchone()
    print(f"{files} files with {entries} entries: {'published' if is_published else 'held back'}", *refused, sep="\n  refused ")


if __name__ == "__main__":
    main()
