"""Numbers are within their bounds in the row too: a grammar holds what is written, not what is read of it."""

import math
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import AnswerRejected, ConfigError
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.checking import check_supported
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.leaves import bounded
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.shapes import Leaf, Record
from millrace.transforms.typed.values import decoded, value_of
from tests.transforms.constrained_client import compiler

Field: Any = pydantic.Field  # whose own types are narrower than what it takes
TINY = "0." + 400 * "0" + "1"


def record(annotation: Any) -> Record:
    return record_of(NamedTuple("Row", [("a", annotation)]))


def accepted(held: Record, number: str) -> bool:
    compiled = compiler().compile(Constraint(grammar=RecordGrammar(held).of("")))
    tokens = compiled.tokenizer.tokenize_str(f'{{"a": {number}}}')
    matcher = compiled.matcher()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("said", "written", "value"),
    [
        (Field(gt=0, lt=1), "0.99999999999999999999", math.nextafter(1, 0)),
        (Field(gt=0, lt=1), TINY, math.nextafter(0, 1)),
        (Field(gt=0, lt=1000), "999.99999999999999999", math.nextafter(1000, 0)),
        (Field(ge=-5, lt=0), f"-{TINY}", math.nextafter(0, -1)),
        (Field(ge=0.1, le=0.3), "0.1", 0.1),
        (Field(ge=0.1, le=0.3), "0.3", 0.3),
    ],
)
def test_a_float_is_the_nearest_within_its_bounds(said: Any, written: str, value: float) -> None:
    held = record(Annotated[float, said])
    assert accepted(held, written)
    text = read(held, f'{{"a": {written}}}', "").json
    assert value_of(held, decoded(text)).a == value
    assert float(text.removeprefix('{"a": ').removesuffix("}")) == value


def test_what_is_as_written_within_no_bounds_or_has_no_float_is_rejected() -> None:
    held = record(Annotated[float, Field(gt=1, lt=math.nextafter(1, 2))])
    with pytest.raises(AnswerRejected, match=r"a: .* no float is within"):
        read(held, '{"a": 1.0000000000000001}', "")
    with pytest.raises(AnswerRejected, match="a: 2 is beyond exclusiveMaximum 1"):
        read(record(Annotated[float, Field(lt=1)]), '{"a": 2}', "")


@pytest.mark.parametrize("text", ["0.99999999999999999999", "1.50", f'{{"x": [{TINY}]}}', '{"\\"": [null, true, "é"]}'])
def test_any_json_has_the_digits_of_the_answer(text: str) -> None:
    found = value_of(Leaf("json", {}), decoded(text))
    assert decoded(found) == decoded(text)


@pytest.mark.parametrize(
    ("said", "step"),
    [
        (Field(multiple_of=Decimal("0.25"), decimal_places=1), 0.5),
        (Field(multiple_of=Decimal("0.25"), decimal_places=0), 1),
        (Field(multiple_of=Decimal("0.25"), decimal_places=2), 0.25),
        (Field(multiple_of=Decimal("0.25")), 0.25),
        (Field(multiple_of=3, decimal_places=2), 3),
        (Field(multiple_of=Decimal("1e-12"), decimal_places=2), 0.01),
        (Field(decimal_places=2), 0.01),
    ],
)
def test_a_decimal_is_a_multiple_within_its_places(said: Any, step: float) -> None:
    leaf = record(Annotated[Decimal, Field(le=90), said]).members[0].shape
    assert isinstance(leaf, Leaf)
    assert bounded(leaf)["multipleOf"] == step


def test_a_decimal_that_its_column_cannot_hold_is_not_let_through() -> None:
    held = record(Annotated[Decimal, Field(multiple_of=Decimal("0.25"), decimal_places=1)])
    assert [number for number in ("0.25", "0.3", "1.75", "0.5", "2", "1.5") if accepted(held, number)] == [
        "0.5",
        "2",
        "1.5",
    ]


@pytest.mark.parametrize("said", [Field(gt=Decimal("0.12345678901234567890")), Field(multiple_of=0)])
def test_a_bound_that_cannot_be_held_is_refused_by_its_field(said: Any) -> None:
    with pytest.raises(ConfigError, match=r"\ba: "):
        check_supported(record(Annotated[Decimal, said]))
