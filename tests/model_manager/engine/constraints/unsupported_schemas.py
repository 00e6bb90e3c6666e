"""JSON Schema keywords that are refused, each with the reason and the smallest schema that shows it.

`python -m tests.model_manager.engine.constraints.unsupported_schemas` writes the table of it into
docs/reference/constraints.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.engine.constraints.schema_corpus import CORPUS, corpus

PAGE = Path(__file__).parents[4] / "docs/reference/constraints.md"
FOLDER = Path(__file__).parents[4] / "model_manager" / "store" / "embedded" / "millrace-tiny"
_BEGIN, _END = "<!-- table of unsupported keywords -->\n", "<!-- end of table -->\n"


@dataclass(frozen=True)
class Unsupported:
    """A keyword that is refused; `said` is found in the sentence that refuses it."""

    keywords: str
    when: str
    reason: str
    said: str
    schema: dict[str, Any]


_NO_COMPLEMENT = "a grammar has no complement"
_LATER_PARTS = "what is allowed would depend on parts that come later, or elsewhere"
UNSUPPORTED = (
    Unsupported("not", "always, but `false`", _NO_COMPLEMENT, "`not`", {"not": {"type": "null"}}),
    Unsupported("if, then, else", "always, but without effect", _NO_COMPLEMENT, "`if`", {"if": {}, "then": False}),
    Unsupported(
        "oneOf",
        "two of its schemas might hold at once",
        "exactly one is no union; where they exclude each other it is, and is supported",
        "schemas that may hold at once",
        {"oneOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 3}]},
    ),
    Unsupported("dependencies", "always, but `{}`", _LATER_PARTS, "`dependencies`", {
        "$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]},
    }),
    Unsupported("dependentRequired, dependentSchemas", "always, but `{}`", _LATER_PARTS, "`dependent", {
        "dependentRequired": {"a": ["b"]}
    }),
    Unsupported("uniqueItems", "`true`", "items would have to be remembered", "`uniqueItems`", {"uniqueItems": True}),
    Unsupported("contains, minContains, maxContains", "always", _LATER_PARTS, "`contains`", {"contains": {}}),
    Unsupported("propertyNames", "always, but `true`", "not in llguidance; `patternProperties` is", "`propertyNames`", {
        "propertyNames": {"pattern": "^a"}
    }),
    Unsupported(
        "unevaluatedItems, unevaluatedProperties", "always, but `true`", _LATER_PARTS, "`unevaluated",
        {"unevaluatedProperties": False},
    ),
    Unsupported("$dynamicRef, $recursiveRef", "always", "not in llguidance; `$ref` is", "`$dynamicRef`", {
        "$dynamicRef": "#a"
    }),
    Unsupported("$ref", "to another document", "nothing is fetched", "nothing is fetched", {"$ref": "http://example.com/a"}),
    Unsupported(
        "format",
        "another than `date`, `date-time`, `time`, `duration`, `email`, `hostname`, `ipv4`, `ipv6`, `uuid`, `uri`",
        "what it asserts is not known",
        "`format`",
        {"type": "string", "format": "idn-email"},
    ),
    Unsupported(
        "pattern, patternProperties",
        "look-around, back-references, `\\b`, possessive quantifiers, recursion",
        "no regular languages, or not in llguidance",
        "look-ahead",
        {"type": "string", "pattern": "(?=a)b"},
    ),
    Unsupported(
        "patternProperties", "a name might match two patterns", "both schemas would have to hold at once",
        "no name matches two", {"patternProperties": {"^a": {}, "b$": {}}},
    ),
    Unsupported(
        "minProperties, maxProperties",
        "beside properties that may be left out, but for 0 and 1",
        "properties would have to be counted",
        "that are all in `required`",
        {"properties": {"a": {}, "b": {}}, "maxProperties": 2},
    ),
    Unsupported(
        "minProperties",
        "more than one above the number of names in `required`",
        "llguidance would count a name twice that comes twice",
        "a key may come twice",
        {"minProperties": 2},
    ),
    Unsupported(
        "const, enum, multipleOf",
        "integers that no float of 64 bits is",
        "llguidance would read another number",
        "integers that are floats of 64 bits too",
        {"const": 2**53 + 1},
    ),
    Unsupported(
        "oneOf", "more than 1,000 schemas", "each is compared with each", "`oneOf`: takes at most",
        {"oneOf": [{"const": str(number)} for number in range(1001)]},
    ),
    Unsupported(
        "properties, required", "more than 2,000 names", "its rules would stand behind each other on a stack",
        "`properties`: takes at most", {"properties": {f"a{number}": {} for number in range(2001)}},
    ),
    Unsupported(
        "pattern, format", "more than 6 of them for one string", "its automaton may be the product of theirs",
        "`pattern`: takes at most", {"allOf": [{"pattern": f"a.*{number}"} for number in range(7)]},
    ),
    Unsupported(
        "patternProperties",
        "more than 50 patterns",
        "each is compared with each",
        "`patternProperties`: takes at most",
        {"patternProperties": {f"^{number}$": {} for number in range(51)}},
    ),
    Unsupported(
        "anyOf, oneOf, enum",
        "very many, beside or within much else that holds too",
        "each alternative would be combined with it",
        "fewer alternatives",
        {"anyOf": [{"required": [f"a{number}"]} for number in range(5000)], "properties": {
            f"p{number}": {"type": "string"} for number in range(1500)
        }},
    ),
    Unsupported(
        "multipleOf", "more than 10,000 without its point and last zeros, combined with all that hold at once",
        "its automaton would be too large",
        "`multipleOf`: takes",
        {"multipleOf": 0.12345},
    ),
    Unsupported(
        "multipleOf", "more than 10 different ones among alternatives", "each is combined with each",
        "different alternatives", {"anyOf": [{"multipleOf": number} for number in range(1, 13)]},
    ),
    Unsupported(
        "minimum, maximum, exclusiveMinimum, exclusiveMaximum", "below -2^63, the upper ones at -2^63 too",
        "llguidance would read another number",
        "takes bounds over", {"type": "integer", "minimum": -1e20},
    ),
    Unsupported(
        "$schema", "draft 3 and before", "their keywords are others", "draft 4 and later",
        {"$schema": "http://json-schema.org/draft-03/schema#"},
    ),
    Unsupported(
        "const, enum", "strings with control characters but line breaks, tabs, backspace and form feed",
        "with escapes as `\\u0061` a name could come in two ways of writing",
        "control characters", {"const": "\u0001"},
    ),
)  # fmt: skip


def refusal(compiler: GrammarCompiler, schema: Any) -> str | None:
    """The sentence that refuses a schema."""
    try:
        compiler.compile(Constraint(json_schema=schema))
    except InvalidRequest as error:
        return str(error)
    return None


def table() -> str:
    """The Markdown table of UNSUPPORTED, with how many schemas of the corpus are refused for each."""
    compiler = GrammarCompiler(FOLDER, 2000, [1])
    refusals = [said for case in corpus() if (said := refusal(compiler, case.schema)) is not None]
    lines = [f"| keyword | refused | why | of {len(corpus())} schemas |", "|---|---|---|---|"]
    for entry in UNSUPPORTED:
        count = sum(entry.said in said for said in refusals)
        names = ", ".join(f"`{name}`" for name in entry.keywords.split(", "))
        lines.append(f"| {names} | {entry.when} | {entry.reason} | {count or ''} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table that UNSUPPORTED makes in the place of the one that it has."""
    before, rest = page.split(_BEGIN)
    return before + _BEGIN + table() + _END + re.split(_END, rest)[1]


if __name__ == "__main__":
    assert CORPUS.is_file()
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
