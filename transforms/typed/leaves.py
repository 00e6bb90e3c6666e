"""Leaves: which values each kind takes, as JSON Schema, as a regular expression, and in the words of a prompt.

The expressions are narrower than JSON where a row's types are: integers and numbers of so many digits that 64 bits have
them, days that exist. Years are 1000 to 8999.
"""

from __future__ import annotations

import json
import math
import operator
from decimal import Decimal
from typing import Any

from millrace.model_manager.wire.errors import ConfigError

from .shapes import Kind, Leaf, Schema

MOST_PLACES, MOST_DIGITS = 9, 18
"""Digits of a decimal after the point and before it, which every store of decimals has."""
FLOAT_PLACES = 15
"""Digits of a float after the point."""
_DIGITS: dict[Kind, int] = {"integer": 18, "number": 15}
"""Most before the point."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_BEYOND = {
    "minimum": operator.lt,
    "maximum": operator.gt,
    "exclusiveMinimum": operator.le,
    "exclusiveMaximum": operator.ge,
}
_LARGEST = 2**63
"""What no integer of a row reaches."""
_DAY = (
    r"([1-8][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([1-8][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[1357][26])00)-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[-+](0[0-9]|1[0-3]):[0-5][0-9])"
_WHOLE = "-?(0|[1-9][0-9]{0,17})"
_BARE: dict[Kind, Schema] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "decimal": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}
_EXPRESSIONS: dict[Kind, str] = {
    "integer": _WHOLE,
    "number": rf"-?(0|[1-9][0-9]{{0,14}})(\.[0-9]{{1,{FLOAT_PLACES}}})?([eE][-+]?[0-9]{{1,2}})?",
    "date": f'"{_DAY}"',
    "datetime": f'"{_DAY}T{_TIME}"',
}
_WORDS: dict[Kind, str] = {
    "text": "text",
    "integer": "integer",
    "number": "number",
    "decimal": "number",
    "boolean": "true or false",
    "date": "date, YYYY-MM-DD",
    "datetime": "time, YYYY-MM-DDTHH:MM:SSZ",
    "json": "JSON",
}


def bare(kind: Kind) -> Leaf:
    """Any value of the kind."""
    return Leaf(kind, _BARE[kind])


def is_bare(leaf: Leaf) -> bool:
    """Whether nothing narrows its values."""
    return leaf.schema == _BARE.get(leaf.kind)


def choice(values: list[Any], convert: Any = None) -> Leaf:
    """One of these: strings, integers or booleans, all of one type. Raises ConfigError."""
    kinds: dict[type, Kind] = {str: "text", int: "integer", bool: "boolean"}
    types = {type(value) for value in values}
    if len(types) != 1 or not types <= kinds.keys() or (types == {int} and max(map(abs, values)) >= _LARGEST):
        raise ConfigError(f"a choice of {values!r}: takes strings, integers of 64 bits or booleans, all of one type")
    return Leaf(kinds[types.pop()], {"enum": list(dict.fromkeys(values))}, convert=convert)


def is_choice(leaf: Leaf) -> bool:
    """Whether it takes some values, and its schema says nothing else."""
    return leaf.kind != "json" and "enum" in leaf.schema


def expression(leaf: Leaf) -> str | None:
    """The regular expression of its JSON, where that is what it takes; else its schema says."""
    if not is_bare(leaf):
        return None
    if leaf.kind == "decimal":
        if not leaf.digits:
            return rf"-?0\.[0-9]{{1,{leaf.places}}}"
        whole = rf"-?(0|[1-9][0-9]{{0,{leaf.digits - 1}}})"
        return whole + (rf"(\.[0-9]{{1,{leaf.places}}})?" if leaf.places else "")
    return _EXPRESSIONS.get(leaf.kind)


def bounded(leaf: Leaf) -> Schema:
    """Its schema as a grammar takes it: within the digits, and the places, that rows have."""
    if leaf.kind == "json":
        return leaf.schema
    digits = leaf.digits if leaf.kind == "decimal" else _DIGITS.get(leaf.kind)
    if digits is None:
        return leaf.schema
    limit = 10**digits
    within = {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}
    narrower = {name: value for name, value in leaf.schema.items() if _narrows(name, value, limit)}
    return within | narrower | (_steps(leaf) if leaf.kind == "decimal" else {})


def _steps(leaf: Leaf) -> Schema:
    """The steps of a decimal: a multiple of its last place and of the schema's `multipleOf`."""
    places, given = Decimal(1).scaleb(-leaf.places), leaf.schema.get("multipleOf", 0)
    step = Decimal(repr(given))
    if step <= 0:
        return {"multipleOf": given if "multipleOf" in leaf.schema else _number(places)}
    unit = min(places, Decimal(1).scaleb(int(step.as_tuple().exponent)))
    return {"multipleOf": _number(math.lcm(int(places / unit), int(step / unit)) * unit)}


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _narrows(name: str, value: Any, limit: int) -> bool:
    """Whether a keyword takes anything away from what is below the limit and above its negative."""
    return not ((name in _LOWER and value <= -limit) or (name in _UPPER and value >= limit))


def float_within(leaf: Leaf, text: str) -> str:
    """The number in `text` as a float. Where the nearest float is beyond a bound that the text keeps, the next float
    inside the bound is taken. Raises ValueError where the text is beyond a bound, or no float lies inside.
    """
    bounds = [(name, leaf.schema[name]) for name in _BEYOND if name in leaf.schema]
    value = nearest = float(text)
    for name, bound in bounds:
        if _BEYOND[name](Decimal(text), Decimal(repr(bound))):
            raise ValueError(f"{text} is beyond {name} {bound}")
        if _BEYOND[name](value, bound):
            value = math.nextafter(value, -math.inf if name in _UPPER else math.inf)
    if any(_BEYOND[name](value, bound) for name, bound in bounds):
        raise ValueError(f"{text}: no float is within {dict(bounds)}")
    return text if value == nearest else repr(value)


def in_words(leaf: Leaf) -> str:
    """What the prompt says of it."""
    if "enum" in leaf.schema:
        return "one of " + ", ".join(map(_shown, leaf.schema["enum"]))
    return _WORDS[leaf.kind]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
