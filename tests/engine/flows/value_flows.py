"""Values that pass through steps, bodies and runs: what goes in must come out, on the first run and on every replay."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg
import psycopg
from pydantic import BaseModel, ValidationError

from onceflow import gather, sleep, step, workflow

FORGET = 0.15


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Weight(enum.IntEnum):
    LIGHT = 1


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"
    tags: tuple[str, ...] = ()


@dataclass
class Basket:
    owner: UUID
    items: list[Money] = field(default_factory=list)


class Order(BaseModel):
    id: int
    placed: datetime
    lines: list[Money]
    colour: Colour | None = None


class Declined(Exception):
    """Takes two arguments, so cannot be rebuilt from its message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code, self.reason = code, reason


SAMPLES: dict[str, Any] = {
    "decimal": Decimal("10.00"),
    "zoned": datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    "utc": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "naive": datetime(2026, 1, 2, 3, 4),
    "date": date(2026, 2, 28),
    "delta": timedelta(days=-1, microseconds=3),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "bytes": b"\x00\xff\x10",
    "enum": Colour.BLUE,
    "int_enum": Weight.LIGHT,
    "tuple": (1, ("a", Decimal("2.50")), []),
    "set": {1, 2, "x"},
    "frozenset": frozenset({date(2026, 1, 1)}),
    "dataclass": Money(Decimal("9.90"), tags=("a", "b")),
    "nested": Basket(UUID(int=7), [Money(Decimal(1))]),
    "model": Order(id=1, placed=datetime(2026, 1, 1, tzinfo=UTC), lines=[Money(Decimal("1.10"))], colour=Colour.RED),
    "int_keys": {1: "one", 2: {(1, 2): "pair"}},
    "order": {"z": 1, "a": 2},
    "big_int": 2**80,
    "negative_zero": -0.0,
    "text": "a" * 1_000_000,
    "unicode": "snow ☃, quote ' and \\ backslash, $tag",
    "none": None,
    "nested_none": [None, {"a": None}],
    "looks_tagged": {"$decimal": "no"},
}


def is_same(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return all(is_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, datetime):
        return str(one.tzinfo) == str(other.tzinfo)
    return str(one) == str(other) if isinstance(one, float | Decimal) else True


@step
async def echo(value: Any) -> Any:
    return value


@step
async def echo_in_transaction(conn: asyncpg.Connection[Any], value: Any) -> Any:
    return value


@step
def echo_sync(conn: psycopg.Connection, value: Any) -> Any:
    return value


@workflow
async def echo_all() -> list[str]:
    """The names of samples that came back different from any kind of step, before and after the replay."""
    bad = []
    for i in range(2):
        for name, value in SAMPLES.items():
            for way in (echo(value), echo_in_transaction(value), echo_sync.aio(value)):
                if not is_same(value, await way):
                    bad.append(f"{name} in pass {i}")
        await sleep(FORGET)
    return bad


@workflow
async def give_back(value: Any) -> Any:
    await sleep(0)
    return value


@workflow
async def give_back_typed(amount: Decimal, day: date, order: Order, prices: dict[int, Decimal], when: datetime, note: str = "none") -> list[Any]:
    return [amount, day, order, prices, when, note]


@workflow
async def give_back_numbers(rate: float, rates: list[float], prices: list[Money]) -> list[Any]:
    return [rate, rates, prices]


@step
async def variadic(first: int, /, *rest: int, named: str = "n", **more: Any) -> list[Any]:
    return [first, rest, named, more]


@workflow
async def variadics() -> list[Any]:
    started = await variadic.start(1, 2, 3, named="x", extra=5)
    found = [await variadic(1, 2, 3, named="x", extra=5), await variadic(1), await started.result()]
    await sleep(FORGET)
    return found


@step
def decline() -> None:
    raise Declined(7, "no funds")


@step
def validate() -> None:
    Order.model_validate({"id": "x", "lines": [{"amount": "1"}]})


@step
def chain() -> None:
    try:
        decline.fn()
    except Declined as error:
        raise LookupError("while looking") from error


def describe(error: BaseException) -> list[Any]:
    extra = [error.code, error.reason] if isinstance(error, Declined) else [e["loc"] for e in error.errors()] if isinstance(error, ValidationError) else []
    return [type(error).__qualname__, str(error), repr(error.args), extra, repr(error.__cause__)]


@workflow
async def errors_twice() -> list[list[Any]]:
    """Each error as the body sees it: as recorded by a step on the first run, and as it is at the end, after the replay."""
    seen = []
    for way in (decline, validate, chain):
        try:
            await way.aio()
        except Exception as error:
            seen.append(describe(error))
    first = await echo(seen)
    await sleep(FORGET)
    return [first, seen]


@workflow
async def declined() -> None:
    await decline.aio()


@workflow
async def invalid() -> None:
    await validate.aio()


@step
async def make_bad(what: str) -> Any:
    return bad_value(what)


@step
def make_bad_in_transaction(conn: psycopg.Connection, what: str) -> Any:
    conn.execute("insert into effect (what) values ('bad')")
    return bad_value(what)


def bad_value(what: str) -> Any:
    return {"nan": {"rate": float("nan")}, "nul": ["a\x00b"], "lambda": {"f": lambda: 1}, "huge": "x" * 100_000_000, "record": object()}[what]


@workflow
async def bad_argument(what: str) -> Any:
    return await echo(bad_value(what))


@workflow
async def bad_result(what: str) -> Any:
    return await make_bad(what)


@workflow
async def bad_transactional_result(what: str) -> Any:
    return await make_bad_in_transaction.aio(what)


@workflow
async def bad_body(what: str) -> Any:
    return bad_value(what)


@workflow
async def bad_then_good(what: str) -> str:
    """A body may catch it, also on replay, and go on."""
    try:
        await echo(bad_value(what))
    except TypeError as error:
        await sleep(FORGET)
        return f"went on after {type(error).__name__}"
    return "?"


@workflow
async def mutable_inputs() -> list[Any]:
    """A step cannot change its caller's objects, nor see later changes of them."""
    given = [1]
    seen = await gather(append_two(given), append_two(given))
    await sleep(FORGET)
    return [given, seen]


@step
async def append_two(values: list[int]) -> list[int]:
    values.append(2)
    return values


@step
async def driver_values(conn: asyncpg.Connection[Any]) -> list[Any]:
    row = await conn.fetchrow("select gen_random_uuid(), 1.50::numeric, now(), date '2026-01-01', '\\x00'::bytea, '{\"a\": 1}'::jsonb, interval '1 day'")
    assert row is not None
    return list(row)


@step
def psycopg_values(conn: psycopg.Connection) -> list[Any]:
    row = conn.execute("select gen_random_uuid(), 1.50::numeric, now(), date '2026-01-01', '\\x00'::bytea, '{\"a\": 1}'::jsonb, interval '1 day'").fetchone()
    return list(row or ())


@workflow
async def values_of_drivers() -> list[str]:
    values = [*await driver_values(), *await psycopg_values.aio()]
    await sleep(FORGET)
    return [type(v).__name__ for v in values]
