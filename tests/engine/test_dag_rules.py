"""Every row of the table of trigger rules, as dags that real workers run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.flows.rule_flows import ROWS, RULES
from tests.engine.local_worker import Engine

DAGS = Path(__file__).parent / "flows" / "rule_flows.py"
EXPECTED = {"run": "success", "SKIP": "skipped", "UF": "upstream_failed", "-": "no_status"}
STATES = "select task_id, state from onceflow.task_instance where run = %s"
SETTLED = """
    select count(*) = 0 from onceflow.task_instance where run = %s and state in ('queued', 'running') and task_id <> 'gate'"""


def remove_task(engine: Engine, run: int, task_id: str) -> None:
    """As when the task has left the dag."""
    (ix,) = engine.db.sql("update onceflow.ti set state = 'removed' where run = %s and task_id = %s returning ix", run, task_id)[0]
    engine.db.sql("select onceflow.release_tasks(%s, %s, 'removed')", run, ix)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_decides_as_the_table_says(engine: Engine, rule: str) -> None:
    """While some upstream tasks are not done the rule has decided what can be decided; once they are, every task and the run have ended."""
    gate = engine.make_gate()
    run = engine.client.trigger(f"rule_{rule}", params={"gate": str(gate)})
    engine.db.wait_for("select count(*) from onceflow.ti where run = %s", run.run)
    for task_id in ("removed_1", "removed_2"):
        remove_task(engine, run.run, task_id)
    engine.db.wait_for(SETTLED, run.run)
    states = dict(engine.db.sql(STATES, run.run))
    found = {row["upstreams"]: states[f"on_{row['upstreams'].replace('.', '_')}"] for row in ROWS}
    wrong = {row["upstreams"]: (found[row["upstreams"]], row[rule]) for row in ROWS if found[row["upstreams"]] != EXPECTED[row[rule]]}
    assert wrong == {}
    gate.touch()
    engine.db.wait_for("select state from onceflow.run where id = %s", run.run)
    states = dict(engine.db.sql(STATES, run.run))
    assert set(states.values()) <= {"success", "failed", "skipped", "upstream_failed", "removed"}
    assert engine.db.sql("select count(*) from onceflow.join_count where run = %s", run.run) == [(0,)]
