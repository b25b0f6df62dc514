"""Values are equal in type and value on the first run and on a replay; what cannot be kept fails its step by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from onceflow import EncodingError
from tests.engine.local_worker import FLOWS, Engine, load_flows

DAGS = FLOWS / "value_flows.py"
value_flows = load_flows("value_flows")


def test_every_sample_survives_steps_and_replay(engine: Engine) -> None:
    """Decimals, zones, enums, sets, dataclasses, models, int keys, 1 MB of text: the same from each kind of step, first and again."""
    run = engine.client.start(value_flows.echo_all)
    assert run.result(30) == []
    assert engine.replays(run) == 2


@pytest.mark.parametrize("name", list(value_flows.SAMPLES))
def test_every_sample_survives_a_run(engine: Engine, name: str) -> None:
    """As an argument from the client, through a replay, to the result at the client."""
    sample = value_flows.SAMPLES[name]
    assert value_flows.is_same(engine.run(value_flows.give_back, sample), sample)


def test_errors_are_the_same_on_replay(engine: Engine) -> None:
    """A custom exception of two arguments, pydantic's ValidationError and a cause: type, message, args, attributes, cause."""
    run = engine.client.start(value_flows.errors_twice)
    first, again = run.result(20)
    assert engine.replays(run) == 1
    assert first == again
    declined, invalid, chained = first
    assert declined[:4] == ["Declined", "no funds (7)", "('no funds (7)',)", [7, "no funds"]]
    assert (invalid[0], invalid[3]) == ("ValidationError", [("id",), ("placed",)])
    assert chained[:2] == ["LookupError", "while looking"] and "no funds" in chained[4]


def test_the_client_gets_the_original_error(engine: Engine) -> None:
    """result() raises the decoded exception of the step, with its attributes."""
    with pytest.raises(value_flows.Declined) as raised:
        engine.run(value_flows.declined)
    assert (raised.value.code, raised.value.reason, str(raised.value)) == (7, "no funds", "no funds (7)")
    with pytest.raises(ValidationError) as invalid:
        engine.run(value_flows.invalid)
    assert [e["loc"] for e in invalid.value.errors()] == [("id",), ("placed",)]


@pytest.mark.parametrize("what", ["nan", "nul", "lambda", "huge", "record"])
@pytest.mark.parametrize("flow", ["bad_argument", "bad_result", "bad_transactional_result", "bad_body"])
def test_what_cannot_be_kept_fails_by_name(engine: Engine, flow: str, what: str) -> None:
    """NaN, NUL, a function, 100 MB, an object: the step is FAILED in the ledger, its error names field and type, and nothing runs on."""
    run = engine.client.start(getattr(value_flows, flow), what)
    kind = {"nan": "float", "nul": "str", "lambda": "function", "huge": "str", "record": "object"}[what]
    field = {"nan": "rate", "nul": "[0]", "lambda": "f", "huge": "", "record": ""}[what]
    where = {"bad_argument": "echo", "bad_result": "make_bad", "bad_transactional_result": "make_bad_in_transaction", "bad_body": "bad_body"}[flow]
    with pytest.raises(EncodingError) as raised:
        run.result(30)
    message = str(raised.value)
    assert where in message and kind in message and field in message
    assert run.state == "failed"
    if flow != "bad_body":
        rows = engine.db.sql(
            "select to_state, error ->> '$error', error ->> 'message' from onceflow.step_ledger where dag_run = %s and step_key = %s and final",
            run.run,
            f"{where}#0",
        )
        assert rows == [("failed", "onceflow.errors:EncodingError", message)]
    assert engine.db.sql("select count(*) from effect where what = 'bad'") == [(0,)]
    assert engine.db.sql("select count(*) from onceflow.lease where run = %s", run.run) == [(0,)]


def test_a_body_may_catch_what_cannot_be_kept(engine: Engine) -> None:
    """The recorded refusal is replayed like any other error."""
    run = engine.client.start(value_flows.bad_then_good, "nan")
    assert run.result(20) == "went on after EncodingError"
    assert engine.replays(run) == 1


def test_a_client_cannot_start_with_what_cannot_be_kept(engine: Engine) -> None:
    """The start is refused in the caller, naming the parameter; no run exists."""
    with pytest.raises(EncodingError, match=r"give_back\.value|give_back\['value'\]|value"):
        engine.client.start(value_flows.give_back, float("nan"), run_id="never")
    assert engine.db.sql("select count(*) from onceflow.run where run_id = 'never'") == [(0,)]


def test_arguments_that_fit_stay_as_they_are(engine: Engine) -> None:
    """An int for a float parameter is not converted; *args and **kwargs of steps arrive as they were given, also at a started step."""
    numbers = [1, [1, 2.5], [value_flows.Money(Decimal(1))]]
    assert value_flows.is_same(engine.run(value_flows.give_back_numbers, *numbers), numbers)
    full = [1, (2, 3), "x", {"extra": 5}]
    assert engine.run(value_flows.variadics) == [full, [1, (), "n", {}], full]
    assert engine.run(value_flows.variadic, 1, 2, more=3) == [1, (2,), "n", {"more": 3}]


def test_a_step_gets_copies(engine: Engine) -> None:
    """What a step does to its arguments reaches neither its caller nor its neighbour."""
    assert engine.run(value_flows.mutable_inputs) == [[1], [[1, 2], [1, 2]]]


def test_drivers_own_types(engine: Engine) -> None:
    """UUIDs, numerics, times, bytes, jsonb and intervals as asyncpg and psycopg read them."""
    names = engine.run(value_flows.values_of_drivers)
    assert names == ["UUID", "Decimal", "datetime", "date", "bytes", "str", "timedelta", "UUID", "Decimal", "datetime", "date", "bytes", "dict", "timedelta"]


@pytest.mark.parametrize(
    "args",
    [
        '{"amount": "10.00", "day": "2026-01-01", "order": {"id": 1, "placed": "2026-01-01T00:00:00Z", "lines": []}, "prices": {"7": "1.5"}, "when": "2026-01-01T00:00:00+00:00"}',
        '["10.00", "2026-01-01", {"id": 1, "placed": "2026-01-01T00:00:00Z", "lines": []}, {"7": "1.5"}, "2026-01-01T00:00:00+00:00"]',
    ],
)
def test_plain_json_from_psql_fits_the_annotations(engine: Engine, args: str) -> None:
    """A start in psql: "10.00" becomes a Decimal, an object a model, "7" an int key; by name or by position."""
    run_id = f"psql-{hash(args)}"
    engine.db.sql("select onceflow.start_run('give_back_typed', %s::jsonb, %s)", args, run_id)
    result: Any = engine.client.find(run_id, "give_back_typed").result(20)
    order = value_flows.Order(id=1, placed=datetime(2026, 1, 1, tzinfo=UTC), lines=[])
    assert value_flows.is_same(result, [Decimal("10.00"), date(2026, 1, 1), order, {7: Decimal("1.5")}, datetime(2026, 1, 1, tzinfo=UTC), "none"])
