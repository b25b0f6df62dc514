"""Clear, retry and mark: what runs again, and what stands."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.errors import LeaseLost
from tests.sql.dag_plans import Node, begin_run, end, register, states
from tests.sql.engine_calls import Engine


def work(engine: Engine, fates: dict[str, Any] | None = None) -> list[str]:
    """Runs whatever is claimable to its end; the ids of what ran. A fate is a state, or the output of a success."""
    ran = []
    while tasks := engine.claim(50):
        for task in tasks:
            fate = (fates or {}).get(task.task_id, "null")
            ran.append(task.task_id)
            end(engine, task, "failed" if fate == "failed" else "success", "null" if fate == "failed" else fate)
    return ran


def clear(engine: Engine, **options: Any) -> list[tuple[str, int]]:
    """What was cleared: (task_id, map_index)."""
    given = "".join(f", {name} => %s" for name in options)
    rows = engine.sql(f"select task_id, cleared_map_index from onceflow.clear_tasks('graph'{given})", *options.values())
    engine.tick()
    return [(str(task), int(index)) for task, index in rows]


def run_state(engine: Engine, run: int) -> str:
    return str(engine.sql("select state from onceflow.dag_run where id = %s", run)[0][0])


def test_a_retry_runs_what_failed_and_what_waited_for_it(one: Engine) -> None:
    """One item of ten fails for good: only it and the join run again, nine are reused; the ledger shows both tries."""
    register(one, {"list": Node(), "item": Node(("list",), mapping=(("x", "list"),)), "join": Node(("item",))})
    run = begin_run(one)
    end(one, one.claim_one(), "success", str(list(range(10))))
    items = one.claim(50)
    for number, task in enumerate(items):
        end(one, task, "failed" if number == 4 else "success", str(number))
    assert run_state(one, run) == "failed" and states(one, run)["join"] == "upstream_failed"
    one.retry(run)
    one.tick()
    again = one.claim(50)
    assert [t.ti for t in again] == [items[4].ti]
    end(one, again[0], "success", "4")
    assert work(one) == ["join"]
    assert run_state(one, run) == "success"
    entries = one.sql("select epoch, to_state from onceflow.step_ledger where ti = %s and final order by id", items[4].ti)
    assert entries == [(0, "failed"), (1, "success")]
    assert one.sql("select * from onceflow.verify_ledger()") == []


def test_clear_takes_what_is_below_with_it(one: Engine) -> None:
    """By regular expression, with downstream; a dry run shows the same and changes nothing."""
    register(one, {"a": Node(), "b": Node(("a",)), "c": Node(("b",)), "d": Node(("a",))})
    run = begin_run(one)
    assert sorted(work(one)) == ["a", "b", "c", "d"]
    for dry_run in (True, False):
        assert clear(one, task_regex="^b$", downstream=True, dry_run=dry_run) == [("b", -1), ("c", -1)]
        assert run_state(one, run) == ("success" if dry_run else "running")
    assert work(one) == ["b", "c"] and run_state(one, run) == "success"
    assert clear(one, task_regex="^c$", upstream=True) == [("a", -1), ("b", -1), ("c", -1)]
    assert work(one) == ["a", "b", "c"]
    with pytest.raises(Exception, match="no regular expression"):
        clear(one, task_regex="(")
    assert run_state(one, run) == "success"


def test_a_cleared_running_task_cannot_write_and_starts_anew(one: Engine, two: Engine) -> None:
    """Its old process finds its lease lost; the new try is claimable at once; nothing sticks."""
    nodes = {"a": Node(), "b": Node(("a",))}
    register(one, nodes)
    register(two, nodes)
    run = begin_run(one)
    old = one.claim_one()
    clear(two, task_regex="^a$")
    with pytest.raises(LeaseLost):
        end(one, old, "success")
    new = two.claim_one()
    assert (new.ti, new.epoch, new.try_number) == (old.ti, 1, 2)
    end(two, new, "success")
    assert work(two) == ["b"] and run_state(two, run) == "success"
    moved = one.sql("select from_state, to_state from onceflow.step_ledger where ti = %s order by id", old.ti)
    assert moved == [("running", "restarting"), ("running", "success")]


def test_a_map_shrinks_and_grows_when_its_source_runs_again(one: Engine) -> None:
    """5 items become 3, then 6: the rest is removed, then comes back, none is doubled."""
    register(one, {"list": Node(), "item": Node(("list",), mapping=(("x", "list"),)), "join": Node(("item",))})
    run = begin_run(one)
    for count in (5, 3, 6):
        ran = work(one, {"list": str(list(range(count)))})
        assert ran == ["list", *["item"] * count, "join"]
        found = one.sql("select map_index, state, conf -> 'x' from onceflow.ti where run = %s and task_id = 'item' order by map_index", run)
        assert [(i, s) for i, s, _ in found] == [(n, "success" if n < count else "removed") for n in range(max(count, len(found)))]
        assert [x for _, s, x in found if s == "success"] == list(range(count))
        assert run_state(one, run) == "success"
        clear(one, task_regex="^list$", downstream=True)
    assert one.sql("select tis, (select count(*) from onceflow.ti where run = r.id) from onceflow.run r where id = %s", run) == [(8, 8)]


def test_one_mapped_instance_runs_again_alone(one: Engine) -> None:
    """Clear with a map index leaves its siblings as they are."""
    register(one, {"item": Node(mapping=(("x", [1, 2, 3]),)), "join": Node(("item",))})
    run = begin_run(one)
    work(one)
    assert clear(one, task_regex="^item$", map_index=1, downstream=True) == [("item", 1), ("join", -1)]
    assert work(one) == ["item", "join"] and run_state(one, run) == "success"


def test_marking_a_parent_success_frees_its_child(one: Engine) -> None:
    """An upstream_failed child runs; the act is in the ledger with its actor."""
    register(one, {"a": Node(), "b": Node(("a",)), "c": Node(("b",))})
    run = begin_run(one)
    assert work(one, {"a": "failed"}) == ["a"] and run_state(one, run) == "failed"
    one.sql("select onceflow.mark_task(%s, 'a', 'success', actor => 'ada')", run)
    one.tick()
    assert work(one) == ["b", "c"]
    assert states(one, run) == {"a": "success", "b": "success", "c": "success"} and run_state(one, run) == "success"
    marked = "select kind, from_state, to_state, actor from onceflow.step_ledger where dag_run = %s and kind = 'human' order by id"
    assert one.sql(marked, run) == [("human", "none", "marked", "ada"), ("human", "failed", "success", "ada")]
    assert one.sql("select * from onceflow.verify_ledger()") == []
    with pytest.raises(Exception, match="not running"):
        one.sql("select onceflow.mark_task(%s, 'a', 'running')", run)


def test_clearing_an_undecided_run_changes_only_what_was_meant(one: Engine) -> None:
    """In a living run: a join that waits goes on waiting, for the cleared one too."""
    register(one, {"a": Node(), "b": Node(), "join": Node(("a", "b"))})
    run = begin_run(one)
    a, b = one.claim(2)
    end(one, a, "success")
    clear(one, task_regex="^a$")
    end(one, b, "success")
    assert states(one, run) == {"a": "queued", "b": "success", "join": "no_status"}
    assert work(one) == ["a", "join"] and run_state(one, run) == "success"


def test_cleared_runs_wait_for_a_place(one: Engine) -> None:
    """max_active_runs holds for runs that are cleared: the second waits for the first to end again."""
    register(one, {"a": Node()})
    one.sql("update onceflow.dag set max_active_runs = 1 where dag_id = 'graph'")
    for _ in range(2):
        begin_run(one)
        work(one)
    assert len(clear(one)) == 2
    assert work(one) == ["a"]
    one.tick()
    assert work(one) == ["a"]


def test_what_is_not_there_is_refused_by_name(one: Engine) -> None:
    """A dag or task that does not exist."""
    with pytest.raises(Exception, match="there is no dag nothing"):
        one.sql("select * from onceflow.clear_tasks('nothing')")
    register(one, {"a": Node()})
    with pytest.raises(Exception, match="has no task b"):
        one.sql("select onceflow.mark_task(%s, 'b', 'success')", begin_run(one))
