"""Constraints of requests: each is refused by an error that names it, or makes a grammar that outputs can follow.

An input is the JSON of a constraint's fields. What is tried here without a guide, by luck alone, with the attacks that
have been thought of, is tests/model_manager/engine/constraints/fuzz.py; its pieces are used here.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import msgspec

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.wire.constraint import Constraint, fields_of
from millrace.model_manager.wire.errors import InvalidRequest
from tests.fuzz.target import Target
from tests.fuzz.trees import mutated, spliced
from tests.model_manager.engine.constraints import fuzz

_REGEX = (
    "a",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{9}",
    "{1,1000}",
    "[^a]",
    "\\d",
    "\\p{L}",
    "é",
    "(?i)",
    "^",
    "$",
    "\\",
    "[a-z]",
)


def run(data: bytes) -> None:
    """Compile it, and follow it for a few tokens."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = data.decode("utf-8", "surrogateescape")
    if not isinstance(given, dict | str):
        return

    def make() -> Constraint:
        try:
            return Constraint.parse(fields_of(given))
        except InvalidRequest as error:
            raise InvalidRequest(f"constraint: {error}") from None  # as a request's parameters name it

    fuzz.examine(_compiler(), make, random.Random(len(data)))


@functools.cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(fuzz.FOLDER, 2000, [1])


def mutate(data: bytes, source: random.Random) -> bytes:
    """Change a keyword or value of a schema, or a piece of a pattern or grammar."""
    try:
        given: Any = json.loads(data)
    except (ValueError, RecursionError):
        given = {"regex": "a"}
    if not isinstance(given, dict) or source.random() < 0.02:
        given = {"json_schema": fuzz.random_schema(source)}
    for name, pieces in (("regex", _REGEX), ("grammar", fuzz.SNIPPETS)):
        if isinstance(given.get(name), str):
            given[name] = spliced(given[name], source, pieces)
    if "json_schema" in given or source.random() < 0.1:
        given = mutated(given, source, [*fuzz.VALUES, *fuzz.KEYWORDS])
    return json.dumps(given).encode("utf-8", "surrogatepass")


def _seeds() -> list[bytes]:
    """What the product's own tests and pages have: little of everything."""
    source = random.Random(1)
    made: list[dict[str, Any]] = [
        {"regex": "[a-z]+@[a-z]+\\.(com|org)"},
        {"regex": "(?i)\\d{3}-\\p{L}*"},
        {"json": True},
        {"choice": ["yes", "no", "yes and no"]},
        {"grammar": 'start: a+\na: "x" | /[0-9]+/ b\nb: "y"~2..3\n%ignore /\\s+/\n'},
        {"grammar": 'start: %json {"type": "object", "properties": {"a": {"enum": [1, 2]}}}'},
        {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "string"}}},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}},
        {"json_schema": {"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "array", "items": {"$ref": "#"}}]}},
        {"json_schema": {"oneOf": [{"const": 1}, {"type": "string", "format": "date"}], "$defs": {"a": {}}}},
        {"json_schema": {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 9}},
        {"json_schema": {"patternProperties": {"^a": {}}, "additionalProperties": False, "minProperties": 1}},
    ]
    made += [{"json_schema": fuzz.random_schema(source)} for _ in range(20)]
    made += [{"regex": fuzz.random_regex(source)} for _ in range(10)]
    made += [{"grammar": fuzz.random_text(source)} for _ in range(10)]
    return [msgspec.json.encode(each) for each in made]


TARGET = Target(run, mutate, _seeds(), seconds=60, memory=4096)
