"""What a parser found, as SQL keeps it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.database import TestDatabase

FOLDER = "/dags"


def task(name: str, **options: Any) -> dict[str, Any]:
    plain = {"operator": "@task", "trigger_rule": "all_success", "upstream": [], "downstream": [], "retries": 0, "weight": 1, "pool": "default_pool"}
    return {"ix": 0, "task_id": name, "pool_slots": 1, "is_leaf": True, "listens": [], **plain, **options}


def declare(dag_id: str, file: str, *tasks: dict[str, Any], source: str = "1") -> dict[str, Any]:
    plan = {"tasks": list(tasks), "listens": []}
    return {"dag_id": dag_id, "kind": "dag", "fileloc": file, "code_version": "v", "source": source, "plan": plan}


def say(file: str, *dags: dict[str, Any], error: str | None = None, **more: Any) -> dict[str, Any]:
    return {"filename": file, "sources": {file: "1"}, "dags": list(dags), "error": error, "warnings": [], "parse_s": 0.1, **more}


def save(db: TestDatabase, *files: dict[str, Any], gone: tuple[str, ...] = (), owner: int = 1) -> list[str] | None:
    found = db.sql("select onceflow.save_dag_files(%s, %s, %s, %s)", FOLDER, owner, json.dumps(files), list(gone))
    return found[0][0]  # type: ignore[no-any-return]


def claim(db: TestDatabase, owner: int, lease_s: float = 10) -> bool:
    return bool(db.sql("select onceflow.claim_folder(%s, %s, 'host', 7, %s)", FOLDER, owner, lease_s)[0][0])


def dags(db: TestDatabase) -> dict[str, tuple[bool, bool, int | None]]:
    rows = db.sql("select d.dag_id, d.is_active, d.has_import_errors, v.number from onceflow.dag d left join onceflow.dag_version v on v.id = d.version")
    return {name: (active, broken, number) for name, active, broken, number in rows}


def test_one_owner_at_a_time(db: TestDatabase) -> None:
    """Nobody takes a folder whose owner was seen within the lease; who lost it saves nothing; one that leaves is followed at once."""
    assert claim(db, 1) and claim(db, 1) and not claim(db, 2)
    assert save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x")))) == []
    assert claim(db, 2, 0) and not claim(db, 1)
    assert save(db, say("/dags/b.py", declare("b", "/dags/b.py", task("x")))) is None
    assert dags(db) == {"a": (True, False, 1)}
    db.sql("select onceflow.leave_folder(%s, 2)", FOLDER)
    assert claim(db, 1)


def test_a_dag_goes_with_the_last_file_that_declares_it(db: TestDatabase) -> None:
    """It closes when no file has it any more; an error closes nothing and marks its dags; a file that lost a dag closes that one."""
    claim(db, 1)
    package = declare("packed", "/site/flows.py", task("x"))
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x")), declare("b", "/dags/a.py", task("x")), package), say("/dags/c.py", package))
    assert save(db, say("/dags/a.py", error="/dags/a.py: no")) == ["/dags/a.py"]
    assert dags(db) == {"a": (True, True, 1), "b": (True, True, 1), "packed": (True, True, 1)}
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x"))))
    assert dags(db) == {"a": (True, False, 1), "b": (False, False, 1), "packed": (True, True, 1)}
    save(db, gone=("/dags/a.py", "/dags/c.py"))
    assert not any(active for active, _, _ in dags(db).values())
    assert db.sql("select count(*) from onceflow.dag_file") == [(0,)]


def test_two_files_with_one_dag(db: TestDatabase) -> None:
    """The first is served, the second has the error; steps of one name are nobody's conflict, and never take a dag's row."""
    claim(db, 1)
    step = {"dag_id": "a", "kind": "step", "code_version": "any"}
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x")), {**step, "dag_id": "load"}))
    assert save(db, say("/dags/b.py", declare("a", "/dags/b.py", task("y"))), say("/dags/c.py", step, {**step, "dag_id": "load"})) == ["/dags/b.py"]
    assert db.sql("select fileloc, kind from onceflow.dag where dag_id = 'a'") == [("/dags/a.py", "dag")]
    assert save(db, say("/dags/b.py", declare("a", "/dags/b.py", task("y"))), gone=("/dags/a.py",)) == []
    assert db.sql("select fileloc from onceflow.dag where dag_id = 'a' and is_active") == [("/dags/b.py",)]


def test_the_same_source_gives_no_second_plan(db: TestDatabase) -> None:
    """Another source does; what is refused for its pool is looked at again under the same source, once the pool is there."""
    claim(db, 1)
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x"))))
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("by_chance"))))
    assert dags(db)["a"][2] == 1
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x"), source="2")))
    assert dags(db)["a"][2] == 1, "the same plan, however it came about"
    pooled = say("/dags/a.py", declare("a", "/dags/a.py", task("x", pool="none_such"), source="3"))
    assert save(db, pooled) == ["/dags/a.py"] and dags(db)["a"] == (True, True, 1)
    db.sql("select onceflow.set_pool('none_such', 3)")
    assert save(db, pooled) == [] and dags(db)["a"] == (True, False, 2)


def test_a_worker_leaves_to_the_scheduler_what_that_parses(db: TestDatabase) -> None:
    """While its folder's owner is seen; a worker by itself makes its own dags known."""
    claim(db, 1)
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("x"))))
    register = "select onceflow.register_worker(%s, 'h', 1, '{default}', 10, %s)"
    db.sql(register, 5, json.dumps([declare("a", "/dags/a.py", task("y"), source="folder"), declare("b", "/dags/b.py", task("y"), source="folder")]))
    assert dags(db) == {"a": (True, False, 1), "b": (True, False, 1)}
    db.sql("update onceflow.dag_folder set seen_at = seen_at - interval '1 hour'")
    db.sql(register, 6, json.dumps([declare("a", "/dags/a.py", task("y"), source="folder")]))
    db.sql(register, 7, json.dumps([declare("a", "/dags/a.py", task("z"), source="folder")]))
    assert dags(db)["a"][2] == 2


def test_only_what_is_gone_is_deleted(db: TestDatabase) -> None:
    """Not while its file is there, nor while a run lives; its runs stay, and a later dag of that id goes on counting versions."""
    claim(db, 1)
    file = say("/dags/a.py", declare("a", "/dags/a.py", task("x")))
    save(db, file)
    with pytest.raises(psycopg.Error, match="still declared in /dags/a"):
        db.sql("select onceflow.delete_dag('a')")
    run = db.sql("select (onceflow.start_run('a') ->> 'run')::bigint")[0][0]
    save(db, gone=("/dags/a.py",))
    with pytest.raises(psycopg.Error, match="has not ended"):
        db.sql("select onceflow.delete_dag('a')")
    db.sql("select onceflow.cancel_run(%s)", run)
    db.sql("select onceflow.delete_dag('a')")
    assert dags(db) == {} and db.sql("select count(*) from onceflow.run where dag_id = 'a'") == [(1,)]
    with pytest.raises(psycopg.Error, match="no dag a"):
        db.sql("select onceflow.delete_dag('a')")
    save(db, say("/dags/a.py", declare("a", "/dags/a.py", task("new"), source="9")))
    assert dags(db)["a"] == (True, False, 2)
