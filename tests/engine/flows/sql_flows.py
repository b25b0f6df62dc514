"""SQL steps: inside Postgres, by their driver, in groups, and what is wrong with some."""

from __future__ import annotations

from typing import Any

from onceflow import gather, sql_step, workflow

where = "select current_query() like 'select onceflow.%' as inside"
inside = sql_step(where, name="inside")
inside_with = sql_step(f"{where}, $1::text as text, $2::int as number; ", name="inside_with")
by_driver = sql_step(f"{where} from (select $1::int[]) as a", name="by_driver")
no_rows = sql_step("insert into effect (what, note) values ($1, $2)", name="no_rows")
moved = sql_step(
    "with gone as (delete from effect where what = $1 returning note) insert into effect (what, note) select $1, note || '!' from gone", name="moved"
)
moved_rows = sql_step("with gone as (delete from effect where what = $1 returning note) select note from gone", name="moved_rows")
booked = sql_step("insert into effect (what, note) values ($1, $2) returning note", name="booked", group_commit=True)
unique = sql_step("insert into only_once values ($1) returning id", name="unique", group_commit=True)
again = sql_step("insert into effect (what, note) select $1, nextval('tries')::text where 1 / (nextval('tries') / 3) > 0", name="again", retries=5)
twins = sql_step("select 1 as a, 2 as b, 3 as a", name="twins")
no_twins = sql_step("select 1 as a, 2 as a where false", name="no_twins")
missing = sql_step("select * from nowhere", name="missing")
two = sql_step("select 1; select 2", name="two")
changing = sql_step("select * from changing", name="changing")
infinite = sql_step(f"{where}, 'infinity'::timestamp as at", name="infinite")
not_a_number = sql_step("select 'NaN'::numeric as n", name="not_a_number")
too_long = sql_step("select repeat('x', 9000000) as text", name="too_long")
endings = [sql_step(text, name=f"ending_{n}") for n, text in enumerate(("commit", "do $$ begin commit; end $$", "call split()"))]
asleep = sql_step("select pg_sleep(60), $1::text as what", name="asleep")
lost = sql_step(
    "insert into effect (what, note) values ($1, case when nextval('losses') <= $2 then pg_terminate_backend(pg_backend_pid())::text end)", name="lost"
)
STEPS = {step.name: step for step in (inside, inside_with, by_driver, missing, two, twins, no_twins, infinite, not_a_number, too_long, changing, *endings)}


@workflow
async def call(name: str, args: list[Any]) -> Any:
    return await STEPS[name](*args)


@workflow
async def start(name: str, args: list[Any]) -> Any:
    started = await STEPS[name].start(*args)
    return await started.result()


@workflow
async def call_with(what: str, count: int) -> Any:
    return await no_rows(what, str(count))


@workflow
async def start_with(what: str, count: int) -> Any:
    started = await no_rows.start(what, str(count))
    return await started.result()


@workflow
async def move(what: str) -> Any:
    await no_rows(what, "a")
    first = await moved(what)
    return first, await moved_rows(what)


@workflow
async def book(what: str, count: int) -> list[Any]:
    return await gather(*[booked(what, str(n)) for n in range(count)])


@workflow
async def book_started(what: str, count: int) -> list[Any]:
    started = [await booked.start(what, str(n)) for n in range(count)]
    return [await one.result() for one in started]


@workflow
async def one_is_poisoned(ids: list[int]) -> list[Any]:
    return [type(found).__name__ if isinstance(found, Exception) else found for found in await gather(*[unique(n) for n in ids], return_exceptions=True)]


@workflow
async def try_again(what: str) -> Any:
    return await again(what)


@workflow
async def sleep_in_sql(what: str) -> Any:
    return await asleep(what)


@workflow
async def lose(what: str, times: int) -> Any:
    return await lost(what, times)
