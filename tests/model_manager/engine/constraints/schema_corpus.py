"""461 public JSON Schemas with valid and invalid instances, which lie beside the checkout in shared/data."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.protocols import Validator

_ROOT = Path(__file__).parents[4]
_DIGITS = 25
_NAME = "shared/data/jsonschemas.jsonl.gz"
CORPUS = next((folder / _NAME for folder in _ROOT.parents if (folder / _NAME).is_file()), _ROOT.parent / _NAME)


@dataclass(frozen=True)
class Case:
    """A schema, and values that it validates and does not."""

    name: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]


@cache
def corpus() -> list[Case]:
    """All of them; raises FileNotFoundError where they are not there."""
    with gzip.open(CORPUS) as lines:
        return [_case(json.loads(line)) for line in lines]


def validator(schema: Any) -> Validator:
    """A validator of the draft that the schema names, else of 2020-12; its numbers are exact, unlike floats."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(exact, format_checker=kind.FORMAT_CHECKER)


def exactly(text: str) -> Any:
    """The value of a JSON text, with exact numbers."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> Decimal | float:
    """Exact, an integer where it is one, but for an exponent that is beyond all reckoning."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return float(text)
    return int(exact) if abs(exact.adjusted()) < _DIGITS and exact == exact.to_integral_value() else exact


def _case(row: dict[str, Any]) -> Case:
    by_validity = {valid: [test["data"] for test in row["tests"] if test["valid"] is valid] for valid in (True, False)}
    return Case(row["name"], row["schema"], by_validity[True], by_validity[False])
