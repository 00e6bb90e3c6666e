"""Types that are legal and odd: each gives valid rows of itself, or is refused by the name of its field."""

import dataclasses
import datetime
import enum
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar

import annotated_types
import jsonschema
import pydantic
import pytest
from apache_beam.coders import registry

from millrace import Ask, Extract, Span
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.typed.answer_values import read
from millrace.transforms.typed.beam_schemas import element_type
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.examples import example_answer
from millrace.transforms.typed.json_schemas import schema_of
from millrace.transforms.typed.record_grammar import RecordGrammar
from millrace.transforms.typed.values import decoded, value_of
from tests.transforms.typed.invoices import TYPES
from tests.transforms.typed.test_record_grammar import DOCUMENT, sentence

Field = pydantic.Field
T = TypeVar("T")
UserId = NewType("UserId", int)


class Currency(enum.StrEnum):
    EUR = "EUR"
    USD = "USD"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Quoted(enum.StrEnum):
    A = 'say "a"\n'
    B = "\x7f\x01\u2028é😀\\"


@dataclasses.dataclass
class Inner:
    x: int
    y: str | None = None


@dataclasses.dataclass
class WithDefaults:
    a: int = 3
    b: list[int] = dataclasses.field(default_factory=list)
    c: int = dataclasses.field(init=False, default=7)


class CamelCase(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.AliasGenerator(alias=lambda name: name.title().replace("_", "")),
        extra="forbid",
        frozen=True,
    )
    first_name: str = Field(max_length=9)
    class_: int = Field(alias="class")
    inner: Inner


class SeveralAliases(pydantic.BaseModel):
    kind: Literal["given"] | None = Field("default", validation_alias=pydantic.AliasChoices("the kind", "type"))  # type: ignore[arg-type]


class Box(pydantic.BaseModel, Generic[T]):
    value: T


@pydantic.dataclasses.dataclass
class Checked:
    a: int = Field(ge=1, le=3)
    b: Literal["x", "y"] = Field("x", alias="the b")


class Constrained(pydantic.BaseModel):
    positive: pydantic.PositiveInt
    short: pydantic.constr(max_length=3, pattern="^[a-c]+$")  # type: ignore[valid-type]
    many: list[pydantic.conint(ge=2, lt=5)] = Field(min_length=1, max_length=2)  # type: ignore[valid-type]
    share: Decimal = Field(gt=0, lt=1, decimal_places=3)
    price: Decimal = Field(ge=99, max_digits=4, decimal_places=2)
    quarter: Annotated[Decimal, Field(multiple_of=Decimal("0.25"), le=2)]


class Names(NamedTuple):
    count: int  # type: ignore[assignment]
    index: Literal["größe", ""]  # type: ignore[assignment]
    größe: bool


def row(annotation: Any) -> Any:
    return NamedTuple("Row", [("a", annotation)])


ODD: dict[str, Any] = {
    "optional list of enums": row(Optional[list[Currency]]),  # noqa: UP045
    "list of lists of optional integers": row(list[list[int | None]]),
    "list of optional records": row(list[Inner | None]),
    "optional record": row(Inner | None),
    "literal members of an enum": row(Literal[Currency.EUR, None]),
    "literal members of an integer enum": row(list[Literal[Level.LOW, Level.HIGH]]),
    "literal true": row(Literal[True]),
    "enum of characters that are escaped": row(Quoted),
    "optional date": row(datetime.date | None),
    "decimal whose bounds are beyond its digits": row(Annotated[Decimal, Field(le=10**30, ge=-(10**30))]),
    "decimal without digits before the point": row(Annotated[Decimal, Field(max_digits=2, decimal_places=2)]),
    "integer whose bounds are beyond 64 bits": row(Annotated[int, Field(ge=10**15, le=10**20)]),
    "float whose bound is a large one": row(Annotated[float, Field(gt=0, le=1e300)]),
    "lists of lists of spans": row(list[list[Annotated[str, Span.chars]]]),
    "optional list of optional spans": row(list[Annotated[str, Span()] | None] | None),
    "a span that is not empty": row(Annotated[str, Span(), Field(min_length=1)]),
    "question with quotes": row(Annotated[int | None, Ask('what "n"\n\\ is it, \x7f?')]),
    "new type": row(Annotated[UserId, Field(ge=7)]),
    "defaults": WithDefaults,
    "aliases that are made, and keywords": CamelCase,
    "several aliases": SeveralAliases,
    "generic model": Box[int],
    "dataclass of pydantic": Checked,
    "constraints of pydantic": Constrained,
    "fields named as keywords": pydantic.create_model("Keywords", **{"class": (int, ...), "from": (bool | None, None)}),  # type: ignore[call-overload]
    "fields named as methods of tuples": Names,
    "properties whose names are none": {
        "type": "object",
        "required": ["class", "1st"],
        "properties": {
            name: {"type": "integer"}
            for name in ("class", "1st", "a-b", "a_b", "_x", "", "größe", "None", "self", 'a"b\n', "\x7f")
        },
    },
    "choices that a schema narrows": {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"a": {"enum": ["x", "yy"], "minLength": 2}, "b": {"type": "string", "enum": ["x", 3]}},
    },
    "values that are no text": {
        "type": "object",
        "required": ["a", "b", "c"],
        "properties": {"a": {"const": 3.5}, "b": {"enum": ["x", None, 2.5]}, "c": True},
    },
    "references that recur": {
        "type": "object",
        "required": ["v"],
        "properties": {"v": {"type": "integer"}, "k": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
    },
}


@pytest.mark.parametrize("given", [*TYPES, *ODD.values()], ids=[*map(str, range(len(TYPES))), *ODD])
def test_each_gives_valid_rows_that_survive_beams_coder_and_may_be_examples(given: Any) -> None:
    record = record_of(given)
    grammar = RecordGrammar(record).of(DOCUMENT)
    coder = registry.get_coder(element_type(record))
    for seed in range(5):
        found = json.loads(read(record, sentence(grammar, seed), DOCUMENT).json)
        jsonschema.Draft202012Validator(schema_of(record)).validate(found)
        if isinstance(given, dict):
            jsonschema.Draft202012Validator(given).validate(found)
        value = value_of(record, decoded(json.dumps(found)))
        assert coder.decode(coder.encode(value)) == value
        shown = read(record, example_answer(record, value), DOCUMENT)
        assert value_of(record, decoded(shown.json)) == value


def test_a_value_reaches_its_field_whatever_its_alias() -> None:
    record = record_of(SeveralAliases)
    assert value_of(record, {"the kind": "given"}).kind == "given"
    record = record_of(Checked)
    assert value_of(record, {"a": 2, "the b": "y"}) == Checked(2, "y")


def test_a_literal_member_of_an_enum_is_that_member() -> None:
    (found,) = value_of(record_of(row(Literal[Level.LOW, Level.HIGH])), {"a": 2})
    assert found is Level.HIGH


def test_a_decimal_may_be_as_large_as_its_digits_say() -> None:
    record = record_of(Constrained)
    grammar = RecordGrammar(record).of("")
    prices = {json.loads(read(record, sentence(grammar, seed), "").json)["price"] for seed in range(40)}
    assert any(price > 99 for price in prices)


class Tree(pydantic.BaseModel):
    children: list["Tree"]


@dataclasses.dataclass
class Chicken:
    egg: "Egg | None"


@dataclasses.dataclass
class Egg:
    chicken: Chicken | None


@dataclasses.dataclass
class HalfMade:
    a: int
    scale: dataclasses.InitVar[int]


@pydantic.dataclasses.dataclass
class HalfChecked:
    a: int
    scale: dataclasses.InitVar[int]


class AliasPath(pydantic.BaseModel):
    a: str = Field("default", validation_alias=pydantic.AliasPath("aa", 0))


EARLIEST = annotated_types.Ge(datetime.date(2020, 1, 1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Tree, r"^Tree.children\[\]: Tree is within itself"),
        (Chicken, "^Chicken.egg.chicken: Chicken is within itself"),
        (HalfMade, "^HalfMade: is made of scale too"),
        (HalfChecked, "^HalfChecked: is made of scale too"),
        (AliasPath, "^AliasPath.a: the alias .* takes one that is a name"),
        (row(Sequence), "^Row.a: "),
        (row(list), "^Row.a: list: takes"),
        (row(Literal[-3, 10**20]), "^Row.a: .* integers of 64 bits"),
        (row(Literal[Currency.EUR, "USD"]), "^Row.a: a choice"),
        (row(Annotated[datetime.date, EARLIEST]), "^Row.a: ge is not held here: takes a pydantic model"),
        (row(list[Annotated[str, Span(), Field(max_length=4)]]), r"^Row.a\[\]: max_length is not held here"),
        (row(Annotated[str, Field(pattern="^(?=a)b$")]), "^a: `pattern`: look-ahead"),
        (row(Annotated[int, Field(gt=3, lt=4)]), "^a: .*no integer"),
        (row(list[Annotated[int, Field(ge=10**19)]]), r"^a\[\]: takes a schema that something satisfies"),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "^a: takes a schema that something satisfies"),
        ({"type": "object", "properties": []}, r"the JSON Schema: properties is \[\]: takes an object"),
        (
            {"type": "object", "properties": {"a": {}}, "required": "a"},
            "the JSON Schema: required is 'a': takes a list of names",
        ),
    ],
)
def test_what_no_row_can_be_of_is_refused_before_the_job_by_the_name_of_its_field(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Extract(given, "any")
