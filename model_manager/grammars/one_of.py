"""Tells whether the schemas of a `oneOf` exclude each other. Then it equals `anyOf`, which a grammar can express.

llguidance compares only strings in the schemas. This module follows references and compares all values. Where it cannot
tell, it says no.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ..wire.json_text import canonical
from .schema_cost import referred

_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
"""Integers are numbers."""
_MOST_REFERENCES = 20
_MOST = 300
"""Most schemas of one `oneOf`: each is compared with each."""


def is_any_of(root: dict[str, Any] | None, options: Any) -> bool:
    """True if at most one of these schemas can hold. `root` is the document, for references; None follows none."""
    if not isinstance(options, list) or len(options) > _MOST:
        return False
    schemas = _Schemas(root)
    resolved = [schemas.resolved(option) for option in options]
    return all(schemas.exclude(one, other) for one, other in combinations(resolved, 2))


class _Schemas:
    """The schemas of one document; each value is read once."""

    def __init__(self, root: dict[str, Any] | None) -> None:
        self._root = root
        self._read: dict[tuple[str, int], frozenset[bytes]] = {}

    def resolved(self, schema: Any) -> Any:
        """The schema that a schema refers to, which holds wherever it does."""
        for _ in range(_MOST_REFERENCES if self._root is not None else 0):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if self._root is None or not isinstance(reference, str) or not reference.startswith("#/"):
                break
            schema = referred(self._root, reference)
        return schema

    def exclude(self, one: Any, other: Any) -> bool:
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        kinds, other_kinds = _kinds(one), _kinds(other)
        values, other_values = self._values(one), self._values(other)
        if not kinds & other_kinds or (values is not None and other_values is not None and not values & other_values):
            return True
        if kinds != {"object"} and other_kinds != {"object"}:
            return False
        return any(self.exclude(*pair) for pair in self._required(one, other))

    def _values(self, schema: dict[str, Any]) -> frozenset[bytes] | None:
        """The values that the schema allows, if it lists them."""
        name = "const" if "const" in schema else "enum"
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(values, list):
            return None
        key = name, id(schema[name])
        if key not in self._read:
            self._read[key] = frozenset(canonical(_number(value)) for value in values)
        return self._read[key]

    def _required(self, one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """The pair of schemas of each property that one requires and both define."""
        properties, others = one.get("properties"), other.get("properties")
        if isinstance(properties, dict) and isinstance(others, dict):
            required = [name for schema in (one, other) for name in _names(schema.get("required"))]
            for name in dict.fromkeys(required):
                if name in properties and name in others:
                    yield _flat(self.resolved(properties[name])), _flat(self.resolved(others[name]))


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    given = schema.get("type", [])
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    kinds = frozenset("number" if name == "integer" else name for name in names if isinstance(name, str))
    return kinds or _TYPES


def _number(value: Any) -> Any:
    """The value, with 1.0 as 1 at any depth."""
    if isinstance(value, list):
        return [_number(each) for each in value]
    if isinstance(value, dict):
        return {name: _number(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(required: Any) -> list[str]:
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _flat(schema: Any) -> Any:
    """The schema without properties, which are compared separately."""
    return {name: schema[name] for name in schema if name != "properties"} if isinstance(schema, dict) else schema
