"""Shapes of Python's types: dataclasses, NamedTuples, pydantic's models.

pydantic and annotated-types are not needed: what they say of a field is read from attributes by their names.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

from millrace.model_manager.wire.errors import ConfigError

from .leaves import MOST_DIGITS, MOST_PLACES, bare, choice
from .shapes import Ask, Items, Kind, Leaf, Maybe, Member, Piece, Record, Schema, Shape, Span

_KINDS: dict[Any, Kind] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Decimal: "decimal",
    datetime.date: "date",
    datetime.datetime: "datetime",
}
_BOUNDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_DIGITS = ("max_digits", "decimal_places")
_SAID = (*_BOUNDS, *_LENGTHS, *_DIGITS)
_CHECKED = {
    "func": "a validator",
    **{name: name for name in ("strip_whitespace", "to_upper", "to_lower", "ascii_only")},
}
"""What checks and changes have that nothing but a model heeds, and how they are called."""
_HELD: dict[Kind, Sequence[str]] = {
    "text": tuple(_LENGTHS),
    "integer": tuple(_BOUNDS),
    "number": tuple(_BOUNDS),
    "decimal": (*_BOUNDS, *_DIGITS),
}
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_TAKEN = (
    "takes str, int, float, bool, Decimal, date, datetime, enums, Literal, Span, lists, T | None, "
    "and dataclasses, NamedTuples or pydantic models of these"
)


def record_of_class(given: type, path: str = "", within: tuple[type, ...] = ()) -> Record:
    """The record of a class; raises ConfigError naming the field that no row can have."""
    where = path or given.__name__
    if given in within:
        raise ConfigError(f"{where}: {given.__name__} is within itself: takes types that end")
    members = tuple(_member(*found, f"{where}.{found[0]}", (*within, given)) for found in _fields(given, where))
    return Record(given.__name__, members, given, by_key=_is_model(given))


def is_record_class(given: Any) -> bool:
    """Whether it is a class that has fields."""
    if not isinstance(given, type):
        return False
    return dataclasses.is_dataclass(given) or _is_model(given) or _is_named_tuple(given)


def _is_model(given: Any) -> bool:
    """Whether the class is pydantic's: a model, or one of its dataclasses."""
    return _model_fields(given) is not None


def _model_fields(given: Any) -> dict[str, Any] | None:
    found = getattr(given, "__pydantic_fields__", getattr(given, "model_fields", None))
    return found if isinstance(found, dict) else None


def _is_named_tuple(given: type) -> bool:
    return issubclass(given, tuple) and hasattr(given, "_fields") and hasattr(given, "__annotations__")


def _fields(given: type, where: str) -> Iterator[tuple[str, str, Any, list[Any], str]]:
    """(name, key, annotation, what is said of it, a description) of each."""
    if (fields := _model_fields(given)) is not None:
        for name, info in fields.items():
            if getattr(info, "init_var", None):
                _check_optional(name, info.is_required(), where)
            elif info.init is not False:
                key = _key(name, info, f"{where}.{name}")
                yield name, key, info.annotation, list(info.metadata), info.description or ""
        return
    try:
        hints = typing.get_type_hints(given, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{where}: {error}: takes annotations that can be looked up in its module") from None
    for name in _names(given, where):
        yield name, name, hints[name], [], ""


def _names(given: type, where: str) -> Sequence[str]:
    """The fields that a dataclass or a NamedTuple is made with."""
    if not dataclasses.is_dataclass(given):
        return list(given._fields)  # type: ignore[attr-defined]
    names = [each.name for each in dataclasses.fields(given) if each.init]
    for taken in inspect.signature(given).parameters.values():
        if taken.name not in names and taken.kind not in _ANY_NUMBER:
            _check_optional(taken.name, taken.default is taken.empty, where)
    return names


def _check_optional(name: str, is_required: bool, where: str) -> None:
    """Raises ConfigError for a required argument that is no field."""
    if is_required:
        raise ConfigError(f"{where}: is made of {name} too: takes a class that is made of its fields alone")


def _key(name: str, info: Any, path: str) -> str:
    """The key by which a model takes a value: its name or its alias, the first if there are several."""
    alias = info.validation_alias or info.alias
    choices = [name] if alias is None else getattr(alias, "choices", [alias])
    key = next((each for each in choices if isinstance(each, str)), None)
    if key is None:
        raise ConfigError(f"{path}: the alias {alias}: takes one that is a name")
    return key


def _member(
    name: str, key: str, annotation: Any, said: list[Any], hint: str, path: str, within: tuple[type, ...]
) -> Member:
    questions = [*_questions(annotation), *(each.question for each in said if isinstance(each, Ask))]
    hint = hint or _description(annotation)
    return Member(name, _shape(annotation, said, path, within), key, " ".join(questions), hint)


def _description(annotation: Any) -> str:
    """What a `Field(description=…)` of pydantic says within the annotation, as it does in a dataclass."""
    while typing.get_origin(annotation) is Annotated:
        annotation, *said = typing.get_args(annotation)
        for each in said:
            if isinstance(found := getattr(each, "description", None), str):
                return found
    return ""


def _questions(annotation: Any) -> Iterator[str]:
    """What is asked anywhere in a field's type: it has one key."""
    annotation, said = _taken_apart(annotation)
    yield from (each.question for each in said if isinstance(each, Ask))
    for argument in typing.get_args(annotation):
        yield from _questions(argument)


def _taken_apart(annotation: Any) -> tuple[Any, list[Any]]:
    """Annotated[type, …] as the type and what is said of it."""
    said: list[Any] = []
    while typing.get_origin(annotation) is Annotated:
        annotation, *more = typing.get_args(annotation)
        said = [*_flat(more), *said]
    return annotation, said


def _flat(said: Iterable[Any]) -> Iterator[Any]:
    """What is said; Field(…) of pydantic holds it in a list."""
    for each in said:
        inner = getattr(each, "metadata", None)
        yield from inner if isinstance(inner, list) else (Span() if each is Span else each,)


def _shape(annotation: Any, said: list[Any], path: str, within: tuple[type, ...]) -> Shape:
    annotation, more = _taken_apart(annotation)
    said = [*more, *said]
    if isinstance(annotation, typing.NewType):
        return _shape(annotation.__supertype__, said, path, within)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _optional(arguments, said, path, within)
    if origin is Literal:
        _check_held(said, (), path, within)
        return _literal(arguments, path)
    if origin in (list, Sequence) and arguments:
        _check_held(said, ("min_length", "max_length"), path, within)
        return _items(arguments, said, path, within)
    if spans := [each for each in said if isinstance(each, Span)]:
        if annotation is not str:
            raise ConfigError(f"{path}: a Span of {_shown(annotation)}: takes str")
        more = [each for each in said if getattr(each, "min_length", None) != 1]  # no span is empty
        _check_held(more, (), path, within)
        return Piece(spans[-1])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        _check_held(said, (), path, within)
        return _enum(annotation, path)
    if is_record_class(annotation):
        _check_held(said, (), path, within)
        return record_of_class(annotation, path, within)
    if annotation in _KINDS:
        _check_held(said, _HELD.get(_KINDS[annotation], ()), path, within)
        return _leaf(_KINDS[annotation], said, path)
    raise ConfigError(f"{path}: {_shown(annotation)}: {_TAKEN}")


def _optional(arguments: tuple[Any, ...], said: list[Any], path: str, within: tuple[type, ...]) -> Shape:
    others = [each for each in arguments if each is not type(None)]
    if len(others) != 1 or len(others) == len(arguments):
        raise ConfigError(f"{path}: {' | '.join(map(_shown, arguments))}: a row has one type a field; {_TAKEN}")
    return _maybe(_shape(others[0], said, path, within))


def _maybe(shape: Shape) -> Maybe:
    return shape if isinstance(shape, Maybe) else Maybe(shape)


def _check_held(said: list[Any], held: Sequence[str], path: str, within: tuple[type, ...]) -> None:
    """Raises ConfigError for what is said of the values, and neither the grammar nor their class would hold."""
    more = list(_said(said, tuple(name for name in _SAID if name not in held)))
    more += [_CHECKED[name] for name, value in _said(said, tuple(_CHECKED)).items() if value]
    if more and not _is_model(within[-1]):
        raise ConfigError(f"{path}: {more[0]} is not held here: takes a pydantic model, which checks it")


def _literal(values: tuple[Any, ...], path: str) -> Shape:
    given = [value for value in values if value is not None]
    made = type(given[0]) if given and isinstance(given[0], enum.Enum) else None
    try:
        if made is not None and all(type(value) is made for value in given):
            leaf = choice([value.value for value in given], made)
        else:
            leaf = choice(given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Maybe(leaf) if None in values else leaf


def _enum(given: type[enum.Enum], path: str) -> Leaf:
    if not issubclass(given, str | int):
        raise ConfigError(f"{path}: {given.__name__}: takes enums that are str or int too (enum.StrEnum, enum.IntEnum)")
    return choice([member.value for member in given], given)


def _items(arguments: tuple[Any, ...], said: list[Any], path: str, within: tuple[type, ...]) -> Items:
    lengths = _said(said, ("min_length", "max_length"))
    own = [each for each in said if isinstance(each, Span)]  # Annotated[list[str], Span()] is meant for the strings
    item = _shape(arguments[0], own, f"{path}[]", within)
    return Items(item, lengths.get("min_length", 0), lengths.get("max_length"))


def _leaf(kind: Kind, said: list[Any], path: str) -> Leaf:
    leaf = bare(kind)
    if kind == "decimal":
        return Leaf(kind, leaf.schema | _keywords(said, _BOUNDS, path), *_places(said, path))
    if kind in ("integer", "number"):
        return Leaf(kind, leaf.schema | _keywords(said, _BOUNDS, path))
    return Leaf(kind, leaf.schema | _keywords(said, _LENGTHS, path)) if kind == "text" else leaf


def _places(said: list[Any], path: str) -> tuple[int, int]:
    """How many digits a decimal has after its point, and before it; of `max_digits` alone, two stand after it."""
    given = _said(said, _DIGITS)
    total = given.get("max_digits", MOST_DIGITS + MOST_PLACES)
    places = given.get("decimal_places", min(2, total) if "max_digits" in given else MOST_PLACES)
    if not 0 <= places <= min(total, MOST_PLACES) or total < 1:
        raise ConfigError(f"{path}: {places} of {total} digits after the point: takes 0 to {MOST_PLACES}")
    return places, min(total - places, MOST_DIGITS)


def _keywords(said: list[Any], names: dict[str, str], path: str) -> Schema:
    found = _said(said, tuple(names))
    return {names[name]: _plain(value, f"{path}: {name}") for name, value in found.items()}


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, re.Pattern):
        return _expression(value, what)
    if not isinstance(value, Decimal):
        return value
    plain = int(value) if value == value.to_integral_value() else float(value)
    if Decimal(repr(plain)) != value:
        raise ConfigError(f"{what}={value}: takes a number of up to 15 digits")
    return plain


def _expression(compiled: re.Pattern[str], what: str) -> str:
    """Its text, if that says all."""
    if beyond := compiled.flags & ~re.compile(compiled.pattern).flags:
        raise ConfigError(f"{what}: {re.RegexFlag(beyond)!r}: takes a pattern without flags")
    return compiled.pattern


def _said(said: list[Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What is said under these names, the last said first to count."""
    found = {
        name: getattr(each, name, None) for each in said for name in names if getattr(each, name, None) is not None
    }
    return {name: value for name, value in found.items() if value is not None}


def _shown(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
