"""Runs of dags: releases in the completing transaction, whatever the order of arrival; joins, maps, limits, admission."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.database import TestDatabase
from tests.sql.dag_plans import Node, begin_run, end, register, states
from tests.sql.engine_calls import Engine

RULES = (
    "all_success", "all_failed", "all_done", "all_done_min_one_success", "one_success", "one_failed", "one_done", "none_failed",
    "none_failed_min_one_success", "none_skipped", "all_skipped", "always",
)  # fmt: skip
ENDS = ("success", "failed", "skipped", "upstream_failed", "removed")
FINAL = {"run": None, "skip": "skipped", "upstream_failed": "upstream_failed"}


def test_a_rule_never_takes_back_what_it_decided(db: TestDatabase) -> None:
    """Whatever arrives later, in whatever number, a decision stands; and when all have arrived there is one."""
    for rule in RULES:
        for seen in itertools.chain.from_iterable(itertools.combinations_with_replacement(ENDS, n) for n in range(1, 4)):
            asked = "select onceflow.decide_trigger_rule(%s, %s::text[]), onceflow.decide_trigger_rule(%s, %s::text[])"
            early, late = db.sql(asked, rule, [*seen[:-1], None], rule, list(seen))[0]
            assert late != "wait", (rule, seen)
            assert early in ("wait", late), (rule, seen, early, late)


def test_two_last_arrivals_at_once_fire_a_join_once(db: TestDatabase, one: Engine, two: Engine) -> None:
    """The second waits for the first to commit and then sees it: the join is neither lost nor doubled."""
    nodes = {"a": Node(), "b": Node(), "join": Node(("a", "b"))}
    register(one, nodes)
    register(two, nodes)
    run = begin_run(one)
    (a,), (b,) = one.claim(1), two.claim(1)
    one.begin()
    end(one, a, "success")
    answer = two.blocks(lambda: end(two, b, "success"))
    one.commit()
    answer.result(20)
    assert states(one, run) == {"a": "success", "b": "success", "join": "queued"}
    assert db.sql("select count(*) from onceflow.ready") == [(1,)]
    end(one, one.claim_one(), "success")
    assert db.sql("select state from onceflow.run where id = %s", run) == [("success",)]
    assert db.sql("select count(*) from onceflow.join_count") == db.sql("select count(*) from onceflow.active_run") == [(0,)]


def test_a_rolled_back_end_releases_nothing(one: Engine) -> None:
    """The release is part of the transaction that ends the task."""
    register(one, {"a": Node(), "b": Node(("a",))})
    run = begin_run(one)
    task = one.claim_one()
    one.begin()
    end(one, task, "success")
    assert states(one, run)["b"] == "queued"
    one.rollback()
    assert states(one, run) == {"a": "running", "b": "no_status"}


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Node]:
    """A dag of up to eight tasks, with any rules."""
    count = draw(st.integers(1, 8))
    nodes = {}
    for number in range(count):
        above = draw(st.sets(st.sampled_from([f"t{n}" for n in range(number)]), max_size=3)) if number else set()
        nodes[f"t{number}"] = Node(tuple(sorted(above)), draw(st.sampled_from(RULES)))
    return nodes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=graphs(), fates=st.lists(st.sampled_from(["success", "failed"]), min_size=8, max_size=8), seed=st.integers(0, 2**16))
def test_the_outcome_does_not_depend_on_the_order(one: Engine, nodes: dict[str, Node], fates: list[str], seed: int) -> None:
    """Any dag, any fates of its tasks, ended in a random order: each task comes to what its rule says of its upstreams' last states."""
    fate = dict(zip(nodes, fates, strict=False))
    expected: dict[str, str] = {}
    for name, node in nodes.items():
        above = [expected[u] for u in node.upstream]
        decision = one.sql("select onceflow.decide_trigger_rule(%s, %s::text[])", node.rule, above)[0][0]
        expected[name] = FINAL[decision] or fate[name]
    register(one, nodes)
    run = begin_run(one)
    order = random.Random(seed)
    held: list[Any] = []
    while True:
        held += one.claim(order.randint(1, 3))
        if not held:
            break
        task = held.pop(order.randrange(len(held)))
        end(one, task, fate[task.task_id])
    assert states(one, run) == expected
    leaves = [expected[name] for name in nodes if not any(name in other.upstream for other in nodes.values())]
    state = "failed" if {"failed", "upstream_failed"} & set(leaves) else "success"
    assert one.sql("select state from onceflow.run where id = %s", run) == [(state,)]
    assert one.sql("select * from onceflow.verify_ledger()") == []
    assert one.sql("select count(*) from onceflow.join_count") == [(0,)]


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("[1, 2]", {"m[0]": 1, "m[1]": 2}),
        ('{"$tuple": ["x"]}', {"m[0]": "x"}),
        ('{"a": 1, "b": [2]}', {"m[0]": {"$tuple": ["a", 1]}, "m[1]": {"$tuple": ["b", [2]]}}),
        ('{"$order": ["z", "b"], "b": 1, "z": 2}', {"m[0]": {"$tuple": ["z", 2]}, "m[1]": {"$tuple": ["b", 1]}}),
        ('{"$dict": [[1, "x"]]}', {"m[0]": {"$tuple": [1, "x"]}}),
    ],
)
def test_a_task_is_expanded_over_what_its_upstream_gave(one: Engine, value: str, made: dict[str, Any]) -> None:
    """Lists, tuples and dicts; each instance has its item as its argument."""
    register(one, {"a": Node(), "m": Node(("a",), mapping=(("x", "a"),)), "end": Node(("m",))})
    run = begin_run(one)
    end(one, one.claim_one(), "success", value)
    found = one.sql("select format('m[%%s]', map_index), conf -> 'x' from onceflow.ti where run = %s and task_id = 'm' order by map_index", run)
    assert dict(found) == made
    for task in one.claim(10):
        end(one, task, "success")
    (last,) = one.claim(10)
    assert last.task_id == "end"


@pytest.mark.parametrize(
    ("value", "mapped", "below", "run_state"),
    [("[]", "skipped", "skipped", "success"), ("7", "failed", "upstream_failed", "failed"), ('{"$decimal": "1"}', "failed", "upstream_failed", "failed")],
)
def test_nothing_to_expand_over_is_skipped_and_no_list_is_a_failure(one: Engine, value: str, mapped: str, below: str, run_state: str) -> None:
    """An empty list skips the task; what is no list fails it by name; the run ends either way."""
    register(one, {"a": Node(), "m": Node(("a",), mapping=(("x", "a"),)), "end": Node(("m",))})
    run = begin_run(one)
    end(one, one.claim_one(), "success", value)
    assert states(one, run) == {"a": "success", "m": mapped, "end": below}
    assert one.sql("select state from onceflow.run where id = %s", run) == [(run_state,)]
    if mapped == "failed":
        assert "expanded over x, which is neither a list nor a dict" in one.sql("select error from onceflow.ti where run = %s and task_id = 'm'", run)[0][0]


def test_a_cross_product_varies_the_last_parameter_first(one: Engine) -> None:
    """Two mapped parameters: one instance for each pair."""
    register(one, {"m": Node(mapping=(("x", [1, 2]), ("y", ["a", "b", "c"])))})
    run = begin_run(one)
    found = one.sql("select conf ->> 'x' || (conf ->> 'y') from onceflow.ti where run = %s order by map_index", run)
    assert [text for (text,) in found] == ["1a", "1b", "1c", "2a", "2b", "2c"]


def test_no_more_runs_than_the_dag_allows(one: Engine) -> None:
    """max_active_runs holds; the next one, in the order of logical dates, is admitted when one ends; a paused dag's runs wait."""
    register(one, {"a": Node()})
    one.sql("update onceflow.dag set max_active_runs = 2, is_paused = true where dag_id = 'graph'")
    for _ in range(4):
        one.start("graph")
    one.tick()
    assert one.sql("select count(*) from onceflow.active_run") == [(0,)]
    one.sql("update onceflow.dag set is_paused = false where dag_id = 'graph'")
    one.tick()
    shown = "select state from onceflow.dag_run where dag_id = 'graph' order by logical_date"
    assert [s for (s,) in one.sql(shown)] == ["running", "running", "queued", "queued"]
    end(one, one.claim_one(), "success")
    one.tick()
    assert [s for (s,) in one.sql(shown)] == ["success", "running", "running", "queued"]
    one.cancel(one.sql("select run from onceflow.queued_run")[0][0])
    assert one.sql("select count(*) from onceflow.queued_run") == [(0,)]


def test_the_big_task_of_a_pool_gets_its_turn(one: Engine) -> None:
    """A task that needs 16 of 24 slots is not passed by for ever by small ones behind it; one that needs more than there are is refused by name."""
    one.sql("update onceflow.slot_pool set slots = 24 where pool_name = 'api_pool'")
    pool = {"pool": "api_pool"}
    nodes = {
        "x": Node(options=pool | {"pool_slots": 12, "weight": 9}),
        "y": Node(options=pool | {"pool_slots": 12, "weight": 8}),
        "big": Node(options=pool | {"pool_slots": 16, "weight": 7}),
        **{f"small{n}": Node(options=pool) for n in range(30)},
    }
    register(one, nodes)
    begin_run(one)
    first = one.claim(50)
    assert [t.task_id for t in first] == ["x", "y"]
    end(one, first[0], "success")
    assert one.claim(50) == []  # 12 slots are free, and kept for the big one
    end(one, first[1], "success")
    second = one.claim(50)
    assert second[0].task_id == "big" and len(second) == 9
    register(one, {"huge": Node(options=pool | {"pool_slots": 25})}, "other")
    refused = one.sql("select stacktrace from onceflow.import_error where dag_id = 'other'")
    assert refused == [("task huge of dag other needs 25 slots, but the pool api_pool has 24",)]


def test_tasks_have_limits_of_their_own(one: Engine) -> None:
    """max_active_tasks of the dag, and of one task in all runs or in one."""
    limits = {"one": {"max_tis": 3}, "two": {"max_in_run": 1}}
    nodes = {name: Node(mapping=(("x", [1, 2, 3]),), options=more) for name, more in limits.items()}
    register(one, nodes)
    one.sql("update onceflow.dag set max_active_tasks = 5 where dag_id = 'graph'")
    begin_run(one)
    begin_run(one)
    held = one.claim(50)
    assert sorted(t.task_id for t in held) == ["one"] * 3 + ["two"] * 2
    assert len({t.run for t in held if t.task_id == "two"}) == 2
    one.sql("update onceflow.dag set max_active_tasks = 4 where dag_id = 'graph'")
    end(one, held[0], "success")
    assert one.claim(50) == []
