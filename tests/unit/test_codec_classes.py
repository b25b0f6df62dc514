"""Classes of users in the codec: found by name, rebuilt without running their code."""

import sys
import types
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import (
    BaseModel,
)

from onceflow.codec import decode, encode, module_of
from onceflow.errors import DecodingError
from tests.unit import codec_samples as samples
from tests.unit.codec_samples import (
    CALLS,
    Address,
    Customer,
    Line,
    Link,
    Money,
    Numbers,
    Order,
    Page,
    Point,
    TwoArguments,
    again,
    identical,
)


def test_rebuilding_runs_no_code_of_the_class() -> None:
    """Neither __post_init__ nor __init__ nor validators run a second time; what they set is there all the same."""
    line = Line("a", Decimal(1))
    CALLS.clear()
    after = again(line)
    assert (after.runs, after.note) == (1, "made of a")
    customer = Customer(name="Ann")
    error = TwoArguments(1, "x")
    CALLS.clear()
    assert again(customer) == customer
    assert again(error).code == 1
    assert CALLS == []


def test_model_comes_back_whole() -> None:
    """Fields set, extra fields in their order, private attributes, nested models and pydantic's own time zones."""
    customer = Customer(name="Ann", address=Address(street="A", since="2026-01-01T00:00:00Z"), zz=1, b=Decimal("1.0"))
    customer._seen = 5
    customer._token = "t"
    after = again(customer)
    assert identical(after, customer)
    assert after.model_fields_set == {"name", "address", "zz", "b"}
    assert list(after.model_extra) == ["zz", "b"] and (after._seen, after._token) == (5, "t")
    assert after.model_dump_json() == customer.model_dump_json()
    assert not hasattr(again(Customer(name="Bob")), "_token")


@pytest.mark.parametrize("model", [Numbers([1, 2]), Page[int](items=[1]), Page[Money](items=[]), Page(items=["x"]), Link(url="http://x.y/z")])
def test_special_models_come_back(model: BaseModel) -> None:
    """Root models, generic models and URLs come back as what they were."""
    assert identical(again(model), model)


def test_new_fields_take_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value kept by an older version of the class is readable: new fields have their defaults."""
    line, customer, point = encode(Line("a", Decimal(1))), encode(Customer(name="Ann")), encode(Point(1))

    @dataclass
    class NewLine(Line):
        colour: str = "red"
        more: list[int] = field(default_factory=list)

    class NewCustomer(Customer):
        colour: str = "red"

    class NewPoint(NamedTuple):
        x: int
        y: Decimal
        z: int = 3

    for old, new in (("Line", NewLine), ("Customer", NewCustomer), ("Point", NewPoint)):
        monkeypatch.setattr(samples, old, new)
    assert decode(line) == NewLine("a", Decimal(1)) and decode(line).more == []
    assert decode(customer).colour == "red"
    assert decode(point) == (1, Decimal("0.5"), 3)


def test_new_field_without_default_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that an old value cannot have is an error that names class and field."""
    texts = [encode(Money(Decimal(1))), encode(Address(street="A", since=datetime(2026, 1, 1)))]

    @dataclass
    class NewMoney:
        amount: Decimal
        currency: str
        place: str

    class NewAddress(Address):
        place: str

    monkeypatch.setattr(samples, "Money", NewMoney)
    monkeypatch.setattr(samples, "Address", NewAddress)
    for text in texts:
        with pytest.raises(DecodingError, match="a field 'place' since; give it a default"):
            decode(text)


def test_cached_properties_are_computed_again() -> None:
    """A cached property is no part of the value."""
    order = Order(uuid.UUID(int=1), [Line("a", Decimal(2))])
    assert order.total == 2
    assert "total" not in encode(order)
    assert again(order).total == 2


def test_asyncpg_uuid_comes_back_as_uuid() -> None:
    """The driver's UUID class is an equal stand-in for uuid.UUID; it hashes alike as an argument."""
    theirs = pytest.importorskip("asyncpg.pgproto.pgproto").UUID("12345678-1234-5678-1234-567812345678")
    assert encode(theirs) == encode(uuid.UUID(str(theirs)))


def test_reloaded_module_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of a class from before a reload is kept under its name and comes back as the class of today."""
    old = Money(Decimal(1))
    new = dataclass(frozen=True)(type("Money", (), {"__annotations__": {"amount": Decimal}, "__module__": samples.__name__}))
    monkeypatch.setattr(samples, "Money", new)
    assert type(decode(encode(old))) is new


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A script transfer_script.py that runs as __main__, with a dataclass of its own."""
    main = types.ModuleType("__main__")
    main.__file__ = "/srv/transfer_script.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    source = "from dataclasses import dataclass\n@dataclass\nclass Job:\n    id: int\n"
    exec(source, main.__dict__)
    return main


def test_class_of_a_script_has_the_name_of_its_file(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's class is kept under the file's name: the script finds it in __main__, a worker in its module."""
    assert module_of(script.Job) == "transfer_script"
    text = encode(script.Job(1))
    assert "transfer_script:Job" in text and type(decode(text)) is script.Job
    loaded = types.ModuleType("transfer_script")
    loaded.Job = dataclass(type("Job", (), {"__module__": "transfer_script"}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transfer_script", loaded)
    assert type(decode(text)) is loaded.Job


def test_module_is_imported_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding imports the module of a class that nobody has imported yet."""
    (tmp_path / "late_models.py").write_text("import enum\nclass Size(enum.Enum):\n    BIG = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert decode('{"$enum":"late_models:Size","$name":"BIG"}').value == 1
    del sys.modules["late_models"]
