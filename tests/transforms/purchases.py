"""Purchases: rows with all that tables have types for, and a client that answers with them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from concurrent.futures import Future
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pydantic

from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import Content
from millrace.transforms.models.stand_in import StandInClient, stand_in_output


class Currency(enum.StrEnum):
    EUR = "EUR"
    USD = "USD"


class City(NamedTuple):
    name: str
    code: str | None


class Line(NamedTuple):
    item: str
    price: Annotated[Decimal, pydantic.Field(max_digits=8, decimal_places=2)]


@dataclasses.dataclass
class Purchase:
    number: str
    day: datetime.date
    sent: datetime.datetime | None
    total: Decimal
    currency: Currency
    paid: bool
    weight: float
    pieces: int
    city: City
    lines: list[Line]
    tags: list[str] | None


ANSWERS: list[dict[str, Any]] = [
    {
        "number": "A-1",
        "day": "2024-02-29",
        "sent": "2024-03-01T00:30:00.5+01:00",
        "total": "9.50",
        "currency": "EUR",
        "paid": True,
        "weight": 0.5,
        "pieces": 2,
        "city": {"name": "Oslo", "code": "0150"},
        "lines": [{"item": "lamp", "price": "4.75"}, {"item": "lämp", "price": "4.75"}],
        "tags": ["new", "é"],
    },
    {
        "number": "A-2",
        "day": "1999-12-31",
        "sent": None,
        "total": "123456789012345678.123456789",
        "currency": "USD",
        "paid": False,
        "weight": 1e-7,
        "pieces": 10**18 - 1,
        "city": {"name": "Lima", "code": None},
        "lines": [],
        "tags": None,
    },
    {
        "number": "A-3",
        "day": "2024-02-29",
        "sent": "2024-02-29T12:00:00Z",
        "total": "0.5",
        "currency": "EUR",
        "paid": False,
        "weight": 3,
        "pieces": 0,
        "city": {"name": "Oslo", "code": None},
        "lines": [{"item": "nail", "price": "0.50"}],
        "tags": [],
    },
]
"""Decimals as text, which the client writes as numbers."""
_DECIMALS = ("total", "price")


class PurchasesClient(StandInClient):
    """Answers the documents `0`, `1`, `2` with these."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:  # noqa: ARG002
        assert isinstance(prompt, str)
        text = written(ANSWERS[int(prompt.removesuffix("\nJSON:")[-1])])
        said = Logprobs([], [], tokens=[TokenLogprob(text, 1, -0.5, [])])
        found = stand_in_output(1, [1], text=text, logprobs=said)
        return self._start(lambda: found)


def written(answer: Any) -> str:
    """As JSON, its decimals as they stand."""
    if isinstance(answer, list):
        return "[" + ", ".join(map(written, answer)) + "]"
    if not isinstance(answer, dict):
        return json.dumps(answer, ensure_ascii=False)
    pairs = (f"{json.dumps(key)}: {value if key in _DECIMALS else written(value)}" for key, value in answer.items())
    return "{" + ", ".join(pairs) + "}"
