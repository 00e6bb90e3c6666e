"""JSON Schemas in a form that llguidance reads as the specification does. Knows schemas; neither tokens nor grammars.

Rewritten, with the same meaning: keywords beside `$ref` in draft 7 and before, which do not count there; keywords whose
value asserts nothing; formats, since llguidance takes days and seconds that do not exist; a `oneOf` whose schemas
exclude each other, which becomes an `anyOf`.

Refused: what would let through a value that the schema does not allow (docs/reference/constraints.md).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote

from ..wire.errors import InvalidRequest
from .one_of import is_any_of
from .regex_reasons import misread
from .schema_cost import at, check_cost, referred, steps_of
from .schema_parts import MAPS, SCHEMAS, parts_of, reference_to, told

OPTIONS = {
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""How JSON is written: no spaces between its parts, and one spelling of each character, so that a name cannot come
twice. Anything unsupported is an error.
"""
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that none of these escapes writes, and that llguidance does not allow unescaped."""
_OLD_DRAFT = re.compile(r"^https?://json-schema\.org/draft-0[0-3]/")
_REF_ALONE = re.compile(r"^https?://json-schema\.org/draft-0[3-7]/schema#?$")
_BESIDE_REF = frozenset(("$schema", "$id", "id", "$ref", "definitions", "$defs", "$comment", "title", "description"))
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
_LEAST = -(2**63)
"""Numbers at or below this abort llguidance, and the process with it."""
_LEAST_BOUND = _LEAST + 1024
"""The next float."""
_DEEPEST = 200
"""Most steps of a reference: schemas have fewer levels."""
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
_TIME = "(?:[0-9]{2}:[0-9]{2}:[0-5]|23:59:60(?:[.][0-9]+)?(?:[Zz]|[+-]00:00)$)"
"""How a time of day begins; a leap second ends a day of UTC."""
_FORMATS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{DATE}$"},
    "time": {"pattern": f"^{_TIME}"},
    "date-time": {"pattern": f"^{DATE}[Tt]{_TIME}"},
    "hostname": {"maxLength": 253},
}
"""What formats assert and llguidance does not check."""


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """An equal schema that llguidance reads as specified; raises InvalidRequest for what it would misread."""
    ref_alone = isinstance(schema.get("$schema"), str) and _REF_ALONE.match(schema["$schema"]) is not None
    mended: dict[str, Any] = _mended(copy.deepcopy(schema), ref_alone, ())
    _mend_targets(mended, ref_alone)
    _mend_one_of(mended)
    check_cost(mended)
    return mended


def _mend_targets(root: dict[str, Any], ref_alone: bool) -> None:
    """Rewrite schemas in places that only references lead to (`#/components/…`)."""
    mended: dict[tuple[str, ...], str] = {}
    references, is_named = _said_in(root, is_root=True)
    pending = sorted(references, key=len, reverse=True)
    while pending:
        reference = pending.pop()
        steps = steps_of(reference)
        if len(steps) > _DEEPEST or _is_mended(steps, mended):
            continue
        mended[tuple(steps)] = reference
        if not reference.startswith("#") or (target := at(root, steps)) is None:
            continue
        target = _mended(target, ref_alone, tuple(steps))
        parent, last = at(root, steps[:-1]), steps[-1]
        parent[last if isinstance(parent, dict) else int(last)] = target
        further, has_names = _said_in(target)
        is_named = is_named or has_names
        pending += sorted(further, key=len, reverse=True)
    for reference in mended.values():
        if is_named or not reference.startswith("#"):  # where it leads to is a matter of the `$id` around it
            said = f"takes one to a schema in `$defs`, `definitions` or `properties`, got {reference[:100]!r}"
            raise InvalidRequest(f"constraint.json_schema: `$ref`: {said}")


def _mend_one_of(root: dict[str, Any]) -> None:
    """Turn `oneOf` of schemas that exclude each other into `anyOf`.

    If parts have an `$id`, it is not decided here where a reference leads.
    """
    reached = _reached(root)
    references = {part["$ref"] for part in reached if isinstance(part.get("$ref"), str)}
    is_named = _said_in(root, is_root=True)[1] or any(map(partial(_passes_name, root), references))
    through = [reference for reference in references if "oneOf" in unquote(reference)]
    if any(is_named or not reference.startswith("#/") for reference in through):
        return
    whole = None if is_named else root
    mended = [part for part in reached if "anyOf" not in part and is_any_of(whole, part.get("oneOf"))]
    moved = {reference: _any_of_in(root, reference, {id(part) for part in mended}) for reference in through}
    for part in reached:
        if part.get("$ref") in through:
            part["$ref"] = moved[part["$ref"]]
    for part in mended:
        part["anyOf"] = part.pop("oneOf")


def _passes_name(root: dict[str, Any], reference: str) -> bool:
    """True if a part on the way to the target has an `$id`."""
    steps = steps_of(reference) if reference.startswith("#/") else []
    parts = (at(root, steps[:count]) for count in range(1, len(steps) + 1))
    return any(
        isinstance(part, dict) and (type(part.get("$id")) is str or type(part.get("id")) is str) for part in parts
    )


def _any_of_in(root: dict[str, Any], reference: str, mended: set[int]) -> str:
    """The reference, after `oneOf` of these parts became `anyOf`."""
    steps = steps_of(reference)
    if at(root, steps) is None:
        return reference
    renamed = list(steps)
    for index, step in enumerate(steps):
        if step == "oneOf" and id(at(root, steps[:index])) in mended:
            renamed[index] = "anyOf"
    return reference_to(renamed)


def _reached(root: dict[str, Any]) -> list[dict[str, Any]]:
    """All schemas that count, targets of references included."""
    found: dict[int, dict[str, Any]] = {}
    pending: list[Any] = [root]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict) or id(part) in found:
            continue
        found[id(part)] = part
        pending += (at(part, steps) for steps in parts_of(part))
        reference = part.get("$ref")
        pending += [referred(root, reference)] if isinstance(reference, str) else []
    return list(found.values())


def _said_in(schema: Any, *, is_root: bool = False) -> tuple[set[str], bool]:
    """All references in a schema, and whether a part of it has an `$id`, or the schema itself unless it is the root."""
    references: set[str] = set()
    is_named = False
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        if not isinstance(part, dict):
            continue
        references |= {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        names = isinstance(part.get("$id"), str) or isinstance(part.get("id"), str)
        is_named = is_named or (names and not (is_root and part is schema))
        for keyword, value in part.items():
            if keyword in MAPS and isinstance(value, dict):
                pending += value.values()
            elif keyword in SCHEMAS:
                pending.append(value)
    return references, is_named


def _is_mended(steps: list[str], targets: Collection[tuple[str, ...]]) -> bool:
    """True if keywords make this place a schema, in the whole or in a target."""
    within = (steps[count:] for count in range(len(steps) + 1) if not count or tuple(steps[:count]) in targets)
    return any(map(_holds_a_schema, within))


def _holds_a_schema(steps: list[str]) -> bool:
    """True if keywords say that a schema stands in this place."""
    within = ""
    for step in steps:
        if within == "map" or (within == "list" and step.isdecimal()):
            within = "schema"
        elif step in MAPS or step in SCHEMAS:
            within = "map" if step in MAPS else "list"
        else:
            return False
    return within != "map"


def _mended(schema: Any, ref_alone: bool, place: tuple[str, ...]) -> Any:
    """A schema, or a list of them, without what does not count; anything else as it is."""
    if isinstance(schema, list):
        return [_mended(each, ref_alone, (*place, str(index))) for index, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    _check(schema, place)
    mended = {
        name: _mended_value(name, value, ref_alone, (*place, name)) for name, value in _counting(schema, ref_alone)
    }
    more = _FORMATS.get(mended["format"]) if isinstance(mended.get("format"), str) else None
    return mended if more is None else _also(mended, more)


def _also(schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A schema that holds if both hold."""
    if not more.keys() & schema.keys():
        return schema | more
    everything = schema.get("allOf")
    return schema | {"allOf": [*(everything if isinstance(everything, list) else []), more]}


def _mended_value(name: str, value: Any, ref_alone: bool, place: tuple[str, ...]) -> Any:
    if name in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
        _check_bound(name, value, place[:-1])
        return _inward(name, value) if isinstance(value, int) else max(value, _LEAST_BOUND)
    if name in MAPS and isinstance(value, dict):
        return {key: _mended(each, ref_alone, (*place, key)) for key, each in value.items()}
    return _mended(value, ref_alone, place) if name in SCHEMAS else value


def _counting(schema: dict[str, Any], ref_alone: bool) -> Iterator[tuple[str, Any]]:
    """The keywords that count, with their values."""
    alone = ref_alone and isinstance(schema.get("$ref"), str)
    for name, value in schema.items():
        nothing = any(value == harmless and type(value) is type(harmless) for harmless in _ASSERT_NOTHING.get(name, ()))
        idle = (name in ("then", "else") and "if" not in schema) or (
            name == "if" and "then" not in schema and "else" not in schema
        )
        idle = idle or (name in ("minContains", "maxContains") and "contains" not in schema)
        if not (nothing or idle or (alone and name not in _BESIDE_REF)):
            yield name, value


def _check(schema: dict[str, Any], place: tuple[str, ...]) -> None:
    """Raises InvalidRequest for what llguidance would misread."""
    draft = schema.get("$schema")
    if isinstance(draft, str) and _OLD_DRAFT.match(draft):
        raise _refusal("$schema", place, f"takes draft 4 and later, got {draft!r}")
    if "x-guidance" in schema:
        raise _refusal("x-guidance", place, "is not supported: how JSON is written is the same for all; leave it out")
    for name in ("const", "enum", "multipleOf"):
        _check_values(name, schema.get(name), place)
    _check_patterns(schema, place)
    least, required = schema.get("minProperties"), schema.get("required")
    count = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > count + 1:
        said = f"takes at most one more than `required` has names ({count}), got {least}: a key may come twice"
        raise _refusal("minProperties", place, said)


def _check_patterns(schema: dict[str, Any], place: tuple[str, ...]) -> None:
    pattern, names = schema.get("pattern"), schema.get("patternProperties")
    given = [("pattern", pattern)] if isinstance(pattern, str) else []
    given += [("patternProperties", name) for name in names] if isinstance(names, dict) else []
    for name, regex in given:
        said = misread(regex)
        if said is not None:
            raise _refusal(name, place, said)


def _refusal(keyword: str, place: tuple[str, ...], said: str) -> InvalidRequest:
    return InvalidRequest(f"constraint.json_schema: {told(keyword, place)}: {said}")


def _check_values(name: str, value: Any, place: tuple[str, ...]) -> None:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, int | float) and each <= _LEAST:
            raise _refusal(name, place, f"takes numbers over -2^63, got {each}")
        if isinstance(each, int) and int(float(each)) != each:
            raise _refusal(name, place, f"takes integers that are floats of 64 bits too, got {each}")
        if isinstance(each, str) and _CONTROL.search(each):
            said = f"takes no control characters but line breaks, tabs, backspace and form feed, got {each[:40]!r}"
            raise _refusal(name, place, said)
        pending.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())


def _check_bound(name: str, bound: float, place: tuple[str, ...]) -> None:
    if bound < _LEAST or (bound == _LEAST and name.endswith("aximum")):
        raise _refusal(name, place, f"takes bounds over -2^63, got {bound}")


def _inward(name: str, bound: int) -> int:
    """The bound, or the nearest value within it that is a float and above _LEAST: llguidance knows no others."""
    if bound == _LEAST:
        return _LEAST_BOUND
    rounded = float(bound)
    if name.endswith("aximum") and int(rounded) > bound:
        return int(math.nextafter(rounded, -math.inf))
    if name.endswith("inimum") and int(rounded) < bound:
        return int(math.nextafter(rounded, math.inf))
    return int(rounded)
