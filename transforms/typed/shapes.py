"""Shapes: the parts of a type, however it was written: records of members, lists, spans, and leaves.

A shape is what all else here is made from: the grammar, the fields that the prompt lists, the JSON Schema, the Beam
schema, and the reading of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from millrace.model_manager.wire.errors import ConfigError

Kind = Literal["text", "integer", "number", "decimal", "boolean", "date", "datetime", "json"]
"""What a leaf is in Python and in Beam's schemas; `json` is any JSON value, which a row has as its text."""
Schema = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """`Annotated[str, Span()]`: the value is a piece of the document, as it stands there, and nothing else.

    It begins and ends where a word does, or with `by="chars"` anywhere. No span begins or ends with white space.
    """

    by: Literal["words", "chars"] = "words"
    words: ClassVar[Span]
    chars: ClassVar[Span]

    def __post_init__(self) -> None:
        if self.by not in ("words", "chars"):
            raise ConfigError(f"Span(by={self.by!r}): takes words or chars")


Span.words = Span("words")
Span.chars = Span("chars")


@dataclass(frozen=True)
class Ask:
    """`Annotated[date, Ask("the day it was issued, YYYY-MM-DD")]`: a question, put where the model is to answer it."""

    question: str

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not self.question.strip():
            raise ConfigError(f"Ask({self.question!r}): takes a question")


@dataclass(frozen=True)
class Leaf:
    """A value that has no members: `schema` says which values."""

    kind: Kind
    schema: Schema = field(hash=False)
    places: int = 9
    """Most digits after the point, for a decimal."""
    digits: int = 18
    """Most digits before the point, for a decimal."""
    convert: Callable[[Any], Any] | None = None
    """What makes the user's own value of it: an enum."""


@dataclass(frozen=True)
class Piece:
    """A piece of the document."""

    span: Span


@dataclass(frozen=True)
class Items:
    """A list."""

    item: Shape
    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and not 0 <= self.least <= self.most:
            raise ConfigError(f"a list of {self.least} to {self.most} items: takes a least that is not over the most")


@dataclass(frozen=True)
class Maybe:
    """A value or null."""

    shape: Shape


@dataclass(frozen=True)
class Member:
    """One of a record's values."""

    name: str
    """Name in rows: an identifier."""
    shape: Shape
    key: str
    """Name in JSON."""
    question: str = ""
    """Asked in the key itself, see Ask."""
    hint: str = ""
    """Said in the prompt alone."""
    required: bool = True
    """Whether the key is always there; a missing value is None."""

    @property
    def key_with_question(self) -> str:
        """The key as the model meets it."""
        return f"{self.key} ({self.question})" if self.question else self.key


@dataclass(frozen=True)
class Record:
    """A value of named members, in this order."""

    name: str
    members: tuple[Member, ...]
    make: type | None = None
    """The user's class; by default rows of a NamedTuple that is made from the members."""
    by_key: bool = False
    """Whether `make` takes values by their keys in JSON, as pydantic's models do, not by their names."""

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigError(f"{self.name} has no fields: takes a type with one or more")
        keys = [member.key_with_question for member in self.members]
        if len(set(keys)) < len(keys):
            raise ConfigError(f"{self.name} has two fields of one key: takes a key for each")

    def taken_as(self, member: Member) -> str:
        """The name by which `make` takes a member's value."""
        return member.key if self.by_key else member.name

    @property
    def in_order(self) -> tuple[Member, ...]:
        """Members in the order in which the model writes them: required members first."""
        return tuple(sorted(self.members, key=lambda member: not member.required))


Shape = Leaf | Piece | Items | Maybe | Record


def children(shape: Shape) -> Sequence[Shape]:
    """The shapes that it directly consists of."""
    if isinstance(shape, Maybe):
        return [shape.shape]
    if isinstance(shape, Items):
        return [shape.item]
    return [member.shape for member in shape.members] if isinstance(shape, Record) else []


def spans_of(shape: Shape) -> set[Span]:
    """The kinds of spans that are somewhere in it."""
    if isinstance(shape, Piece):
        return {shape.span}
    return {span for inner in children(shape) for span in spans_of(inner)}
