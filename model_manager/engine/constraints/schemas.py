"""JSON Schemas as llguidance takes them right: one that it reads otherwise than the specification does is mended or
refused before. Knows schemas, and neither tokens nor grammars.

Mended, since the result means the same: keywords beside `$ref` in draft 7 and before, which do not count there;
keywords whose value asserts nothing; `format` of dates, which would let the 29th of February through in any year.
Refused: what would let through a value that the schema does not (docs/CONSTRAINTS.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from model_manager.engine.constraints.schema_cost import check_cost
from model_manager.wire.errors import InvalidRequest

OPTIONS = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""How JSON is written: without spaces between its parts, and what is not supported is told."""
_REF_ALONE = re.compile(r"^https?://json-schema\.org/draft-0[3-7]/schema#?$")
_BESIDE_REF = frozenset(("$schema", "$id", "id", "$ref", "definitions", "$defs", "$comment", "title", "description"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords whose value has schemas by name."""
_SCHEMAS = frozenset(
    "items prefixItems additionalItems allOf anyOf oneOf additionalProperties not if then else contains propertyNames "
    "unevaluatedItems unevaluatedProperties".split()
)
"""Keywords whose value is a schema or a list of schemas."""
_ASSERT_NOTHING: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "minProperties": (0,),
}
"""Values of keywords that assert nothing."""
_MOST_STEP = 10_000
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_LEAP = "(?:[02468][48]|[2468]0|[13579][26])"
"""The last two digits of a leap year that is not a century, or the first two of one that is."""
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
DATE = f"(?:{_YEAR}-{_DAY}|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
"""The days of the years 1 to 9999."""
_PATTERNS = {"date": f"^{DATE}$", "date-time": f"^{DATE}[Tt]"}
"""What formats assert beyond what llguidance has them assert."""


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that means the same and that llguidance reads as the specification does; raises InvalidRequest for what
    it would read otherwise.
    """
    ref_alone = isinstance(schema.get("$schema"), str) and _REF_ALONE.match(schema["$schema"]) is not None
    mended: dict[str, Any] = _mended(schema, ref_alone)
    mended.pop("x-guidance", None)
    check_cost(mended)
    return mended


def _mended(schema: Any, ref_alone: bool) -> Any:
    """A schema, or a list of them, without what does not count; anything else as it is."""
    if isinstance(schema, list):
        return [_mended(each, ref_alone) for each in schema]
    if not isinstance(schema, dict):
        return schema
    _check(schema)
    mended = {name: _mended_value(name, value, ref_alone) for name, value in _counting(schema, ref_alone)}
    pattern = _PATTERNS.get(mended["format"]) if isinstance(mended.get("format"), str) else None
    return mended if pattern is None else _also(mended, {"pattern": pattern})


def _also(schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both schemas."""
    if not more.keys() & schema.keys():
        return schema | more
    everything = schema.get("allOf")
    return schema | {"allOf": [*(everything if isinstance(everything, list) else []), more]}


def _mended_value(name: str, value: Any, ref_alone: bool) -> Any:
    if name in _BOUNDS and isinstance(value, int) and not isinstance(value, bool):
        return _inward(name, value)
    if name in _MAPS and isinstance(value, dict):
        return {key: _mended(each, ref_alone) for key, each in value.items()}
    return _mended(value, ref_alone) if name in _SCHEMAS else value


def _counting(schema: dict[str, Any], ref_alone: bool) -> Iterator[tuple[str, Any]]:
    """The keywords that count."""
    alone = ref_alone and isinstance(schema.get("$ref"), str)
    for name, value in schema.items():
        nothing = any(value == harmless and type(value) is type(harmless) for harmless in _ASSERT_NOTHING.get(name, ()))
        idle = (name in ("then", "else") and "if" not in schema) or (
            name == "if" and "then" not in schema and "else" not in schema
        )
        idle = idle or (name in ("minContains", "maxContains") and "contains" not in schema)
        if not (nothing or idle or (alone and name not in _BESIDE_REF)):
            yield name, value


def _check(schema: dict[str, Any]) -> None:
    """Raises InvalidRequest for what is read, or counted, otherwise than is meant."""
    for name in ("const", "enum", "multipleOf"):
        _check_numbers(name, schema.get(name))
    _check_step(schema.get("multipleOf"))
    least, required = schema.get("minProperties"), schema.get("required")
    names = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > names + 1:
        said = f"minProperties={least}: takes at most one more than `required` has names: keys may come twice"
        raise InvalidRequest(f"constraint.json_schema: {said}")


def _check_step(step: Any) -> None:
    """The automaton of multiples has as many states as the step has units in its last digit."""
    if isinstance(step, int | float) and not isinstance(step, bool):
        digits = int("".join(map(str, Decimal(repr(step)).normalize().as_tuple().digits)))
        if digits > _MOST_STEP:
            raise InvalidRequest(f"constraint.json_schema: multipleOf: takes up to {_MOST_STEP} units, got {step}")


def _check_numbers(name: str, value: Any) -> None:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, int | float) and each <= -(2**63):  # it would end llguidance, and the process with it
            raise InvalidRequest(f"constraint.json_schema: {name}: takes numbers over -2^63, got {each}")
        if isinstance(each, int) and int(float(each)) != each:
            raise InvalidRequest(f"constraint.json_schema: {name}: takes integers that are floats too, got {each}")
        pending.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())


def _inward(name: str, bound: int) -> int:
    """The bound, or the next within it that is a float too: no other is told apart."""
    rounded = float(bound)
    if name.endswith("aximum") and int(rounded) > bound:
        return int(math.nextafter(rounded, -math.inf))
    if name.endswith("inimum") and int(rounded) < bound:
        return int(math.nextafter(rounded, math.inf))
    return int(rounded)
