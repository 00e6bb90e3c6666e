"""Python's types as the types of rows, and what is refused of them."""

import dataclasses
import datetime
import enum
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import annotated_types
import pydantic
import pytest

from millrace import Ask, Span
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.shapes import Piece
from tests.transforms.typed.invoices import Invoice, Order


def record(annotation: Any) -> Any:
    """The record of a class with one field."""
    return record_of(dataclasses.make_dataclass("Row", [("a", annotation)]))


def schema(annotation: Any) -> Any:
    return schema_of(record(annotation).members[0].shape)


def test_a_type_says_what_its_rows_are_valid_under() -> None:
    found = schema_of(record_of(Invoice))
    assert found["required"] == list(Invoice._fields)
    assert found["properties"]["issued"] == {
        "type": "string",
        "format": "date",
        "description": "the day the invoice was issued, YYYY-MM-DD",
    }
    assert found["properties"]["kind"] == {"anyOf": [{"enum": ["sale", "return"]}, {"type": "null"}]}
    assert found["properties"]["lines"]["items"]["properties"]["quantity"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 999,
    }


def test_constraints_are_taken_from_pydantic_and_annotated_types_alike() -> None:
    assert schema(Annotated[int, annotated_types.Gt(3), annotated_types.Lt(9)]) == {
        "type": "integer",
        "exclusiveMinimum": 3,
        "exclusiveMaximum": 9,
    }
    assert schema(Annotated[float, annotated_types.Interval(ge=0, le=1)]) == {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
    }
    assert schema(Annotated[str, annotated_types.Len(1, 5)]) == {"type": "string", "minLength": 1, "maxLength": 5}
    assert schema(Annotated[Decimal, pydantic.Field(ge=Decimal("0.5"))]) == {"type": "number", "minimum": 0.5}
    assert schema(Annotated[list[str], annotated_types.MaxLen(2)]) == {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": 2,
    }


def test_a_compiled_pattern_is_its_text() -> None:
    for text in ("^[a-c]+$", "^(?i:a)$"):
        leaf = record(Annotated[str, pydantic.Field(pattern=re.compile(text))]).members[0].shape
        assert leaf.schema == {"type": "string", "pattern": text}


def test_a_model_goes_by_its_names_and_its_aliases() -> None:
    members = record_of(Order).members
    assert (members[0].name, members[0].key) == ("buyer", "customer")
    assert members[0].shape == Piece(Span.words)


def test_a_description_is_found_where_it_stands() -> None:
    said = pydantic.Field(description="what it is", max_length=3)
    span = Annotated[str, Span(), pydantic.Field(description="what it is")]
    for annotation in (Annotated[str, said], Annotated[str | None, said], span):
        assert record(annotation).members[0].hint == "what it is"


def test_a_question_is_in_the_key_and_a_span_may_be_optional_or_in_a_list() -> None:
    found = record(Annotated[Annotated[str, Span.chars] | None, Ask("who?")]).members[0]
    assert (found.key_with_question, found.shape.shape) == ("a (who?)", Piece(Span.chars))
    for annotation in (Annotated[int, Ask("when?")] | None, list[Annotated[int, Ask("when?")]]):
        assert record(annotation).members[0].key_with_question == "a (when?)"
    assert record(Annotated[list[str], Span()]).members[0].shape.item == Piece(Span.words)
    assert record(Annotated[str | None, Span]).members[0].shape.shape == Piece(Span.words)


class Plain(enum.Enum):
    A = "a"


class Tree(NamedTuple):
    inner: "list[Tree]"


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (dict[str, int], r"Row.a: dict"),
        (Any, "Row.a"),
        (int | str, r"int \| str: a row has one type a field"),
        (tuple[int, str], "Row.a"),
        (list[datetime.time], r"Row.a\[\]: time"),
        (Annotated[int, Span()], "a Span of int: takes str"),
        (Literal["a", 1], "Row.a: a choice"),
        (Plain, "enum.StrEnum"),
        (Tree, "Tree is within itself"),
        (Annotated[Decimal, pydantic.Field(decimal_places=12)], "takes 0 to 9"),
        (
            Annotated[str, pydantic.Field(pattern=re.compile("^a+$", re.I | re.S))],
            "Row.a: pattern: .*IGNORECASE.*flags",
        ),
        (Annotated[list[int], pydantic.Field(min_length=3, max_length=2)], "a list of 3 to 2 items"),
        (Annotated[list[int], annotated_types.Ge(3)], "Row.a: ge is not held here"),
        (Annotated[Literal["aa", "b"], pydantic.Field(max_length=1)], "max_length is not held here"),
        (annotated_types.LowerCase[str], "a validator is not held here: takes a pydantic model"),
        (Annotated[str, pydantic.AfterValidator(str.strip)], "a validator is not held here"),
        (Annotated[str, pydantic.StringConstraints(to_upper=True)] | None, "to_upper is not held here"),
    ],
)
def test_what_no_row_has_is_refused_by_its_field(annotation: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        record(annotation)


@pytest.mark.parametrize("given", [int, 3, None, dataclasses.make_dataclass("Empty", [])])
def test_what_is_no_type_of_rows_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="takes"):
        record_of(given)
