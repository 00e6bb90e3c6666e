"""Estimates what a schema will cost to compile: some small schemas make huge grammars.

llguidance combines every alternative of a schema with everything beside it, and compares some parts pair by pair. It
limits the number of steps, not what each step copies;
docs/explanation/what-was-tried.md has what happens without this module. Knows schemas;
never estimates much too little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

from ..wire.errors import InvalidRequest
from .multiples import NO_STEP, Steps, check_steps, common, step_of

_MOST_COPIED = 5_000_000
_MOST = {"oneOf": 1000, "patternProperties": 50, "properties": 2000, "required": 2000}
"""Most parts of a keyword: they are compared with each other, or nested on a stack."""
_LISTS = ("anyOf", "oneOf")
_MOST_PATTERNS = 6
"""Most patterns and formats that one string must match at once: their automaton may be the product of all."""
_CAP = 10**12
_NOT_FOLLOWED = frozenset(("$defs", "definitions", "const", "enum", "default", "examples"))
"""Keywords whose schemas count only where they are referred to, or that have no schemas."""
_DEEPEST = 300
"""Most levels of a schema with references followed, each once: the compiler is recursive."""

_MOST_UNFOLLOWED = 1500
"""Most levels behind references that are not followed; the stack has room for some more."""


def check_cost(schema: dict[str, Any]) -> None:
    """Raises InvalidRequest for a schema that would take too much memory or time."""
    try:
        _check_cost(schema)
    except RecursionError:
        said = "takes one whose parts, and what they refer to, stand less deeply within each other"
        raise InvalidRequest(f"constraint.json_schema: {said}") from None


def _check_cost(schema: dict[str, Any]) -> None:
    _check_depth(schema)
    _check_unfollowed(schema)
    costs = _Costs(schema)
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            _check_counts(value)
            if costs.patterns(value) > _MOST_PATTERNS:
                said = f"`pattern`: takes at most {_MOST_PATTERNS} patterns and formats for one string"
                raise InvalidRequest(f"constraint.json_schema: {said}")
            check_steps(costs.steps(value))
            if costs.copied(value) > _MOST_COPIED:
                said = "takes fewer alternatives beside so much else, once they are combined"
                raise InvalidRequest(f"constraint.json_schema: {said}")
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _check_counts(schema: dict[str, Any]) -> None:
    for name, most in _MOST.items():
        parts = schema.get(name)
        if isinstance(parts, dict | list) and len(parts) > most:
            raise InvalidRequest(f"constraint.json_schema: `{name}`: takes at most {most}, got {len(parts)}")
    for name in ("const", "enum"):
        pending = [schema.get(name)]
        while pending:
            value = pending.pop()
            if isinstance(value, dict) and len(value) > _MOST["properties"]:
                raise InvalidRequest(
                    f"constraint.json_schema: `{name}`: takes objects of at most {_MOST['properties']} keys"
                )
            pending.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def _check_depth(schema: dict[str, Any]) -> None:
    """Check the depth with references followed in place, each once, in both orders that a compiler may take."""
    for backwards in (False, True):
        seen: set[int] = set()
        open_levels: list[Iterator[Any]] = [iter([schema])]
        while open_levels:
            value = next(open_levels[-1], None)
            if value is None:
                open_levels.pop()
                continue
            inner = _inner(schema, value, seen)
            open_levels.append(iter(inner[::-1] if backwards else inner))
            if len(open_levels) > _DEEPEST:
                raise InvalidRequest(
                    f"constraint.json_schema: `$ref`: takes at most {_DEEPEST} levels behind each other"
                )


def _check_unfollowed(schema: dict[str, Any]) -> None:
    """Check the depth behind references that are not followed: by an `$anchor` or an `$id`, or within a part with an
    `$id`.

    Each counts as if it led to the next one through the whole height of the schema.
    """
    references: set[tuple[str, str]] = set()
    height, are_followed = 0, True
    pending: list[tuple[Any, int, str]] = [(schema, 1, "")]
    while pending:
        value, level, base = pending.pop()
        height = max(height, level)
        if isinstance(value, dict):
            reference, name = value.get("$ref"), value.get("$id", value.get("id"))
            if isinstance(name, str) and level > 1:
                base, are_followed = name, False
            if isinstance(reference, str):
                references.add((base, reference))
                is_place = reference.startswith("#") and (
                    reference == "#" or "/" in reference
                )  # an anchor has no slash
                are_followed = are_followed and is_place
        inner = value.values() if isinstance(value, dict) else value
        pending += [(each, level + 1, base) for each in inner if isinstance(each, dict | list)]
    if not are_followed and (len(references) + 1) * height > _MOST_UNFOLLOWED:
        said = "takes fewer references by `$id` and `$anchor`, or in a less deep schema; those by `#/…` may be more"
        raise InvalidRequest(f"constraint.json_schema: `$ref`: {said}")


def _inner(root: dict[str, Any], value: Any, seen: set[int]) -> list[Any]:
    """The schemas, lists and maps of schemas in a value, and the target of its reference unless `seen` has it."""
    if not isinstance(value, dict):
        return [each for each in value if isinstance(each, dict)]
    reference = value.get("$ref")
    found = [each for name, each in value.items() if name not in _NOT_FOLLOWED]
    target = referred(root, reference) if isinstance(reference, str) else None
    if target is not None and id(target) not in seen:
        seen.add(id(target))
        found.append(target)
    return [each for each in found if isinstance(each, dict | list)]


class _Costs:
    """Costs of one schema's parts; each part is visited once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._sizes: dict[int, int] = {}
        self._alternatives: dict[int, int] = {}
        self._patterns: dict[int, int] = {}
        self._steps: dict[int, Steps] = {}

    def patterns(self, schema: Any) -> int:
        """Most patterns and formats that hold at once for a string."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._patterns:
            self._patterns[id(schema)] = 0  # a reference to itself adds nothing
            count = sum(isinstance(schema.get(name), str) for name in ("pattern", "format"))
            together, reference = schema.get("allOf"), schema.get("$ref")
            count += sum(map(self.patterns, together)) if isinstance(together, list) else 0
            count += self.patterns(referred(self._root, reference)) if isinstance(reference, str) else 0
            for options in (schema.get(name) for name in _LISTS):
                count += max(map(self.patterns, options), default=0) if isinstance(options, list) else 0
            self._patterns[id(schema)] = count
        return self._patterns[id(schema)]

    def steps(self, schema: Any) -> Steps:
        """The steps of all `multipleOf` that hold at once."""
        if not isinstance(schema, dict):
            return NO_STEP
        if id(schema) not in self._steps:
            self._steps[id(schema)] = NO_STEP  # a reference to itself adds nothing
            found, reference, together = step_of(schema.get("multipleOf")), schema.get("$ref"), schema.get("allOf")
            holding = [*together] if isinstance(together, list) else []
            holding += [referred(self._root, reference)] if isinstance(reference, str) else []
            for each in holding:
                found = common(found, self.steps(each))
            for options in (schema.get(name) for name in _LISTS):
                if isinstance(options, list) and options:
                    found = common(found, frozenset(chain.from_iterable(map(self.steps, options))))
            self._steps[id(schema)] = found
        return self._steps[id(schema)]

    def copied(self, schema: dict[str, Any]) -> int:
        """Values that are copied to combine the parts of a schema that hold at once."""
        parts = self._parts(schema)
        combined = min(_CAP, math.prod(alternatives for alternatives, _ in parts))
        copied = sum(size for _, size in parts) - max(parts)[1]
        return combined * copied if combined > 1 else 0

    def _parts(self, schema: dict[str, Any]) -> list[tuple[int, int]]:
        """The number of alternatives and the size of each part: each list, each of allOf, the target of `$ref`, the
        rest.
        """
        parts: list[Any] = [schema[name] for name in (*_LISTS, "enum") if isinstance(schema.get(name), list)]
        rest = self._size(schema) - sum(map(self._size, parts))
        everything = schema.get("allOf")
        if isinstance(everything, list):
            parts += everything
            rest -= self._size(everything)
        reference = schema.get("$ref")
        parts += [referred(self._root, reference)] if isinstance(reference, str) else []
        return [(self._count(part), self._size(part)) for part in parts] + [(1, max(0, rest))]

    def _count(self, part: Any) -> int:
        """The number of alternatives of a schema or of a list of schemas; an enum's values are such a list."""
        if not isinstance(part, dict | list):
            return 1
        if id(part) not in self._alternatives:
            self._alternatives[id(part)] = 1  # a reference to itself adds nothing
            if isinstance(part, list):
                count = max(1, sum(map(self._count, part)))
            else:
                count = math.prod(alternatives for alternatives, _ in self._parts(part))
            self._alternatives[id(part)] = min(_CAP, count)
        return self._alternatives[id(part)]

    def _size(self, value: Any) -> int:
        """The number of values in it, itself included."""
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in self._sizes:
            inner = value.values() if isinstance(value, dict) else value
            self._sizes[id(value)] = 1 + sum(map(self._size, inner))
        return self._sizes[id(value)]


def referred(root: dict[str, Any], reference: str) -> Any:
    """The target of a reference into the schema itself; None for any other."""
    return at(root, steps_of(reference)) if reference.startswith("#") else None


def steps_of(reference: str) -> list[str]:
    """The path of names and indices after the `#` of a reference."""
    steps = reference.partition("#")[2].split("/")[1:]
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in steps]


def at(root: dict[str, Any], steps: Sequence[str]) -> Any:
    """The value at a path; None if there is none."""
    target: Any = root
    for step in steps:
        if isinstance(target, dict) and step in target:
            target = target[step]
        elif isinstance(target, list) and step.isdecimal() and len(step) < 9 and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target
