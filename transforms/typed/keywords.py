"""The values that keywords of a JSON Schema take, and the places where a schema has another value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError

from .shapes import Schema


def place_of(path: str) -> str:
    """What a message calls a part of a schema."""
    return path or "the JSON Schema"


def check_keywords(schema: Schema, path: str) -> None:
    """Raises ConfigError, with the field's path, for a keyword that has what JSON Schema does not let it have."""
    for name, value in schema.items():
        holds, takes = _TAKES.get(name, _ANYTHING)
        if not holds(value):
            raise ConfigError(f"{place_of(path)}: {name} is {shown(value)}: takes {takes}")


def check_json(schema: Any, path: str) -> None:
    """Raises ConfigError for what is not JSON."""
    try:
        json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place_of(path)}: takes JSON: {error}") from None


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value))


ASSERTING = frozenset(
    "type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern format "
    "items prefixItems additionalItems maxItems minItems uniqueItems contains minContains maxContains unevaluatedItems "
    "maxProperties minProperties required properties patternProperties additionalProperties unevaluatedProperties "
    "dependencies dependentRequired dependentSchemas propertyNames if then else allOf anyOf oneOf not "
    "$ref $dynamicRef $recursiveRef".split()
)
"""All keywords that say what a value may be; any other says nothing of it."""
_ANYTHING: tuple[Callable[[Any], bool], str] = (lambda _: True, "anything")
_TAKES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_is_number, "a number")),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number over 0"),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), (_is_count, "an integer that is 0 or more")),
    **dict.fromkeys(("$ref", "format", "pattern"), (_is_text, "a string")),
    "properties": (_is_object, "an object whose keys are strings"),
    "required": (_are_names, "a list of names"),
}
