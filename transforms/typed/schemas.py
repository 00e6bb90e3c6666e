"""The JSON Schema (2020-12) of a shape: what every answer is valid under."""

from __future__ import annotations

from .shapes import Items, Leaf, Maybe, Piece, Record, Schema, Shape


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
    return _record(shape)


def _record(record: Record) -> Schema:
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
