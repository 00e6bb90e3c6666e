"""Shapes of JSON Schemas: an object with properties, as the record of rows that a NamedTuple is made for. And back: the
JSON Schema (2020-12) of a shape, which every answer is valid under.

What Beam's rows have no type for (a choice of types, free objects, references that recur) is a leaf of the kind `json`.
"""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path
from typing import Any

from millrace.model_manager.grammars.schema_cost import referred
from millrace.model_manager.wire.constraint import unwrapped
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest

from ..elements.completions import content_id
from ..elements.prompt_rows import MAX_DEPTH, too_deep
from .keywords import ASSERTING, check_json, check_keywords, place_of
from .leaves import bare, choice, is_bare
from .shapes import Items, Kind, Leaf, Maybe, Member, Piece, Record, Schema, Shape

_SAID = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_HEAD = {"$schema", "$id", "$defs", "definitions"}
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties"}
_OF_LISTS = {"type", "items", "minItems", "maxItems"}
_OF_LEAVES: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
}
_KINDS: dict[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_OF_CHOICES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
_FORMATS: dict[str, Kind] = {"date": "date", "date-time": "datetime"}
_DEEPEST = 32
_WHOLE = "document"
"""Where a part that refers to others has the whole schema."""


def record_of_schema(given: Schema | str | Path) -> Record:
    """The record of a schema, or of a file that holds one. Raises ConfigError."""
    schema = _schema_in(_loaded(given) if isinstance(given, str | Path) else given)
    if too_deep(schema):
        raise ConfigError(f"the JSON Schema: nested deeper than {MAX_DEPTH} levels")
    root = _Root(schema)
    resolved, _ = root.resolved(schema, "", ())
    check_keywords(resolved or {}, "")
    shape = root.shape(resolved, "", ())
    if not isinstance(shape, Record):
        raise ConfigError(
            f"the JSON Schema: takes type object with properties, and nothing else on top; {_oddity(resolved)}"
        )
    return shape


def _schema_in(given: Schema) -> Schema:
    """The schema, also where it is in OpenAI's `{"name": …, "schema": …}`."""
    try:
        found = unwrapped(given)
    except InvalidRequest as error:
        raise ConfigError(str(error).removeprefix("constraint.")) from None
    if not isinstance(found, dict):
        raise ConfigError("the JSON Schema: takes type object with properties; it is a boolean")
    return found


def _oddity(schema: Schema | None) -> str:
    """What keeps a schema from being a record's."""
    if schema is None:
        return "its reference leads nowhere"
    if odd := sorted(map(str, schema.keys() - _OF_OBJECTS - _SAID - _HEAD)):
        return f"it has {', '.join(odd)}"
    if missing := sorted(set(schema.get("required", [])) - schema.get("properties", {}).keys()):
        return f"it requires {', '.join(missing)}, which properties does not name"
    if schema.get("type", "object") != "object":
        return f"its type is {schema['type']}"
    return "it has no properties"


def _loaded(path: str | Path) -> Schema:
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: takes a file with a JSON Schema: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: takes a JSON Schema that is an object")
    return found


class _Root:
    """A schema whose parts are looked at."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def shape(self, schema: Any, path: str, seen: tuple[str, ...]) -> Shape:
        """The shape of a part at a path of keys; `seen`: references on the way to it."""
        if not isinstance(schema, dict) or len(seen) > _DEEPEST:
            return self._json(schema, path)
        resolved, seen_now = self.resolved(schema, path, seen)
        if resolved is None:
            return self._json(schema, path)
        if (inner := _of_nullable(resolved)) is not None:
            found = self.shape(inner, path, seen_now)
            twice = isinstance(found, Maybe) and "oneOf" in resolved  # null matches both parts, so neither
            if twice or (isinstance(found, Leaf) and found.kind == "json"):
                return self._json(schema, path)
            return found if isinstance(found, Maybe) else Maybe(found)
        return self._plain(resolved, path, seen_now) or self._json(schema, path)

    def resolved(self, schema: Schema, path: str, seen: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """The schema that a reference names; None for one that recurs or is elsewhere."""
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            if name in seen or schema.keys() - _SAID - _HEAD - {"$ref"}:
                return None, seen
            check_keywords({"$ref": name}, path)
            seen = (*seen, name)
            schema = self._named(name, path)
        return (schema if isinstance(schema, dict) else None), seen

    def _named(self, name: str, path: str) -> Any:
        if not name.startswith("#"):
            return None
        if name[1:] and not name.startswith("#/"):
            takes = "takes a part by its place, such as #/$defs/name, and not by an $anchor"
            raise ConfigError(f"{place_of(path)}: $ref {name!r}: {takes}")
        found = referred(self._schema, name)
        if found is None:
            raise ConfigError(f"{place_of(path)}: $ref {name!r}: the JSON Schema has no such part")
        return found

    def _json(self, schema: Any, path: str) -> Leaf:
        """The part as a schema by itself, with the definitions that it refers to."""
        check_json(schema, path)
        if not isinstance(schema, dict):
            return Leaf("json", {} if schema else {"not": {}})
        draft = {"$schema": self._schema["$schema"]} if "$schema" in self._schema else {}
        if (moved := _moved(schema)) == schema:
            return Leaf("json", draft | schema)
        unnamed = {key: value for key, value in self._schema.items() if key != "$id"}  # or its own places would count
        whole = {"$defs": {_WHOLE: _moved(unnamed)}}  # beside a $ref old drafts would not see it
        return Leaf("json", {"$id": f"urn:millrace:{content_id(moved)}"} | draft | {"allOf": [moved]} | whole)

    def _plain(self, schema: Schema, path: str, seen: tuple[str, ...]) -> Shape | None:
        said = schema.keys() & ASSERTING
        if "enum" in schema or "const" in schema:
            return _choice(schema, said)
        kind = schema.get("type")
        if (kind == "object" or "properties" in schema) and said <= _OF_OBJECTS:
            return self._record(schema, path, seen)
        if kind == "array" and said <= _OF_LISTS and isinstance(schema.get("items"), dict):
            return self._items(schema, path, seen)
        if isinstance(kind, str) and kind in _OF_LEAVES and said <= {"type", *_OF_LEAVES[kind]}:
            check_keywords(schema, path)
            return _leaf(kind, {name: schema[name] for name in schema if name in said})
        return None

    def _items(self, schema: Schema, path: str, seen: tuple[str, ...]) -> Items:
        check_keywords(schema, path)
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most is not None and most < least:
            raise ConfigError(f"{place_of(path)}: minItems is {least}: takes one that is not over maxItems, {most}")
        item = self.shape(schema["items"], f"{path}[]", seen)
        return Items(item, least, None if most is None else int(most))

    def _record(self, schema: Schema, path: str, seen: tuple[str, ...]) -> Record | None:
        check_keywords(schema, path)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not properties or not set(required) <= properties.keys():
            return None
        names = _identifiers(list(properties))
        members = [
            Member(
                name,
                self.shape(part, _inner(path, key), seen),
                key,
                hint=self._hint(part, _inner(path, key), seen),
                required=key in required,
            )
            for name, (key, part) in zip(names, properties.items(), strict=True)
        ]
        return Record(str(schema.get("title", "Row")), tuple(members))

    def _hint(self, part: Any, path: str, seen: tuple[str, ...]) -> str:
        """What a part says of itself, or else what it refers to, or what is beside null."""
        if not isinstance(part, dict):
            return ""
        if own := _description(part):
            return own
        resolved, seen_now = self.resolved(part, path, seen)
        if resolved is None:
            return ""
        return _description(resolved) or self._hint(_of_nullable(resolved), path, seen_now)


def _inner(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _moved(value: Any) -> Any:
    """The schema, with its references changed to where it now is, below `$defs`."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(each) for key, each in value.items()}
    if isinstance(name := value.get("$ref"), str) and (name == "#" or name.startswith("#/")):
        moved["$ref"] = f"#/$defs/{_WHOLE}{name[1:]}"
    return moved


def _description(schema: Any) -> str:
    said = schema.get("description", "") if isinstance(schema, dict) else ""
    return said if isinstance(said, str) else ""


def _of_nullable(schema: Schema) -> Schema | None:
    """The schema without the null that it also takes, where it does."""
    kind = schema.get("type")
    if isinstance(kind, list) and "null" in kind and len(kind) == 2 and not schema.keys() & {"enum", "const"}:
        others = [each for each in kind if each != "null"]
        return {**schema, "type": others[0]} if others else None
    for keyword_ in ("anyOf", "oneOf"):
        parts = schema.get(keyword_)
        if isinstance(parts, list) and len(parts) == 2 and not schema.keys() - _SAID - _HEAD - {keyword_}:
            others = [part for part in parts if part != {"type": "null"}]
            if len(others) == 1:
                return others[0] if isinstance(others[0], dict) else None
    return None


def _choice(schema: Schema, said: set[str]) -> Shape | None:
    """The values of `enum` or `const` that the schema's `type` takes, without null; None if the schema says more."""
    values, kinds = schema.get("enum", [schema.get("const")]), schema.get("type", [*_OF_CHOICES])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not said <= {"type", "enum", "const"} or {"enum", "const"} <= said or not isinstance(values, list):
        return None
    if any(kind not in [*_OF_CHOICES] for kind in kinds) or any(
        type(each) not in _OF_CHOICES.values() for each in values
    ):
        return None
    taken = [each for each in values if type(each) in [_OF_CHOICES[kind] for kind in kinds]]
    others = [each for each in taken if each is not None]
    try:
        return choice(others) if len(others) == len(taken) else Maybe(choice(others))
    except ConfigError:
        return None


def _leaf(kind: str, schema: Schema) -> Leaf:
    special = _FORMATS.get(schema.get("format", ""))
    if special is not None and is_bare(Leaf(special, schema)):
        return bare(special)
    return Leaf(_KINDS[kind], schema)


def _identifiers(keys: list[str]) -> list[str]:
    """Names for a NamedTuple's fields, of keys that need not be any."""
    found: list[str] = []
    for key in keys:
        name = re.sub(r"\W", "_", key, flags=re.ASCII).lstrip("_")
        name = f"field_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name
        while name in found:
            name += "_"
        found.append(name)
    return found


def schema_of(shape: Shape) -> Schema:
    """The JSON Schema of a shape's values. A piece of the document is a string: no schema knows the document."""
    if isinstance(shape, Leaf):
        return dict(shape.schema)
    if isinstance(shape, Piece):
        return {"type": "string", "minLength": 1}
    if isinstance(shape, Maybe):
        return {"anyOf": [schema_of(shape.shape), {"type": "null"}]}
    if isinstance(shape, Items):
        most = {} if shape.most is None else {"maxItems": shape.most}
        least = {"minItems": shape.least} if shape.least else {}
        return {"type": "array", "items": schema_of(shape.item)} | least | most
    return _object(shape)


def _object(record: Record) -> Schema:
    properties = {
        member.key: schema_of(member.shape)
        | ({"description": said} if (said := member.question or member.hint) else {})
        for member in record.members
    }
    required = [member.key for member in record.members if member.required]
    return {
        "type": "object",
        "title": record.name,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
