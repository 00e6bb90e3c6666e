"""One type in the forms in which a user may write it."""

import dataclasses
import datetime
import enum
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from millrace import Ask, Span


class Currency(enum.StrEnum):
    EUR = "EUR"
    USD = "USD"


class Line(NamedTuple):
    item: Annotated[str, Span()]
    quantity: Annotated[int, pydantic.Field(ge=1, le=999)]
    price: Annotated[Decimal, pydantic.Field(ge=0, decimal_places=2)]


class Invoice(NamedTuple):
    number: Annotated[str, Span.chars]
    issued: Annotated[datetime.date, Ask("the day the invoice was issued, YYYY-MM-DD")]
    sent: datetime.datetime | None
    currency: Currency
    kind: Literal["sale", "return", None]
    paid: bool
    lines: Annotated[list[Line], pydantic.Field(max_length=4)]
    weight: float
    codes: Annotated[list[Annotated[str, pydantic.Field(pattern="^[A-Z]{2}$")]], pydantic.Field(min_length=1)]
    note: Annotated[str, pydantic.Field(max_length=12)] | None = None


@dataclasses.dataclass
class Plain:
    name: str
    age: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen:
    name: Annotated[str, Span()]
    inner: Plain
    days: list[datetime.date]


class Address(pydantic.BaseModel):
    city: str = pydantic.Field(description="where it is shipped to", max_length=20)
    code: str | None = pydantic.Field(None, pattern="^[0-9]{5}$")


class Order(pydantic.BaseModel):
    buyer: Annotated[str, Span()] = pydantic.Field(alias="customer")
    total: Decimal = pydantic.Field(max_digits=8, decimal_places=2)
    addresses: list[Address]
    level: Literal[1, 2, 3]


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Parcel",
    "type": "object",
    "required": ["order-id", "day"],
    "properties": {
        "note": {"type": "string", "maxLength": 8},
        "order-id": {"type": "integer", "minimum": 1},
        "day": {"type": ["string", "null"], "format": "date", "description": "of sending"},
        "state": {"enum": ["sent", "lost"]},
        "size": {"$ref": "#/$defs/size"},
        "class": {"type": ["string", "number"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 3},
    },
    "$defs": {
        "size": {"type": "object", "required": ["w"], "properties": {"w": {"type": "number", "minimum": 0}}},
    },
}
TYPES: list[Any] = [Invoice, Plain, Frozen, Order, SCHEMA]
