"""Hypothesis strategies for schemas of all that is supported, and for values that they may or may not validate."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
_NAMES = st.sampled_from(["a", "b", "name", "née", "a b", 'quo"te', ""])
_PATTERNS = st.sampled_from(["^[a-z]{1,4}$", "^a", "b$", "[0-9]", "^(x|yy)+$", "^[0-9]{2}-[0-9]{2}$", "é"])
_TEXTS = st.text(max_size=6).filter(lambda text: not re.search(r"[\x00-\x07\x0b\x0e-\x1f\x7f]", text))
"""JSON has escapes for other characters in one way alone, which is how outputs are written."""
_FORMATS = st.sampled_from(["date", "ipv4", "email"])

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | _TEXTS
    | st.floats(-1e6, 1e6).map(lambda number: round(number, 3) + 0.0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def _both(low: str, high: str, bounds: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """None, one or both of the two, in their order."""
    return st.one_of(
        st.just({}),
        bounds.map(lambda bound: {low: bound}),
        bounds.map(lambda bound: {high: bound}),
        st.tuples(bounds, bounds).map(lambda two: {low: min(two), high: max(two)}),
    )


_numbers: st.SearchStrategy[Schema] = st.one_of(
    _both("minimum", "maximum", st.integers(-50, 200)).map(lambda bounds: {"type": "integer"} | bounds),
    _both("minimum", "maximum", st.integers(-50, 200)).map(lambda bounds: {"type": "number"} | bounds),
    st.integers(1, 9).map(lambda step: {"type": "integer", "multipleOf": step}),
)
_strings: st.SearchStrategy[Schema] = st.one_of(
    _both("minLength", "maxLength", st.integers(0, 8)).map(lambda bounds: {"type": "string"} | bounds),
    _PATTERNS.map(lambda pattern: {"type": "string", "pattern": pattern}),
    _FORMATS.map(lambda kind: {"type": "string", "format": kind}),
)
scalar_schemas = st.one_of(_numbers, _strings).map(lambda schema: {"$schema": DRAFT} | schema)
_leaves: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{}, {"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}]),
    _numbers,
    _strings,
    values.map(lambda value: {"const": value}),
    st.lists(values, min_size=1, max_size=3).map(lambda options: {"enum": options}),
)


def _containers(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        st.tuples(inner, _both("minItems", "maxItems", st.integers(0, 3))).map(
            lambda parts: {"type": "array", "items": parts[0]} | parts[1]
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: {"type": "array", "items": items, "additionalItems": False}
        ),
        _objects(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.tuples(_objects(inner), _objects(inner)).map(lambda both: {"allOf": list(both)}),
    )


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(_NAMES, inner, max_size=3))
    required = draw(st.lists(st.sampled_from([*properties, "other"]), unique=True, max_size=3))
    further = draw(st.sampled_from([{}, {"additionalProperties": False}]) | inner.map(_additional))
    patterned = draw(st.sampled_from([{}, {"patternProperties": {"^x_": {"type": "integer"}}}]))
    return {"type": "object", "properties": properties, "required": required} | further | patterned


def _additional(schema: Schema) -> Schema:
    return {"additionalProperties": schema}


schemas: st.SearchStrategy[Schema] = st.recursive(_leaves, _containers, max_leaves=5).map(
    lambda schema: {"$schema": DRAFT} | schema
)
