"""A constraint on the text of one request's output: a regular expression, a JSON Schema, any JSON, a
grammar or a list of strings. Knows the constraint's form and size; what it means is compiled in the engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import msgspec

from .conversion import SettingsMeta, converted, fitted, nearest
from .errors import InvalidRequest
from .json_text import from_text

MOST_CHARACTERS = 2**21
"""Most characters of a grammar, and of a schema's strings together. A span of 100,000 characters needs that many."""
MOST_REGEX_CHARACTERS = 2**16
MOST_CHOICES = 10_000
MOST_SCHEMA_VALUES = 100_000
"""Objects, arrays, strings, numbers, keys of a schema."""
DEEPEST_SCHEMA = 100
"""Objects and arrays of a schema that stand inside each other."""

_SCHEMA = "json_schema"
_KINDS = ("regex", "json_schema", "json", "grammar", "choice")
_ELSEWHERE = {
    "pattern": "regex",
    "schema": "json_schema",
    "guided_json": "json_schema",
    "json_object": "json",
    "lark": "grammar",
    "ebnf": "grammar",
    "guided_grammar": "grammar",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "choices": "choice",
    "enum": "choice",
}
"""Kinds by the names that other libraries have for them."""
_SCHEMA_KEYWORDS = frozenset(
    "$schema $id $ref $defs definitions type enum const format properties required items prefixItems "
    "anyOf oneOf allOf".split()
)
"""What a JSON Schema has on top, and no constraint."""
_WRAPPER = frozenset(("name", "description", "strict", "schema"))
"""What OpenAI has around a schema."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Constraint(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    metaclass=SettingsMeta,
):
    """Exactly one of the kinds; the whole output, without what ends it, matches it.

    Raises InvalidRequest, naming `constraint` and the kind, for none, several, or one that is malformed or too large.
    """

    regex: str | None = None
    """A regular expression that the whole output matches; no look-around and no backreferences."""
    json_schema: dict[str, Any] | bool | None = None
    """A JSON Schema of draft 2020-12, 2019-09 or 7 (`$schema` says which). Limits: docs/reference/constraints.md."""
    json: bool = False
    """True: any JSON value."""
    grammar: str | None = None
    """A Lark grammar in llguidance's dialect; its `start` is the output."""
    choice: tuple[str, ...] | None = None
    """One of these strings."""

    def __post_init__(self) -> None:
        if isinstance(self.json_schema, dict):  # msgspec's way to normalize a frozen struct while it is made
            msgspec.structs.force_setattr(self, "json_schema", unwrapped(self.json_schema))
        given = [kind for kind in _KINDS if self._has(kind)]
        if len(given) != 1:
            raise InvalidRequest(f"constraint: takes one of {', '.join(_KINDS)}, got {', '.join(given) or 'none'}")
        _CHECKS[given[0]](getattr(self, given[0]))

    def _has(self, kind: str) -> bool:
        return self.json if kind == "json" else getattr(self, kind) is not None

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return next(kind for kind in _KINDS if self._has(kind))

    def key(self) -> bytes:
        """Equal for equal constraints. The order of a schema's keys counts: the output has the same."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | str) -> Self:
        """A row's constraint: an object, or its JSON as text, as tables have it. Raises InvalidRequest for an unknown
        kind or a value of another type.
        """
        fields = fields_of(given)
        if is_schema(fields):
            raise InvalidRequest(f'constraint: takes a JSON Schema as {{"{_SCHEMA}": {{…}}}}, got one by itself')
        with _named():
            return converted(fields, cls, InvalidRequest, what="kind", near=_nearest_kind)

    @classmethod
    def _nearest(cls, name: str) -> str | None:
        return _nearest_kind(name)

    @classmethod
    def _fitted(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        with _named():
            return fitted(fields, cls, InvalidRequest)


@contextmanager
def _named() -> Iterator[None]:
    """Errors within name the constraint."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(str(error) if str(error).startswith("constraint") else f"constraint: {error}") from None


def _nearest_kind(name: str) -> str | None:
    return _ELSEWHERE.get(name) or nearest(name, _KINDS)


def fields_of(given: Mapping[str, Any] | str) -> dict[str, Any]:
    """A constraint's fields, of an object or of a text that is its JSON; a schema that is a text is read too. Raises
    InvalidRequest for a text that is no object's JSON.
    """
    if isinstance(given, str) and given.lstrip("\ufeff \t\r\n")[:1] != "{":
        raise InvalidRequest(f"constraint: takes an object with {', '.join(_KINDS)}, or its JSON, got {given[:40]!r}")
    found = from_text("constraint", given) if isinstance(given, str) else given
    fields = {name: value for name, value in found.items() if value is not None}
    if fields.keys() == {"type", _SCHEMA} and fields["type"] == _SCHEMA:  # OpenAI's response_format
        del fields["type"]
    if isinstance(fields.get(_SCHEMA), str):
        fields[_SCHEMA] = from_text(f"constraint.{_SCHEMA}", fields[_SCHEMA])
    return fields


def unwrapped(schema: dict[str, Any]) -> dict[str, Any] | bool:
    """The schema within OpenAI's `{"name": …, "strict": …, "schema": {…}}`, with `{"type": "json_schema",
    "json_schema": …}` around that or not; any other as it is. Raises InvalidRequest where the schema in it is none.
    """
    named: Any = schema
    if schema.get("type") == _SCHEMA:  # which is no type
        named = {name: value for name, value in schema.items() if name != "type"}
        named = named[_SCHEMA] if named.keys() == {_SCHEMA} and isinstance(named[_SCHEMA], dict) else named
    if "schema" not in named or named.keys() - _WRAPPER:
        return schema
    where, found = f"{_SCHEMA}.schema", named["schema"]
    found = from_text(f"constraint.{where}", found) if isinstance(found, str) else found
    _check(where, isinstance(found, dict | bool), "an object, true or false", type(found).__name__)
    return found  # type: ignore[no-any-return]


def is_schema(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a JSON Schema by itself, or OpenAI's wrapper of one, and no constraint."""
    if not fields.keys().isdisjoint(_KINDS) or fields.get("type") == "json_object":
        return False
    return not fields.keys().isdisjoint(_SCHEMA_KEYWORDS) or ("schema" in fields and not fields.keys() - _WRAPPER)


def _check_regex(regex: str) -> None:
    _check_text("regex", regex, MOST_REGEX_CHARACTERS)


def _check_grammar(grammar: str) -> None:
    _check_text("grammar", grammar, MOST_CHARACTERS)
    _check("grammar", bool(grammar.strip()), "a Lark grammar with a rule `start`", "nothing")


def _check_json(_json: bool) -> None:
    """Checks nothing: any value of `json` is right."""


def _check_choice(choices: tuple[str, ...]) -> None:
    _check("choice", 0 < len(choices) <= MOST_CHOICES, f"1 to {MOST_CHOICES} strings", f"{len(choices)}")
    _check("choice", all(choices), "strings of 1 or more characters", "an empty one")
    _check("choice", len(set(choices)) == len(choices), "strings that differ", "one twice")
    size = sum(map(len, choices))
    _check("choice", size <= MOST_CHARACTERS, f"at most {MOST_CHARACTERS} characters in all", f"{size}")
    for text in choices:
        _check("choice", not _SURROGATE.search(text), "text that can be written as UTF-8", repr(text))


def _check_text(kind: str, text: str, most: int) -> None:
    _check(kind, len(text) <= most, f"at most {most} characters", f"{len(text)}")
    _check(kind, not _SURROGATE.search(text), "text that can be written as UTF-8", "a lone surrogate")


def _check_schema(schema: dict[str, Any] | bool) -> None:
    """JSON alone, and neither large nor deep: what reads it next is recursive, and not in Python."""
    _check("json_schema", isinstance(schema, dict | bool), "an object, true or false", repr(type(schema)))
    values = characters = 0
    pending: list[tuple[Any, int]] = [(schema, 0)]
    while pending:
        value, depth = pending.pop()
        _check("json_schema", depth <= DEEPEST_SCHEMA, f"at most {DEEPEST_SCHEMA} levels", "more")
        inner = _inner(value)
        pending.extend((each, depth + 1) for each in inner)
        values += 1 + len(inner)
        characters += _checked_length(value)
        _check("json_schema", values <= MOST_SCHEMA_VALUES, f"at most {MOST_SCHEMA_VALUES} values", "more")
        _check("json_schema", characters <= MOST_CHARACTERS, f"at most {MOST_CHARACTERS} characters", "more")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple) else []


def _checked_length(value: Any) -> int:
    """The characters of a string, 0 of anything else; raises InvalidRequest for what no JSON has, or no message."""
    if isinstance(value, str):
        _check("json_schema", not _SURROGATE.search(value), "text that can be written as UTF-8", "a lone surrogate")
        return len(value)
    if isinstance(value, float):
        _check("json_schema", math.isfinite(value), "finite numbers", repr(value))
    elif isinstance(value, int):
        _check("json_schema", -(2**63) <= value < 2**64, "integers of 64 bits", "a larger one")
    else:
        _check("json_schema", value is None or isinstance(value, dict | list | tuple), "JSON", repr(type(value)))
    return 0


def _check(kind: str, holds: bool, takes: str, got: str) -> None:
    if not holds:
        raise InvalidRequest(f"constraint.{kind}: takes {takes}, got {got}")


_CHECKS: dict[str, Any] = {
    "regex": _check_regex,
    "json_schema": _check_schema,
    "json": _check_json,
    "grammar": _check_grammar,
    "choice": _check_choice,
}
