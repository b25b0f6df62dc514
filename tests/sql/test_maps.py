"""Mapped tasks and mapped groups: what their instances wait for, and what becomes of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sql.dag_plans import Node, begin_run, end, register, states
from tests.sql.engine_calls import Engine, Task
from tests.sql.test_dag_resets import clear, run_state, work
from tests.sql.test_dag_runs import FINAL, RULES

OVER_LIST = (("x", "list"),)


def grouped(*upstream: str, rule: str = "all_success", over: Any = OVER_LIST, **options: Any) -> Node:
    """A task of the mapped group g."""
    return Node(upstream, rule, over, options, "g")


def finish(engine: Engine, fates: dict[str, Any]) -> list[str]:
    """Runs whatever is claimable to its end; what ran, as name or name[index]. A fate (by either) is failed, or an output."""
    ran = []
    while tasks := engine.claim(50):
        for task in tasks:
            name = shown(engine, task)
            fate = fates.get(name, fates.get(task.task_id, "null"))
            ran.append(name)
            end(engine, task, "failed" if fate == "failed" else "success", "null" if fate == "failed" else str(fate))
    return ran


def shown(engine: Engine, task: Task) -> str:
    index = engine.sql("select map_index from onceflow.ti where run = %s and id = %s", task.run, task.ti)[0][0]
    return task.task_id if index < 0 else f"{task.task_id}[{index}]"


def test_each_instance_of_a_group_goes_its_own_way(one: Engine) -> None:
    """Group of 4, item 0 fails: a one_failed reporter runs [0] only, next runs [1..3]; nothing is decided at -1; a join outside sees all eight."""
    nodes = {
        "list": Node(),
        "work": grouped("list"),
        "report": grouped("work", rule="one_failed"),
        "next": grouped("work"),
        "join": Node(("report", "next"), "all_done"),
    }
    register(one, nodes)
    run = begin_run(one)
    ran = finish(one, {"list": "[1, 2, 3, 4]", "work[0]": "failed"})
    assert ran[:5] == ["list", "work[0]", "work[1]", "work[2]", "work[3]"] and sorted(ran[5:-1]) == ["next[1]", "next[2]", "next[3]", "report[0]"]
    assert ran[-1] == "join"
    found = states(one, run)
    assert {name: found[name] for name in found if name.startswith("report")} == {
        "report[0]": "success", "report[1]": "skipped", "report[2]": "skipped", "report[3]": "skipped"
    }  # fmt: skip
    assert {found[f"next[{n}]"] for n in (1, 2, 3)} == {"success"} and found["next[0]"] == "upstream_failed"
    assert not {"work", "report", "next"} & found.keys()
    assert run_state(one, run) == "success" and one.sql("select count(*) from onceflow.join_count") == [(0,)]
    assert one.sql("select * from onceflow.verify_ledger()") == []


def test_instances_of_a_group_do_not_wait_for_each_other(one: Engine) -> None:
    """The second task of item 0 runs while the first of item 1 has not begun; a task outside waits for all."""
    register(one, {"list": Node(), "a": grouped("list"), "b": grouped("a"), "join": Node(("b",))})
    run = begin_run(one)
    end(one, one.claim_one(), "success", "[1, 2]")
    end(one, one.claim(1)[0], "success")
    assert states(one, run) == {"list": "success", "a[0]": "success", "a[1]": "queued", "b[0]": "queued", "b[1]": "no_status", "join": "no_status"}
    assert sorted(work(one)) == ["a", "b", "b", "join"]


def test_a_task_in_a_group_waits_for_all_instances_of_a_map_outside(one: Engine) -> None:
    """And for its own item inside: both counts are needed, in whatever order they fill up."""
    nodes = {"list": Node(), "wide": Node(("list",), mapping=OVER_LIST), "a": grouped("list"), "b": grouped("a", "wide")}
    register(one, nodes)
    run = begin_run(one)
    end(one, one.claim_one(), "success", "[1, 2]")
    held = {shown(one, task): task for task in one.claim(9)}
    for name, freed in (("a[0]", []), ("wide[1]", []), ("wide[0]", ["b[0]"]), ("a[1]", ["b[1]"])):
        end(one, held[name], "success")
        assert [shown(one, task) for task in one.claim(9)] == freed
    assert states(one, run)["b[0]"] == "running"


@pytest.mark.parametrize(
    ("fate", "inside", "below", "ended"),
    [
        ("[]", ["skipped", "skipped"], "skipped", "success"),
        ("failed", ["upstream_failed", "upstream_failed"], "upstream_failed", "failed"),
        ("7", ["failed", "upstream_failed"], "upstream_failed", "failed"),
    ],
)
def test_a_group_without_items_ends_as_a_whole(one: Engine, fate: str, inside: list[str], below: str, ended: str) -> None:
    """Empty: skipped; its input failed: upstream_failed, whatever rules stand inside; no list: a failure by name."""
    register(one, {"list": Node(), "a": grouped("list", rule="all_done"), "b": grouped("a", rule="always"), "join": Node(("b",))})
    run = begin_run(one)
    assert finish(one, {"list": fate}) == ["list"]
    found = states(one, run)
    assert [found["a"], found["b"], found["join"]] == [*inside, below] and run_state(one, run) == ended
    assert one.sql("select * from onceflow.verify_ledger()") == []


@pytest.mark.parametrize("rule", ["one_failed", "one_success", "one_done", "always", "all_done", "none_skipped"])
@pytest.mark.parametrize("in_group", [False, True])
def test_nothing_is_expanded_before_its_input_is_there(one: Engine, rule: str, in_group: bool) -> None:
    """A rule that could decide by another task waits for the list too; then each item runs once."""
    mapped = Node(("early", "list"), rule, OVER_LIST, group="g" if in_group else None)
    register(one, {"early": Node(), "list": Node(), "m": mapped, "end": Node(("m",))})
    run = begin_run(one)
    early, source = one.claim(2)
    end(one, early, "failed" if rule == "one_failed" else "success")
    assert states(one, run)["m"] == "no_status" and one.claim(9) == []
    end(one, source, "success", "[1, 2]")
    assert finish(one, {}) == ["m[0]", "m[1]", "end"] and run_state(one, run) == "success"


def test_chained_empty_maps(one: Engine) -> None:
    """Both are skipped; an all_done reducer runs once, and would get []; the run succeeds."""
    nodes = {"list": Node(), "m": Node(("list",), mapping=OVER_LIST), "n": Node(("m",), "all_done", (("y", "m"),)), "reduce": Node(("n",), "all_done")}
    register(one, nodes)
    run = begin_run(one)
    assert finish(one, {"list": "[]"}) == ["list", "reduce"]
    assert states(one, run) == {"list": "success", "m": "skipped", "n": "skipped", "reduce": "success"} and run_state(one, run) == "success"
    assert one.sql('select onceflow.read_values(%s, \'[["n", "return_value"]]\')', run) == [(["[]"],)]


@pytest.mark.parametrize(
    ("given_", "made"),
    [
        ('[{"a": 1}, {"b": 2, "a": 1, "$order": ["b", "a"]}]', [{"a": 1}, {"a": 1, "b": 2}]),
        ('[{"a": 1}, 5]', "something else is in the list"),
        ('[[1, 2]]', "something else is in the list"),
        ('{"a": 1}', "something else is in the list"),
        ('[{"$decimal": "1"}]', "something else is in the list"),
        ('"abc"', "neither a list nor a dict"),
        ('{"$date": "2026-01-01"}', "neither a list nor a dict"),
    ],
)  # fmt: skip
def test_expand_kwargs_takes_a_list_of_dicts(one: Engine, given_: str, made: Any) -> None:
    """Each dict is the arguments of one instance; anything else fails by name."""
    register(one, {"list": Node(), "m": Node(("list",), mapping=(("", "list"),))})
    run = begin_run(one)
    end(one, one.claim_one(), "success", given_)
    found = one.sql("select conf, error from onceflow.ti where run = %s and task_id = 'm' order by map_index", run)
    if isinstance(made, str):
        assert len(found) == 1 and made in found[0][1] and run_state(one, run) == "failed"
    else:
        assert [conf for conf, _ in found] == made


def test_a_cross_product_of_outputs_and_lists(one: Engine) -> None:
    """Two outputs and a literal, once both outputs are there, in either order; the limit counts the product."""
    nodes = {"p": Node(), "q": Node(), "m": Node(("p", "q"), mapping=(("x", "p"), ("y", [7, 8]), ("z", "q")))}
    register(one, nodes)
    for limit, failed in ((8, False), (7, True)):
        one.sql("update onceflow.dag set max_map_length = %s where dag_id = 'graph'", limit)
        run = begin_run(one)
        assert finish(one, {"p": "[1, 2]", "q": "[3, 4]"})[:2] == ["p", "q"]
        found = one.sql("select conf, error from onceflow.ti where run = %s and task_id = 'm' order by map_index", run)
        if failed:
            assert found == [
                (None, "task m would be expanded into 8 instances, more than max_map_length (7); expand it over fewer items, or raise that setting")
            ]
        else:
            assert [(c["x"], c["y"], c["z"]) for c, _ in found] == [(x, y, z) for x in (1, 2) for y in (7, 8) for z in (3, 4)]


def test_setup_and_teardown_belong_to_their_item(one: Engine) -> None:
    """Item 1's setup fails: its work and its teardown do not run; item 0's teardown runs though its work failed."""
    nodes = {
        "list": Node(),
        "make": grouped("list", is_setup=True),
        "use": grouped("make"),
        "drop": grouped("make", "use", rule="all_done_setup_success", is_teardown=True),
        "join": Node(("use",), "all_done"),
    }
    register(one, nodes)
    run = begin_run(one)
    ran = finish(one, {"list": "[1, 2]", "make[1]": "failed", "use[0]": "failed"})
    assert sorted(ran) == ["drop[0]", "join", "list", "make[0]", "make[1]", "use[0]"]
    assert states(one, run)["drop[1]"] == "upstream_failed" and run_state(one, run) == "failed"


def test_a_branch_in_a_group_decides_for_its_item(one: Engine) -> None:
    """Each item takes its own way, also after a clear; what is outside goes by its rule."""
    nodes = {
        "list": Node(),
        "choose": grouped("list", decides="branch"),
        "left": grouped("choose"),
        "right": grouped("choose"),
        "meet": grouped("left", "right", rule="none_failed_min_one_success"),
        "join": Node(("meet",)),
    }
    register(one, nodes)
    run = begin_run(one)
    ran = finish(one, {"list": "[1, 2]", "choose[0]": '"left"', "choose[1]": '"right"'})
    assert sorted(ran[3:]) == ["join", "left[0]", "meet[0]", "meet[1]", "right[1]"] and run_state(one, run) == "success"
    clear(one, task_regex="^(left|right)$", downstream=True)
    assert sorted(finish(one, {})) == ["join", "left[0]", "meet[0]", "meet[1]", "right[1]"]
    clear(one, task_regex="^left$", downstream=True, map_index=0)
    assert finish(one, {}) == ["left[0]", "meet[0]", "join"]


def test_a_short_circuit_in_a_group_cuts_off_its_item(one: Engine) -> None:
    """All that is below it in the group, for that item; one outside the group bars the group before it is expanded."""
    nodes = {
        "list": Node(),
        "check": grouped("list", decides="short_circuit_all"),
        "b": grouped("check"),
        "c": grouped("b", rule="all_done"),
        "join": Node(("c",), "all_done"),
    }
    register(one, nodes)
    run = begin_run(one)
    assert finish(one, {"list": "[1, 2]", "check[0]": "false", "check[1]": "true"})[3:] == ["b[1]", "c[1]", "join"]
    assert states(one, run)["c[0]"] == "skipped" and run_state(one, run) == "success"
    nodes = {"check": Node(options={"decides": "short_circuit_all"}), "list": Node(), "a": grouped("list"), "b": grouped("a", "check"), "c": grouped("b")}
    register(one, nodes, "other")
    run = begin_run(one, "other")
    check, source = one.claim(2)
    end(one, check, "success", "false")
    end(one, source, "success", "[1]")
    assert finish(one, {}) == ["a[0]"] and states(one, run) == {"check": "success", "list": "success", "a[0]": "success", "b[0]": "skipped", "c[0]": "skipped"}


def test_a_group_shrinks_and_grows_when_its_source_runs_again(one: Engine) -> None:
    """5 items become 3, then 6, then none, then 2: the rest is removed and comes back; none is doubled."""
    register(one, {"list": Node(), "a": grouped("list"), "b": grouped("a"), "join": Node(("b",))})
    run = begin_run(one)
    for count in (5, 3, 6, 0, 2):
        ran = finish(one, {"list": json.dumps(list(range(count)))})
        assert sorted(ran) == sorted(["list", *(f"{n}[{i}]" for n in "ab" for i in range(count)), *(["join"] if count else [])])
        assert run_state(one, run) == "success"
        clear(one, task_regex="^list$", downstream=True)
    assert one.sql("select tis, (select count(*) from onceflow.ti where run = r.id) from onceflow.run r where id = %s", run) == [(14, 14)]


def test_one_item_of_a_group_runs_again(one: Engine) -> None:
    """Clear of an index takes what is below it beside it, and what is outside; a retry of the run takes what failed."""
    register(one, {"list": Node(), "a": grouped("list"), "b": grouped("a"), "join": Node(("b",))})
    run = begin_run(one)
    finish(one, {"list": "[1, 2, 3]", "a[1]": "failed"})
    assert run_state(one, run) == "failed"
    one.retry(run)
    one.tick()
    assert finish(one, {}) == ["a[1]", "b[1]", "join"] and run_state(one, run) == "success"
    assert clear(one, task_regex="^a$", map_index=2, downstream=True) == [("a", 2), ("b", 2), ("join", -1)]
    assert finish(one, {}) == ["a[2]", "b[2]", "join"] and run_state(one, run) == "success"


def test_a_mark_frees_its_item_only(one: Engine) -> None:
    """Marking a failed instance as successful frees what waited for it, beside it and outside."""
    register(one, {"list": Node(), "a": grouped("list"), "b": grouped("a"), "join": Node(("b",))})
    run = begin_run(one)
    finish(one, {"list": "[1, 2]", "a[0]": "failed", "a[1]": "failed"})
    one.sql("select onceflow.mark_task(%s, 'a', 'success', 1)", run)
    one.tick()
    assert finish(one, {}) == ["b[1]"] and states(one, run)["b[0]"] == "upstream_failed" and run_state(one, run) == "failed"


@pytest.mark.parametrize("joined", [False, True])
def test_an_instance_cleared_while_its_source_runs_again_waits_for_it(one: Engine, joined: bool) -> None:
    """The list is cleared and not yet there; one item is cleared then: it runs when the list has ended, and the run ends."""
    register(one, {"list": Node(), "more": Node(), "m": Node(("list", "more") if joined else ("list",), mapping=OVER_LIST), "end": Node(("m",))})
    run = begin_run(one)
    finish(one, {"list": "[1, 2]"})
    clear(one, task_regex="^list$")
    clear(one, task_regex="^m$", map_index=1)
    assert finish(one, {"list": "[1, 2]"}) == ["list", "m[1]"] and run_state(one, run) == "success"


def test_a_task_marked_before_its_group_is_expanded_stays_as_it_is(one: Engine) -> None:
    """The others are expanded, and see it as it was marked."""
    register(one, {"list": Node(), "a": grouped("list"), "b": grouped("a"), "join": Node(("a", "b"))})
    run = begin_run(one)
    one.sql("select onceflow.mark_task(%s, 'a', 'success')", run)
    assert finish(one, {"list": "[1, 2]"}) == ["list", "b[0]", "b[1]", "join"] and run_state(one, run) == "success"


@st.composite
def mapped_graphs(draw: st.DrawFn) -> dict[str, Node]:
    """A dag of up to eight tasks with any rules; some are mapped over a list or an output, some are in one mapped group."""
    nodes: dict[str, Node] = {}
    over_group: Any = None
    for number in range(draw(st.integers(2, 8))):
        before = list(nodes)
        above = draw(st.sets(st.sampled_from(before), max_size=3)) if before else set()
        kind = draw(st.sampled_from(["plain", "mapped", "group", "group"]))
        node = Node((), draw(st.sampled_from(RULES)))
        if kind == "mapped" or (kind == "group" and over_group is None):
            literal = st.lists(st.just(0), max_size=3)
            source = draw(st.one_of(literal, st.sampled_from(before)) if before else literal)
            node = replace(node, mapping=(("x", source),))
        if kind == "group":
            over_group = over_group or node.mapping
            node = replace(node, mapping=over_group, group="g")
        is_root = kind != "group" or not any(nodes[name].group for name in above)
        above |= {source for _, source in node.mapping or () if is_root and isinstance(source, str)}
        nodes[f"t{number}"] = replace(node, upstream=tuple(sorted(above)))
    return nodes


class Oracle:
    """What must come of a dag, worked out from the final states of what is upstream, task after task."""

    def __init__(self, engine: Engine, nodes: dict[str, Node], fate: dict[tuple[str, int], int]) -> None:
        self.engine, self.nodes, self.fate = engine, nodes, fate
        self.ended: dict[str, dict[int, str]] = {}
        self.group: list[int] | str | None = None
        for name, node in nodes.items():
            self.ended[name] = self._end_group_task(name, node) if node.group else self._end_task(name, node)

    def _end_task(self, name: str, node: Node) -> dict[int, str]:
        decision = self._decide(node, [state for u in node.upstream for state in self.ended[u].values()])
        if FINAL[decision] is not None or node.mapping is None:
            return {-1: FINAL[decision] or self._end(name, -1)}
        made = self._expand(node)
        return {-1: made} if isinstance(made, str) else {i: self._end(name, i) for i in made}

    def _end_group_task(self, name: str, node: Node) -> dict[int, str]:
        if self.group is None:
            self.group = self._expand(node)
        if isinstance(self.group, str):
            return {-1: self.group}
        found = {}
        for i in self.group:
            above = [self.ended[u][i] for u in node.upstream if self.nodes[u].group]
            above += [state for u in node.upstream if not self.nodes[u].group for state in self.ended[u].values()]
            found[i] = FINAL[self._decide(node, above)] or self._end(name, i)
        return found

    def _expand(self, node: Node) -> list[int] | str:
        ((_, source),) = node.mapping or ()
        if isinstance(source, str):
            alone = self.ended[source].get(-1)
            if alone in ("skipped", "upstream_failed", "failed"):
                return "skipped" if alone == "skipped" else "upstream_failed"
            length = self.fate[source, -1] if alone else list(self.ended[source].values()).count("success")
        else:
            length = len(source)
        return list(range(length)) or "skipped"

    def _decide(self, node: Node, above: list[str]) -> str:
        return str(self.engine.sql("select onceflow.decide_trigger_rule(%s, %s::text[])", node.rule, above)[0][0])

    def _end(self, name: str, index: int) -> str:
        return "failed" if self.fate[name, index] < 0 else "success"

    def states(self) -> dict[str, str]:
        return {name if i < 0 else f"{name}[{i}]": state for name, found in self.ended.items() for i, state in found.items()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=mapped_graphs(), seed=st.integers(0, 2**16))
def test_the_outcome_of_maps_does_not_depend_on_the_order(one: Engine, nodes: dict[str, Node], seed: int) -> None:
    """Any dag with maps and a mapped group, any fates, any order: each instance comes to what its rule says of the last states it depends on."""
    dice = random.Random(seed)
    fate = {(name, index): dice.choice([-1, 0, 1, 2, 3]) for name in nodes for index in range(-1, 8)}  # the length of its list; -1: it fails
    expected = Oracle(one, nodes, fate).states()
    register(one, nodes)
    run = begin_run(one)
    held: list[Task] = []
    while held := held + one.claim(dice.randint(1, 3)):
        task = held.pop(dice.randrange(len(held)))
        name, _, index = shown(one, task).partition("[")
        length = fate[name, int(index.rstrip("]") or -1)]
        end(one, task, "failed" if length < 0 else "success", json.dumps([0] * max(length, 0)))
    assert states(one, run) == expected
    leaves = [name for name in nodes if not any(name in other.upstream for other in nodes.values())]
    bad = any(state in ("failed", "upstream_failed") for name, state in expected.items() if name.partition("[")[0] in leaves)
    assert run_state(one, run) == ("failed" if bad else "success")
    assert one.sql("select count(*) from onceflow.join_count where run = %s", run) == [(0,)]
    assert one.sql("select r.tis = count(*) from onceflow.run r join onceflow.ti t on t.run = r.id where r.id = %s group by r.tis", run) == [(True,)]
