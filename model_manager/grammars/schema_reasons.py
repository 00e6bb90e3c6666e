"""Messages for JSON Schemas that llguidance refuses: the keyword, its place as a JSON pointer, what to write.

llguidance names no place. The place is the innermost part that it refuses by itself for the same reason. Knows schemas
and llguidance's messages; not how a schema is compiled.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from ..wire.conversion import did_you_mean
from .regex_reasons import regex_reason
from .schema_cost import at, steps_of
from .schema_parts import parts_of, reference_to, shown_pointer

Judge = Callable[[dict[str, Any]], str | None]
"""Gives llguidance's message for a schema; None if it takes the schema."""
PathSteps = tuple[str, ...]

_MOST_CHARACTERS = 2**22
"""Most characters of all parts that are compiled by themselves to find the faulty one."""
_FEWEST_CHARACTERS = 2**9
"""Least characters that a part counts for: compiling takes some time whatever the size."""
_SHOWN = 60
TOO_LARGE_SAID = r"[Tt]oo many|too big|too large|fuel|exceed|precomputation|Unable to determine|stack level"
"""Parts of llguidance's messages that say a limit was reached."""
TOO_LARGE = "takes one that makes a smaller automaton"
_COMPLEMENT = "a grammar has no complement; write what is allowed"
_ELSEWHERE = "a grammar does not compare parts that are far apart"
_ADVICE = {
    "not": f"{_COMPLEMENT}, such as an `enum` or a `pattern`",
    "if": f"{_COMPLEMENT}, each case as a schema of `anyOf`",
    "dependencies": f"{_ELSEWHERE}; write each case as a schema of `anyOf`",
    "dependentRequired": f"{_ELSEWHERE}; write each case as a schema of `anyOf`",
    "dependentSchemas": f"{_ELSEWHERE}; write each case as a schema of `anyOf`",
    "uniqueItems": "a grammar does not remember items; leave it out, and check it afterwards",
    "contains": f"{_ELSEWHERE}; write `prefixItems` for items at known places",
    "propertyNames": "write `patternProperties` with `additionalProperties: false`",
    "unevaluatedProperties": "write `additionalProperties: false` beside all `properties`",
    "unevaluatedItems": "write `items: false` beside all `prefixItems`",
    "$dynamicRef": "write `$ref`",
    "$recursiveRef": "write `$ref`",
}
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_TYPES_ELSEWHERE = {
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("str", "text", "date", "datetime", "date-time"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "map", "record", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    **dict.fromkeys(("none", "nil"), "null"),
}
_FORMATS = "date, date-time, time, duration, email, hostname, ipv4, ipv6, uuid, uri"
_COUNT = "a whole number of 0 or more"
_SCHEMAS = "a list of schemas"
_TAKES = {
    "type": f"one of {', '.join(_TYPES)}, or a list of them",
    "enum": "a list of values",
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties"), "an object of schemas by name"),
    "required": "a list of names",
    **dict.fromkeys(("pattern", "format", "$ref"), "a string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "a number"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
}
_log = logging.getLogger(__name__)


class _RefusedPart(NamedTuple):
    """A part of a schema, and llguidance's message."""

    part: Any
    where: str
    """` at #/…`; empty for the whole."""
    said: re.Match[str]


def schema_reason(given: dict[str, Any], schema: dict[str, Any], message: str, judge: Judge) -> str:
    """Our sentence. `schema` is as compiled, `given` as it came, `message` llguidance's."""
    steps, line = _place(schema, _line(message), judge)
    part = at(schema, steps)
    steps = _as_given(given, steps)
    for pattern, sentence in _SENTENCES:
        if said := pattern.search(line):
            return sentence(_RefusedPart(part, f" at {shown_pointer(steps)}" if steps else "", said))
    _log.info("refused for a reason that has no sentence yet: %s", message)
    where = f" at {shown_pointer(steps)}" if steps else ""
    return f"takes a schema that a grammar is made of; the part{where} is none"


def _line(message: str) -> str:
    """The line of a message that says what is wrong."""
    whole = message.partition("\n  while processing ")[0]
    return whole if "regex parse error" in whole else whole.strip().partition("\n")[0]


# ── Places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _place(root: dict[str, Any], line: str, judge: Judge) -> tuple[PathSteps, str]:
    """The innermost part that is refused for the same reason, and llguidance's message for it."""
    alone = _Alone(root, judge)
    found: PathSteps = ()
    seen: set[PathSteps] = {found}
    while True:
        inner = (steps for steps in _inner(root, found, line) if steps not in seen)
        for steps in inner:
            seen.add(steps)
            said = alone.refused(steps)
            if said is not None and (said == line or (line.startswith(_REQUIRED) and said.startswith(_NOTHING))):
                found, line = steps, said
                alone.pass_over(steps)
                break
        else:
            return found, line


def _as_given(given: Any, steps: PathSteps) -> PathSteps:
    """The place in the schema as it came, before `oneOf` became `anyOf` and formats were added."""
    found: PathSteps = ()
    for step in steps:
        part = at(given, found)
        step = "oneOf" if step == "anyOf" and isinstance(part, dict) and step not in part else step
        if at(given, (*found, step)) is None:
            break
        found = (*found, step)
    return found


def _inner(root: dict[str, Any], steps: PathSteps, line: str) -> Iterator[PathSteps]:
    """The places of a part's direct subschemas and of its reference's target that may be to blame."""
    part = at(root, steps)
    unsupported, required = _UNSUPPORTED.search(line), _REQUIRED_PROPERTY.search(line)
    if unsupported and any(name in _dict(part) for name in _names(unsupported)):
        return
    if required and required[1] in _dict(_dict(part).get("properties")):
        yield (*steps, "properties", required[1])
        return
    reference = part.get("$ref") if isinstance(part, dict) else None
    if isinstance(reference, str) and reference.startswith("#/") and at(root, steps_of(reference)) is not None:
        yield tuple(steps_of(reference))
    for path in parts_of(part):
        is_one_of_many = line.startswith(_NOTHING) and path[0] in _NOT_ALONE_TO_BLAME
        if not is_one_of_many:
            yield steps + path


class _Alone:
    """Compiles parts of a schema by themselves, with the targets of their references but without enclosing parts, which
    would be refused again.
    """

    def __init__(self, root: dict[str, Any], judge: Judge) -> None:
        self._judge = judge
        self._draft = {"$schema": root["$schema"]} if isinstance(root.get("$schema"), str) else {}
        self._root = root
        self._passed: set[PathSteps] = set()
        self.pass_over(())
        self._left = _MOST_CHARACTERS

    def pass_over(self, steps: PathSteps) -> None:
        """Ignore references to this part from now on."""
        self._passed.add(steps)
        self._whole = _moved(self._root, self._passed)

    def refused(self, steps: PathSteps) -> str | None:
        """The message for a part, if it is refused."""
        source = self._source(steps)
        self._left -= max(_FEWEST_CHARACTERS, len(str(source)))
        if self._left < 0:
            return None
        message = self._judge(source)
        return None if message is None else _line(message).replace("/whole/", "/")

    def _source(self, steps: PathSteps) -> dict[str, Any]:
        """The part to compile; with the whole schema if it has references."""
        part = at(self._root, steps)
        if isinstance(part, dict) and not _refers(part):
            return self._draft | part
        return self._draft | {"$ref": reference_to(("whole", *steps)), "whole": self._whole}


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _moved(value: Any, passed: Collection[PathSteps]) -> Any:
    """The schema one level deeper, its references adjusted, without references to ignored parts and without names."""
    if isinstance(value, list):
        return [_moved(each, passed) for each in value]
    if not isinstance(value, dict):
        return value
    names = (name for name in value if not (name in ("$id", "id") and type(value[name]) is str))
    moved = {name: _moved(value[name], passed) for name in names}
    reference = value.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = "#/whole" + reference[1:]
        if tuple(steps_of(reference)) in passed:
            del moved["$ref"]
    return moved


# ── Sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*)\]")
_REQUIRED_PROPERTY = re.compile(r"required property '(.*)' is unsatisfiable")
_NOTHING = "Unsatisfiable schema: "
_NOT_ALONE_TO_BLAME = ("anyOf", "oneOf", "additionalProperties", "patternProperties")
_REQUIRED = ("Unsatisfiable schema: required", "Unsatisfiable schema: prefixItems")


def _names(said: re.Match[str]) -> list[str]:
    return sorted(re.findall(r'"([^"]+)"', said[1]))


def _unsupported(refused: _RefusedPart) -> str:
    names = _names(refused.said)
    known = next((name for name in _ADVICE if name in names), "")
    advice = _ADVICE.get(known, "leave it out")
    listed = ", ".join(f"`{name}`" for name in names)
    return f"{listed}{refused.where} {'is' if len(names) == 1 else 'are'} not supported: {advice}"


def _of_one_of(refused: _RefusedPart) -> str:
    return (
        f"`oneOf`{refused.where} has schemas that may hold at once: give each `type: object` and a property that tells "
        "them apart, with another `const` in each, and in `required`; or write `anyOf` where an overlap does no harm"
    )


def _of_type(refused: _RefusedPart) -> str:
    name = refused.said[1]
    meant = _TYPES_ELSEWHERE.get(name.lower()) or (name.lower() if name.lower() in _TYPES else None)
    return f"`type`{refused.where}: takes {_TAKES['type']}, got {_shown(name)}{did_you_mean(meant)}"


def _of_value(refused: _RefusedPart) -> str:
    name = refused.said["name"]
    value = refused.part.get(name) if isinstance(refused.part, dict) else None
    return f"`{name}`{refused.where}: takes {_TAKES.get(name, 'another value')}, got {_shown(value)}"


def _of_no_schema(refused: _RefusedPart) -> str:
    got = "" if isinstance(refused.part, dict) else f", got {_shown(refused.part)}"
    return f"a schema{refused.where}: takes an object, true or false{got}"


def _of_format(refused: _RefusedPart) -> str:
    return (
        f"`format`{refused.where}: takes {_FORMATS}, got {_shown(refused.said[1])}; leave it out, or write a `pattern`"
    )


def _of_counted_properties(refused: _RefusedPart) -> str:
    names = [name for name in ("minProperties", "maxProperties") if name in _dict(refused.part)] or ["minProperties"]
    listed = " and ".join(f"`{name}`" for name in names)
    return f"{listed}{refused.where}: takes `properties` that are all in `required`; a grammar does not count others"


def _of_names(refused: _RefusedPart) -> str:
    one, other = refused.said[1], refused.said[2]
    return (
        f"`patternProperties`{refused.where}: takes patterns such that no name matches two, got {_shown(one)} and "
        f"{_shown(other)}"
    )


def _of_reference(refused: _RefusedPart) -> str:
    name = "$ref" if "$ref" in _dict(refused.part) or "$schema" not in _dict(refused.part) else "$schema"
    target = refused.said["target"].removeprefix("json-schema:///")
    given = _dict(refused.part).get(name, f"#{target}" if target.startswith("/") else target)
    if name == "$schema":
        return f"`$schema`: takes draft 4, 6, 7, 2019-09 or 2020-12 by its address, got {_shown(given)}"
    return f"`$ref`{refused.where}: takes a place in this schema, such as `#/$defs/name`, got {_shown(given)}: " + (
        "there is none" if str(given).startswith("#") else "nothing is fetched"
    )


def _of_nothing(refused: _RefusedPart) -> str:
    said = refused.said[1]
    for theirs, ours in _IMPOSSIBLE:
        said = re.sub(rf"^(?:{theirs}).*", ours, said, flags=re.DOTALL)
    said = re.sub(r"(\w+) \((\S+)\)", r"`\1` (\2)", said)
    where = f"; the part{refused.where} allows nothing" if refused.where else ""
    return f"takes a schema that something satisfies{where}: {said}"


_IMPOSSIBLE = (
    ("anyOf is empty|No options", "a list of `type`, `enum` or `anyOf` is empty"),
    ("oneOf is empty", "`oneOf` is empty"),
    ("All options in", "no schema of `anyOf` does"),
    ("schema is false", "it is false"),
    ("incompatible types", "it asks for two types at once"),
    ("Regex is empty", "no string is as `pattern`, `format`, `minLength` and `maxLength` say together"),
    ("integer interval", "no integer is between its bounds"),
    ("range .*multiple", "no multiple of `multipleOf` is between its bounds"),
    (r"required property '(.*)' is unsatisfiable", r"`required` has `\1`, and no value of that is allowed"),
    (r"prefixItems\[(\d+)\]", r"item \1 of `prefixItems` allows nothing, and `minItems` asks for it"),
    ("required item", "`items` allows no item, and `minItems` asks for one"),
    (r"Constant .*length", "its `const` is shorter or longer than `minLength` and `maxLength` say"),
)


def _of_pattern(refused: _RefusedPart) -> str:
    part = _dict(refused.part)
    names = part.get("patternProperties")
    written = [("pattern", part.get("pattern")), *(("patternProperties", name) for name in _dict(names))]
    for keyword, regex in written:
        if isinstance(regex, str) and (shown := regex_reason(regex, refused.said.string)):
            named = f" `{regex[:_SHOWN]}`" if keyword == "patternProperties" else ""
            return f"`{keyword}`{refused.where}{named}: {shown}"
    if "decimal literal" in refused.said.string:
        return f"`minLength` and `maxLength`{refused.where}: take numbers below 2^32"
    if not written[0][1] and not names:
        return f"`minimum` or `maximum`{refused.where}: takes numbers with fewer digits"
    return f"`pattern`{refused.where}: takes expressions as the kind `regex` does, got another"


def _of_step(refused: _RefusedPart) -> str:
    value = _dict(refused.part).get("multipleOf")
    return f"`multipleOf`{refused.where}: takes a number over 0 with few digits, got {_shown(value)}"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}`"


_CIRCLE = "leads back to itself: takes no other keywords beside it then, nor in an `allOf`"
_LARGE = "has too much of `pattern`, `minLength`, `maxLength` and alternatives that hold at once"
_SENTENCES: tuple[tuple[re.Pattern[str], Callable[[_RefusedPart], str]], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (_UNSUPPORTED.pattern, _unsupported),
        (r"^oneOf constraints", _of_one_of),
        (r"^Invalid type: ?(.*)", _of_type),
        (r"^schema must be an object or boolean", _of_no_schema),
        (r"^(?P<name>\S+) must be an? ", _of_value),
        (r"^Expected .* for '(?P<name>[^']+)'", _of_value),
        (r"^Value .* for '(?P<name>[^']+)' is too large", _of_value),
        (r"^invalid (?P<name>multiple of)", _of_step),
        (r"^Value for '(?P<name>multipleOf)'", _of_step),
        (
            r"^Failed to generate regex for \w+ range",
            lambda refused: f"`minimum` and `maximum`{refused.where}: take numbers that are not so large",
        ),
        (r"^Unknown format: (.*)", _of_format),
        (r"^min/maxProperties only", _of_counted_properties),
        (r"^patternProperty regexes /(.*)/ and /(.*)/ are not disjoint", _of_names),
        (r"^(?:Pointer|Anchor|Resource) '(?P<target>[^']*)'", _of_reference),
        (
            r"^Invalid URI reference '([^']*)'",
            lambda refused: f"`$ref`, `$id` and `$schema`: take addresses, got {_shown(refused.said[1])}",
        ),
        (r"^circular references", lambda refused: f"`$ref`{refused.where} {_CIRCLE}"),
        (rf"^{_NOTHING}(.*)", _of_nothing),
        (r"(?s)regex parse error:.*|lookarounds not supported", _of_pattern),
        (TOO_LARGE_SAID, lambda refused: f"{TOO_LARGE}; the schema{refused.where or ' as a whole'} {_LARGE}"),
    )
)
