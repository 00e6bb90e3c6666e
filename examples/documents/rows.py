"""The types of rows that the example documents become: `millrace extract --schema examples.documents.rows:Invoice`."""

import datetime
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

from millrace import Ask, Span


class Priority(enum.StrEnum):
    """How urgent an order is."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True)
class Line:
    """One of an order's lines."""

    item: Annotated[str, Span()]
    quantity: int


@dataclass(frozen=True)
class Order:
    """Who orders what."""

    number: Annotated[str, Span()]
    date: datetime.date
    customer: Annotated[str, Span()]
    city: Annotated[str | None, Span(), Ask("where to ship")]
    delivery: Annotated[datetime.date | None, Ask("needed by")]
    priority: Priority | None
    lines: list[Line]
    total: Decimal | None


@dataclass(frozen=True)
class Invoice:
    """Who asks whom for how much."""

    number: Annotated[str, Span()]
    date: Annotated[datetime.date, Ask("when it was issued")]
    due: Annotated[datetime.date | None, Ask("when it is to be paid")]
    seller: Annotated[str, Span()]
    customer: Annotated[str, Span()]
    items: Annotated[list[str], Span()]
    terms: Literal["on receipt", "14 days", "30 days", "60 days"] | None
    tax: Decimal | None
    total: Decimal
    currency: Literal["EUR", "USD", "GBP", "CHF"]


@dataclass(frozen=True)
class Review:
    """Who thinks what of something."""

    product: Annotated[str, Span()]
    author: Annotated[str | None, Span(), Ask("who wrote it")]
    date: datetime.date | None
    stars: int | None
    recommended: bool | None
    sentiment: Literal["positive", "negative"]
