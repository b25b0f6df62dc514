"""What the codec's tests share: PostgreSQL's way with a JSON text, strict equality, and the types of a user."""

import collections
import dataclasses
import enum
import json
import threading
import uuid
from collections import deque, namedtuple
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, HttpUrl, PrivateAttr, RootModel, SecretStr, field_validator
from pydantic import dataclasses as pydantic_dataclasses
from pydantic_core import PydanticCustomError

from onceflow.codec import decode, encode, inputs_hash

T = TypeVar("T")


def as_jsonb_prints(text: str) -> str:
    """The text as `text::jsonb::text` gives it: keys by length then bytes, numbers as numeric, NUL refused."""
    return print_jsonb(json.loads(text, parse_float=Decimal, parse_constant=pytest.fail))


def print_jsonb(node: Any) -> str:
    if isinstance(node, dict):
        keys = sorted(node, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{print_jsonb(key)}: {print_jsonb(node[key])}" for key in keys) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(print_jsonb, node)) + "]"
    if isinstance(node, Decimal):
        return format(abs(node) if node.is_zero() else node, "f")
    if isinstance(node, str):
        assert "\x00" not in node
        node.encode()
    return json.dumps(node, ensure_ascii=False)


def identical(a: Any, b: Any) -> bool:
    """Equal in type and value, all the way down; dicts in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, BaseException):
        return str(a) == str(b) and identical(a.args, b.args) and identical(a.__dict__, b.__dict__)
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, complex):
        return repr(a) == repr(b)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, dict):
        return len(a) == len(b) and all(identical(k, m) and identical(v, n) for (k, v), (m, n) in zip(a.items(), b.items(), strict=True))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, set | frozenset):
        return a == b and collections.Counter(map(type, a)) == collections.Counter(map(type, b))
    if isinstance(a, datetime | time):
        return repr(a) == repr(b) and type(a.tzinfo) is type(b.tzinfo) and a.tzname() == b.tzname()
    if dataclasses.is_dataclass(a):
        pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
        return identical(getattr(a, "__dict__", None), getattr(b, "__dict__", None)) and all(identical(x, y) for x, y in pairs)
    if isinstance(a, BaseModel):
        parts = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        return all(identical(getattr(a, part), getattr(b, part)) for part in parts)
    return bool(a == b)


def again(value: Any) -> Any:
    """The value after the ledger: encoded, kept as jsonb, decoded. Both ways back must agree."""
    text = encode(value)
    kept = decode(as_jsonb_prints(text))
    assert identical(decode(text), kept), "a first run and a replay differ"
    assert inputs_hash(text) == inputs_hash(as_jsonb_prints(text))
    assert as_jsonb_prints(encode(kept)) == as_jsonb_prints(text)
    return kept


# --- types of a user -------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "r"
    GREEN = ("g", 2)
    ALIAS = "r"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HELLO = "hello"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 4


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal("0.5")


class Spot(namedtuple("Spot", "x y")):
    def __new__(cls, x: int) -> "Spot":
        return super().__new__(cls, x, x * 2)


class Broken(Exception):
    @property
    def args(self) -> Any:
        raise RuntimeError("no args")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


Nowhere = namedtuple("Elsewhere", "a")


@dataclass
class Line:
    sku: str
    amount: Decimal
    tags: tuple[str, ...] = ()
    runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.runs += 1
        self.note = f"made of {self.sku}"


@dataclass(frozen=True, slots=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclass(frozen=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    paid: Money | None = None

    @cached_property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines), Decimal(0))


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class WithLock:
    name: str

    def __post_init__(self) -> None:
        self._lock = threading.Lock()


@dataclass
class DictLike(dict):  # type: ignore[type-arg]
    name: str = ""


@pydantic_dataclasses.dataclass
class Checked:
    n: int


class Address(BaseModel):
    street: str
    since: datetime


class Customer(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    address: Address | None = None
    limit: Decimal = Decimal("10.00")
    _seen: int = PrivateAttr(default=0)
    _token: str = PrivateAttr()

    @field_validator("name")
    @classmethod
    def count(cls, name: str) -> str:
        CALLS.append(name)
        return name


CALLS: list[str] = []


class Numbers(RootModel[list[int]]):
    pass


class Page(BaseModel, Generic[T]):
    items: list[T]


class Link(BaseModel):
    url: HttpUrl


class Login(BaseModel):
    password: SecretStr


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason
        CALLS.append("TwoArguments")


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclass
class DataError(Exception):
    code: int


class Text(str):
    pass


class Whole(int):
    pass


class Pairs(dict):  # type: ignore[type-arg]
    pass


class Plain:
    pass


def local_class() -> Any:
    @dataclass
    class Inner:
        a: int = 1

    return Inner()


def a_function() -> None:
    pass


class Hiding(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)
    pin: int


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Strict(BaseModel):
    n: int
    when: datetime
    text: str = "a"
    code: str = "b"
    thing: int = 0

    @field_validator("text")
    @classmethod
    def check_text(cls, text: str) -> str:
        raise ValueError("no {n} here")

    @field_validator("code")
    @classmethod
    def check_code(cls, code: str) -> str:
        raise PydanticCustomError("bad_code", "code {code} is bad", {"code": code})
