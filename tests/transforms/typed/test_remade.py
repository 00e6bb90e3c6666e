"""Rows behind Beam's coder have the values that they had before it, whatever their class's constructor does."""

import copy
import dataclasses
import datetime
from dataclasses import InitVar, dataclass
from typing import Any, Literal, NamedTuple

import pydantic
import pytest
from apache_beam.coders import registry

from millrace.transforms.typed.beam_schemas import element_type
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.values import value_of
from tests.transforms.typed.test_odd_types import Currency, Level

Field = pydantic.Field


class InCents(pydantic.BaseModel):
    cents: int

    @pydantic.field_validator("cents")
    @classmethod
    def times_hundred(cls, cents: int) -> int:
        return cents * 100


@dataclass
class WithTax:
    euros: float

    def __post_init__(self) -> None:
        self.euros *= 1.19


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    currency: Currency
    other: Currency | None = Field(strict=True)


class Phone(pydantic.BaseModel):
    number: str

    @pydantic.field_validator("number")
    @classmethod
    def without_plus(cls, number: str) -> str:
        if not number.startswith("+49"):
            raise ValueError("takes a German number")
        return number.removeprefix("+")


@dataclass
class NameOfEnum:
    c: Currency
    levels: list[Level]
    day: datetime.date

    def __post_init__(self) -> None:
        assert self.c.name == "EUR"
        assert [each.name for each in self.levels] == ["LOW", "HIGH"]


@dataclass(init=False)
class Backwards:
    a: str
    b: str

    def __init__(self, b: str, a: str) -> None:
        self.a, self.b = a, b


class _Pair(NamedTuple):
    a: int
    b: int


class Pair(_Pair):
    def __new__(cls, b: int, a: int) -> "Pair":
        return super().__new__(cls, a, b)


@dataclass
class Scaled:
    a: int
    scale: InitVar[int] = 1
    b: str = "default"

    def __post_init__(self, scale: int) -> None:
        self.a *= scale * 2


@dataclass
class Outer:
    inner: Scaled
    pairs: list[Pair | None]


@pydantic.dataclasses.dataclass
class Between:
    a: int
    b: int = Field(init=False)
    c: int = 3


@pydantic.dataclasses.dataclass
class ScaledToo:
    a: int
    scale: InitVar[int] = 3
    b: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale: int) -> None:
        self.b = self.a * scale


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlots:
    a: str
    days: list[datetime.date]

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", self.a + "!")


@dataclass
class Derived:
    first: str
    last: str
    whole: str = dataclasses.field(init=False)
    parts: list[str] = dataclasses.field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.first = self.first.removeprefix("Ms ")
        self.whole = f"{self.first} {self.last}"
        self.parts.append(self.last)


class Private(pydantic.BaseModel, extra="allow"):
    names: list[str]
    _count: int = 0
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)

    def model_post_init(self, _context: Any) -> None:
        self.names.append("more")
        self._count = len(set(self.names))


class Aliased(pydantic.BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class PlainValues(pydantic.BaseModel, use_enum_values=True):
    level: Level
    currency: Literal[Currency.EUR] | None


class Root(pydantic.RootModel[list[int]]):
    @pydantic.field_validator("root")
    @classmethod
    def with_one_more(cls, root: list[int]) -> list[int]:
        return [*root, 1]


ROWS: list[tuple[type, dict[str, Any]]] = [
    (InCents, {"cents": 3}),
    (WithTax, {"euros": 3.0}),
    (StrictModel, {"currency": "EUR", "other": "USD"}),
    (Phone, {"number": "+4930123"}),
    (NameOfEnum, {"c": "EUR", "levels": [1, 2], "day": "2024-02-29"}),
    (Backwards, {"a": "a", "b": "b"}),
    (Pair, {"a": 1, "b": 2}),
    (Scaled, {"a": 1, "b": "x"}),
    (Outer, {"inner": {"a": 1, "b": "x"}, "pairs": [{"a": 1, "b": 2}, None]}),
    (Between, {"a": 1, "c": 30}),
    (ScaledToo, {"a": 2}),
    (FrozenSlots, {"a": "x", "days": ["2024-02-29"]}),
    (Derived, {"first": "Ms Anna", "last": "Larsen"}),
    (Private, {"names": ["x"]}),
    (Aliased, {"a": 1, "b": 2}),
    (Root, {"root": [2]}),
    (PlainValues, {"level": 2, "currency": "EUR"}),
]


def state(value: Any) -> Any:
    """What an instance is made of, with the types."""
    if isinstance(value, list):
        return [state(each) for each in value]
    if isinstance(value, tuple):
        return type(value), [state(each) for each in value]
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value) if hasattr(value, each.name)]
        return type(value), {name: state(getattr(value, name)) for name in names}
    if isinstance(value, pydantic.BaseModel):
        parts = copy.copy(value).__getstate__()
        return type(value), state(list(parts.pop("__dict__").items())), parts
    return type(value), repr(value)


@pytest.mark.parametrize(("given", "answer"), ROWS, ids=lambda each: getattr(each, "__name__", ""))
def test_beams_coder_gives_each_row_back_as_it_was(given: type, answer: dict[str, Any]) -> None:
    record = record_of(given)
    row = value_of(record, answer)
    coder = registry.get_coder(element_type(record))
    again = coder.decode(coder.encode(row))
    assert state(again) == state(row)
    assert state(coder.decode(coder.encode(again))) == state(row)


def test_an_instance_again_may_be_changed_and_compared() -> None:
    record = record_of(Private)
    row = value_of(record, {"names": ["x"]})
    coder = registry.get_coder(element_type(record))
    again = coder.decode(coder.encode(row))
    assert again == row
    assert (again.names, again._count, again._seen, again.model_fields_set) == (["x", "more"], 2, [], {"names"})
    assert again.model_dump() == row.model_dump()
