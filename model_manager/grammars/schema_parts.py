"""Where the schemas within a schema are, and how a place is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
"""Keywords whose value maps names to schemas."""
SCHEMAS = frozenset(
    "items prefixItems additionalItems allOf anyOf oneOf additionalProperties not if then else contains propertyNames "
    "unevaluatedItems unevaluatedProperties contentSchema".split()
)
"""Keywords whose value is a schema or a list of schemas."""
_SHOWN = 180
_DEFINITIONS = ("$defs", "definitions")
"""Keywords whose schemas count only where something refers to them."""


def parts_of(schema: Any) -> Iterator[tuple[str, ...]]:
    """The path to each direct subschema, without definitions."""
    for name, value in schema.items() if isinstance(schema, dict) else ():
        if name in MAPS and name not in _DEFINITIONS and isinstance(value, dict):
            yield from ((name, key) for key in value)
        elif name in SCHEMAS:
            yield from ((name, str(index)) for index in range(len(value))) if isinstance(value, list) else [(name,)]


def pointer(steps: Sequence[str]) -> str:
    """The place as a JSON pointer into the schema, such as `#/properties/a`."""
    return "#" + "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def shown_pointer(steps: Sequence[str]) -> str:
    """The pointer for a message: the beginning and the end of a very long one."""
    text = pointer(steps)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 3]}…{text[-_SHOWN // 2 :]}"


def reference_to(steps: Sequence[str]) -> str:
    """The pointer as a `$ref` writes it."""
    return "#" + quote(pointer(steps)[1:], safe="/~!$&'()*+,;=:@")


def told(keyword: str, steps: Sequence[str]) -> str:
    """How a message names a keyword: with the place of its schema, unless that is the whole."""
    return f"`{keyword}` at {shown_pointer(steps)}" if steps else f"`{keyword}`"
