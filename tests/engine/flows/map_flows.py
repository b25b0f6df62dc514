"""Dags with mapped tasks and groups of every form."""

from __future__ import annotations

from typing import Any

import asyncpg

from onceflow import BaseOperator, SkipTask, dag, task, task_group


@task
def give(value: Any) -> Any:
    return value


@task
def make_list(values: Any) -> Any:
    return values


@task
async def note(conn: asyncpg.Connection[Any], what: str) -> str:
    await conn.execute("insert into effect (what, note) values ('map', $1)", what)
    return what


class Join(BaseOperator):
    template_fields = ("left", "right")

    def __init__(self, task_id: str, *, left: Any, right: Any, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.left, self.right = left, right

    def execute(self, context: dict[str, Any]) -> Any:
        return f"{self.left}-{self.right}-{context['map_index']}"


@dag(schedule=None)
def grouped_map() -> None:
    """Each item on its own through a group with an operator, a nested group and a transactional task; the sum of all outside."""

    @task_group
    def inner(value: Any) -> Any:
        return give.override(task_id="deep")(value)

    @task_group
    def work(x: int, unit: str = "m") -> Any:
        double = give.override(task_id="double")({"twice": [x, x], "unit": unit})
        noted = note(Join("join", left=x, right=double["unit"]).output)
        give.override(task_id="text")(f"{noted}") << noted
        return inner(noted)

    results = work.expand(x=make_list([3, 1, 2]))
    give.override(task_id="all")(results)
    work.override(group_id="kwargs").partial(unit="{{ ds }}").expand_kwargs([{"x": 1}, {"x": "{{ params.who }}"}])


@dag(schedule=None)
def broken_group() -> None:
    """Item 0 fails: its reporter runs, the other items go on."""

    @task
    def fail_first(x: int) -> int:
        if x == 0:
            raise ValueError("no")
        return x

    @task_group
    def work(x: int) -> None:
        done = fail_first(x)
        give.override(task_id="report", trigger_rule="one_failed")("failed") << done
        give.override(task_id="next")(done)

    work.expand(x=[0, 1, 2, 3])


@dag(schedule=None)
def empty_maps() -> None:
    first = give.override(task_id="first").expand(value=make_list([]))
    second = give.override(task_id="second").expand(value=first)
    give.override(task_id="reduce", trigger_rule="all_done")(second)
    give.override(task_id="strict")(second)


@dag(schedule=None)
def made_lists() -> None:
    """map, filter, zip, concat."""
    numbers = make_list([1, 2, 3, 4])
    letters = make_list.override(task_id="letters")({"a": 1, "b": 2})
    even = numbers.filter(lambda n: n % 2 == 0).map(lambda n: n * 10)
    give.override(task_id="even").expand(value=even)
    give.override(task_id="pairs").expand(value=numbers.zip(letters))
    give.override(task_id="long").expand(value=letters.zip(numbers, fillvalue="-"))
    give.override(task_id="both").expand(value=numbers.concat(["x"], letters))
    squared = give.override(task_id="one").expand(value=numbers).map(lambda n: n * n)
    give.override(task_id="squared")(squared)

    @task
    def skip_odd(n: int) -> int:
        if n % 2:
            raise SkipTask("odd")
        return n

    some = skip_odd.expand(n=numbers)
    give.override(task_id="strict").expand(value=some.map(str))
    give.override(task_id="lenient", trigger_rule="none_failed").expand(value=some.map(str))


@dag(schedule=None)
def named_maps() -> None:
    @task(map_index_template="{{ city }} of {{ ds }}")
    def by_item(city: str) -> str:
        return city

    @task(map_index_template="{{ found }}")
    async def by_context(city: str, context: dict[str, Any]) -> None:
        context["found"] = city.upper()

    @task(map_index_template="{{ found }}")
    def failing(city: str, context: dict[str, Any]) -> None:
        context["found"] = "nobody's"
        raise ValueError(city)

    @task(map_index_template="{{ unheard_of }}")
    def nameless(city: str) -> None: ...

    nameless.expand(city=[1])
    by_context.expand(city=by_item.expand(city=["paris", "oslo"]))
    failing.expand(city=["nowhere"])


@dag(schedule=None, max_active_tasks=1_000)
def wide_map() -> None:
    give.override(task_id="join")(give.override(task_id="item").expand(value=make_list(list(range(1_000)))))
