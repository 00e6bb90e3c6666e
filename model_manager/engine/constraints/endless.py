"""Schemas that nothing finite satisfies, since each value of theirs has another one within it. What compiles them does
not tell: their outputs would begin and never end. Knows schemas, and takes what it cannot tell for satisfiable.
"""

from __future__ import annotations

from typing import Any

from model_manager.engine.constraints.schema_cost import at, steps_of
from model_manager.engine.constraints.schema_parts import told
from model_manager.wire.errors import InvalidRequest

Steps = tuple[str, ...]
Needs = list[list[Steps]]
"""Of each list one part has to hold."""


def check_ends(schema: dict[str, Any]) -> None:
    """Raises InvalidRequest for a schema whose values would have no end."""
    needs = _needs_of_all(schema)
    ending: set[Steps] = set()
    grown = True
    while grown:
        found = {place for place, lists in needs.items() if place not in ending and _ends(lists, ending)}
        ending |= found
        grown = bool(found)
    if () in ending:
        return
    place: Steps = ()
    passed: list[Steps] = []
    while place not in passed:
        passed.append(place)
        place = next(options[0] for options in needs[place] if not ending.intersection(options))
    around = next((each for each in passed[passed.index(place) :] if _asks(at(schema, each))), place)
    keyword = _asks(at(schema, around)) or "$ref"
    said = f"takes a schema that something satisfies; {told(keyword, around)} asks for another such value, without end"
    raise InvalidRequest(f"constraint.json_schema: {said}")


def _ends(lists: Needs, ending: set[Steps]) -> bool:
    return all(ending.intersection(options) for options in lists)


def _asks(part: Any) -> str | None:
    found = (name for name in ("required", "minItems") if isinstance(part, dict) and name in part)
    return next(found, None)


def _needs_of_all(root: dict[str, Any]) -> dict[Steps, Needs]:
    """Of each part that the whole may need."""
    needs: dict[Steps, Needs] = {}
    pending: list[Steps] = [()]
    while pending:
        place = pending.pop()
        if place not in needs:
            needs[place] = _needs(at(root, place), place)
            pending += (each for options in needs[place] for each in options)
    return dict(reversed(needs.items()))


def _needs(part: Any, place: Steps) -> Needs:
    if not isinstance(part, dict) or "const" in part or "enum" in part:
        return []
    reference, together = str(part.get("$ref", "")), part.get("allOf")
    needs: Needs = [[tuple(steps_of(reference))]] if _is_place(reference) else []
    needs += [[(*place, "allOf", str(index))] for index in range(len(together))] if isinstance(together, list) else []
    for name in ("anyOf", "oneOf"):
        options = part.get(name)
        if isinstance(options, list) and options:
            needs.append([(*place, name, str(index)) for index in range(len(options))])
    if part.get("type") in ("object", ["object"]):
        needs += [[(*place, "properties", name)] for name in _required(part)]
    if part.get("type") in ("array", ["array"]):
        needs += [[(*place, *steps)] for steps in _items(part)]
    return needs


def _is_place(reference: str) -> bool:
    """Whether it says where its part is, and not by which name."""
    return reference == "#" or reference.startswith("#/")


def _required(part: dict[str, Any]) -> list[str]:
    required, properties = part.get("required"), part.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return []
    return [name for name in required if isinstance(name, str) and name in properties]


def _items(part: dict[str, Any]) -> list[Steps]:
    least, first, name = part.get("minItems"), part.get("prefixItems"), "prefixItems"
    if not isinstance(least, int):
        return []
    if isinstance(part.get("items"), list):
        first, name = part["items"], "items"
    count = len(first) if isinstance(first, list) else 0
    found: list[Steps] = [(name, str(index)) for index in range(min(least, count))]
    return found + ([("items",)] if least > count and isinstance(part.get("items"), dict) else [])
