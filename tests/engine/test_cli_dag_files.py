"""Commands about dag files, against a database that a parser has written to."""

from __future__ import annotations

import json

from onceflow.cli.dag_drawing import draw_mermaid, draw_tree
from tests.database import TestDatabase
from tests.engine.test_cli import Cli, cli
from tests.sql.test_dag_files import claim, declare, save, say, task

__all__ = ["cli"]
DIAMOND = [
    task("a", downstream=[1, 2]),
    task("b", ix=1, upstream=[0], downstream=[3], mapping=[["x", {"literal": []}]], group="g"),
    task("c", ix=2, upstream=[0], downstream=[3]),
    task("d", ix=3, upstream=[1, 2], trigger_rule="all_done"),
]


def test_errors_are_shown_where_people_look(cli: Cli, db: TestDatabase) -> None:
    """With file, line and traceback; `dags list`, `dags show` and doctor name them; a warning is no error."""
    claim(db, 1)
    warning = {"dag_id": "shaky", "text": "dag shaky is another each time the file is read: params, token"}
    save(
        db,
        say("/dags/good.py", declare("good", "/dags/good.py", task("x"))),
        say("/dags/shaky.py", declare("shaky", "/dags/shaky.py", task("x")), warnings=[warning]),
    )
    assert "params, token" in cli("dags", "errors").stdout
    save(db, say("/dags/good.py", error='/dags/good.py: KeyError (line 3)\n\nTraceback (most recent call last):\n  File "/dags/good.py", line 3'))
    told = cli("dags", "errors", code=1).stdout
    assert "/dags/good.py: KeyError (line 3)" in told and "Traceback" in told
    assert [row["is_warning"] for row in json.loads(cli("dags", "errors", "--json", code=1).stdout)] == [False, True]
    assert json.loads(cli("dags", "errors", "shaky", "--json").stdout)[0]["dag_id"] == "shaky"
    assert "1 import error; see them with: onceflow dags errors" in cli("dags", "list").stderr
    assert "KeyError (line 3)" in cli("dags", "show", "good").stdout
    found = json.loads(cli("doctor", "good", "--json", code=1).stdout)["findings"]
    assert any(finding["code"] == "import_error" and "KeyError (line 3)" in finding["what"] for finding in found)


def test_a_dag_is_shown_in_its_order(cli: Cli, db: TestDatabase) -> None:
    """Tasks as a tree, the versions with their living runs; the graph as Mermaid, of an earlier version too."""
    claim(db, 1)
    file = "/dags/four.py"
    save(db, say(file, declare("four", file, task("only"))))
    save(db, say(file, declare("four", file, *DIAMOND, source="2")))
    shown = cli("dags", "show", "four").stdout
    assert "a\n├── b  (mapped)\n└── c\n    └── d  (all_done; also after b)" in shown
    assert [(v["number"], v["is_current"]) for v in json.loads(cli("dags", "show", "four", "--json").stdout)["versions"]] == [(2, True), (1, False)]
    assert "t0 --> t1" in cli("dags", "graph", "four").stdout
    assert 't0["only"]' in cli("dags", "graph", "four", "--version", "1").stdout
    assert "it has 2, 1" in cli("dags", "graph", "four", "--version", "9", code=2).stderr
    cli("dags", "delete", "four", code=2)
    save(db, gone=(file,))
    cli("dags", "delete", "four")


def test_drawings_hold_any_plan() -> None:
    """A chain of thousands, groups within groups, labels, quotes."""
    chain = [{"ix": ix, "task_id": f"t{ix}", "upstream": [ix - 1] if ix else [], "downstream": []} for ix in range(5000)]
    assert len(list(draw_tree({"tasks": chain}))) == 5000
    groups = [{"group_id": "g", "parent": None}, {"group_id": 'g."i"', "parent": "g"}]
    plan = {"tasks": [task('say "hi"', downstream=[1], group='g."i"'), task("b", ix=1, upstream=[0])], "groups": groups, "labels": [[0, 1, "yes"]]}
    drawn = "\n".join(draw_mermaid(plan))
    assert 'subgraph g1 ["g.#quot;i#quot;"]\n            t0["say #quot;hi#quot;"]' in drawn and 't0 -->|"yes"| t1' in drawn
