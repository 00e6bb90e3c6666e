"""A row that its columns do not hold is no row, whichever check of its class made it, and its field is named."""

import datetime
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import apache_beam as beam
import pydantic
import pytest

from millrace import Extract, ModelConfig, Prompt
from millrace.model_manager.wire.errors import AnswerRejected
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.instance_check import check_held
from millrace.transforms.typed.values import decoded, value_of
from tests.transforms.constrained_client import ConstrainedClient
from tests.transforms.running import check, pipeline


class Currency(enum.StrEnum):
    EUR = "EUR"


class Line(pydantic.BaseModel):
    price: Decimal = pydantic.Field(max_digits=4, decimal_places=2)


class Row(pydantic.BaseModel):
    """A row with the values that the test sets."""

    made: ClassVar[dict[str, Any]] = {}
    city: str = "Oslo"
    count: int = 1
    weight: float = 1.0
    price: Decimal = Decimal(1)
    paid: bool = True
    day: datetime.date = datetime.date(2024, 2, 29)
    sent: datetime.datetime | None = None
    currency: Currency = Currency.EUR
    lines: list[Line] = []

    @pydantic.model_validator(mode="after")
    def as_the_test_says(self) -> "Row":
        self.__dict__.update(self.made)
        return self


WHOLE = {
    "city": "Oslo",
    "count": 1,
    "weight": 1.5,
    "price": Decimal("1.5"),
    "paid": True,
    "day": "2024-02-29",
    "sent": None,
    "currency": "EUR",
    "lines": [{"price": Decimal("12.34")}],
}


@pytest.mark.parametrize(
    "made",
    [
        {"city": None},
        {"city": 3},
        {"city": "\ud83d"},
        {"count": 2**63},
        {"count": True},
        {"count": 1.0},
        {"weight": "1"},
        {"weight": 10**400},
        {"price": Decimal("1e-10")},
        {"price": Decimal(10) ** 18},
        {"price": Decimal("nan")},
        {"price": 1.5},
        {"paid": "no"},
        {"day": datetime.datetime(2024, 2, 29)},
        {"sent": datetime.date(2024, 2, 29)},
        {"currency": "GBP"},
        {"lines": None},
        {"lines": [{"price": 1}]},
    ],
    ids=str,
)
def test_what_a_column_does_not_hold_is_no_row(made: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(Row)
    check_held(record, value_of(record, WHOLE))
    monkeypatch.setattr(Row, "made", made)
    (name,) = made
    with pytest.raises(AnswerRejected, match=rf"^{name}(\[0\])?: the row has .*, which is no"):
        check_held(record, value_of(record, WHOLE))


@pytest.mark.parametrize(
    "made",
    [
        {"count": -(2**63)},
        {"weight": 3},
        {"price": Decimal("1.5000000000000")},
        {"price": Decimal("1e17")},
        {"price": Decimal("0e-30")},
        {"sent": datetime.datetime(2024, 2, 29)},
        {"currency": "EUR"},
    ],
    ids=str,
)
def test_what_a_column_holds_is_a_row(made: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Row, "made", made)
    record = record_of(Row)
    check_held(record, value_of(record, WHOLE))


@dataclass
class Phone:
    number: str
    country: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.number.startswith("+"):
            raise ValueError("takes a plus")
        self.number, self.country = self.number[1:], self.number[1:3]


def test_a_row_that_cannot_be_made_again_is_none() -> None:
    record = record_of(Phone)
    with pytest.raises(AnswerRejected, match=r"^Phone is not made of its fields again: .*takes a plus"):
        check_held(record, value_of(record, {"number": "+49"}))


class Stripped(pydantic.BaseModel):
    city: str

    @pydantic.field_validator("city")
    @classmethod
    def or_nothing(cls, _city: str) -> Any:
        return None


def test_it_is_a_dead_letter() -> None:
    with pipeline() as running:
        model = ModelConfig(model="any")
        transform = Extract(Stripped, model, open_client=ConstrainedClient).with_exception_handling()
        rows, letters = running | beam.Create([Prompt(id="a", text="Anna")]) | transform
        check(rows | beam.Reshuffle(), lambda found: not found, "rows")
        said = "city: the row has None, which is no text that its column holds"
        check(letters, lambda found: [each.reason for each in found] == [said], "letters")


@dataclass
class Inner:
    days: list[datetime.date]
    price: Annotated[Decimal, pydantic.Field(decimal_places=2)] = Decimal(0)


@dataclass
class Outer:
    inners: list[Inner]


def test_what_is_wrong_with_a_value_is_told_in_short_with_its_path() -> None:
    with pytest.raises(AnswerRejected, match=r"^inners\[1\]\.days\[0\]: the answer has .{80}, which is no date$"):
        value_of(record_of(Outer), {"inners": [{"days": [], "price": 1}, {"days": ["x" * 999], "price": 1}]})


@dataclass
class Refused:
    a: int

    def __post_init__(self) -> None:
        raise ValueError("never")


@dataclass
class Refusing:
    inners: list[Refused]


def test_what_is_wrong_with_an_inner_row_is_told_with_its_path() -> None:
    with pytest.raises(AnswerRejected, match=r"^inners\[0\]: Refused does not take the answer: never"):
        value_of(record_of(Refusing), {"inners": [{"a": 1}]})


def test_an_answer_that_is_nested_too_deep_is_no_row() -> None:
    decoded('{"a": ' + "[" * 98 + "]" * 98 + "}")
    with pytest.raises(AnswerRejected, match=r"^the answer is nested deeper than 100 levels$"):
        decoded('{"a": ' + "[" * 400 + "]" * 400 + "}")
