"""Runs hostile constraints for some seconds, then prints one line.

    python -m tests.model_manager.engine.constraints.fuzz SECONDS SEED

Each either is refused with InvalidRequest or makes a working matcher, quickly: what hangs, aborts or takes too much
memory ends the process otherwise. `test_fuzz.py` runs it as a child.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.grammars.guide import Ends, Guide
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConstraintNotMet, InvalidRequest

FOLDER = Path(__file__).parents[4] / "model_manager" / "store" / "embedded" / "millrace-tiny"
_LONGEST = 120.0
"""Seconds that one constraint may take on a machine that does other things too."""
_MEMORY = 6 * 2**30
_STEPS = 20

KEYWORDS = (
    "type properties required additionalProperties patternProperties items prefixItems minItems maxItems anyOf oneOf "
    "allOf not if then else const enum pattern format minLength maxLength minimum maximum exclusiveMinimum multipleOf "
    "$ref $defs definitions uniqueItems minProperties maxProperties contains x-guidance $id $schema $anchor"
).split()
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 1000, 10**9, 2**53 + 1, -(2**63), 2**64 - 1, 0.1, 1e-300, 1e300),
    *("", "a", "string", "object", "array", "integer", "#", "#/$defs/a", "#/a/b", "http://x/y", "file:///etc/passwd"),
    *("(a*)*b", "(?=a)", "a{1,1000000000}", "((a{1,99}){1,99}){1,99}", "[ab]*a[ab]{99}", "\\p{L}*", "^$", "(", "date"),
    *([], {}, ["a"], {"a": True}, [1, [2, {"a": 3}]], {"$ref": "#"}, ["string", "null"], {"$ref": "#/$defs/a"}),
]
_DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
SNIPPETS = (
    'start: a\n|a: "x" a | "y"\n|A: /[a-z]+/\n|start: A B C\n|B: "b"{1,1000000000}\n|C: (A|B)+ & ~/x/\n|a: b\n|b: a\n'
    '|%json {}|%json {"$ref":"#"}|%regex {"substring_words":"a b c"}|%regex {"substring_chars":"aaaaaaa"}|(|)|[|]|{'
    '|}|~|&|*|+|?|"a"|/a*/|/(a*)*/|/((a{9}){9}){9}/|<|>|<[0-9]>|@x|%ignore /\\s*/\n|%import common.INT\n|[lazy]'
    '|[suffix="b"]|"\\u0000"|start: start start | \n|a::_ : "x" %if lt(_, 5)\n|a::incr(_)|{1,99}|{,}|{9999}|.."z"'
    "|\n|#|//|%llguidance {}\n"
).split("|")  # fmt: skip


def random_schema(source: random.Random, depth: int = 4) -> Any:
    """Keywords with values that may or may not be theirs."""
    if depth == 4:
        return {source.choice(KEYWORDS): random_schema(source, depth - 1) for _ in range(1 + source.randrange(4))}
    if depth == 0 or source.random() < 0.2:
        return source.choice(VALUES)
    fields = {source.choice(KEYWORDS): random_schema(source, depth - 1) for _ in range(source.randrange(5))}
    return [fields] if source.random() < 0.1 else fields


def random_text(source: random.Random) -> str:
    """Pieces of grammars in any order."""
    return "".join(source.choice(SNIPPETS) for _ in range(source.randrange(1, 30)))


def random_regex(source: random.Random) -> str:
    """Pieces of regular expressions in any order."""
    pieces = ["a", "b", "(", ")", "|", "*", "+", "?", "{9}", "{1,1000}", "{0,}", ".", "[^a]", "\\d", "\\p{L}", "é"]
    pieces += ["(?s:", "(?i)", "^", "$", "[a-z]", "\\", "[[:alpha:]&&[^x]]", "{1,99999999}"]
    return "".join(source.choice(pieces) for _ in range(source.randrange(1, 25)))


def _deep(opening: str, inner: str, closing: str, levels: int = 10_000) -> str:
    return opening * levels + inner + closing * levels


def known_attacks() -> list[Callable[[], Constraint]]:
    """What has been thought of."""
    patterns = {f"^{index}(a|b)*{index}": {"type": "integer"} for index in range(2000)}
    chain = "\n".join(f'R{index}: R{index + 1} "x"' for index in range(20_000))
    rules = "\n".join(f'r{index}: r{index + 1} | "x"' for index in range(20_000))
    refs: dict[str, Any] = {f"a{index}": {"anyOf": [{"$ref": f"#/$defs/a{index + 1}"}] * 2} for index in range(60)}
    alls: dict[str, Any] = {f"a{index}": {"allOf": [{"$ref": f"#/$defs/a{index + 1}"}] * 2} for index in range(60)}
    steps = {f"a{index}": {"properties": {"b": {"$ref": f"#/$defs/a{index + 1}"}}} for index in range(30_000)}
    direct = {f"a{index}": {"$ref": f"#/$defs/a{index + 1}"} for index in range(30_000)}
    anchors = {f"a{index}": {"$anchor": f"a{index}", "$ref": f"#a{index + 1}"} for index in range(20_000)}
    large = {"properties": {"a": {"properties": {f"p{index}": {"type": "string"} for index in range(10_000)}}}}
    many = {"anyOf": [{"required": [f"r{index}"]} for index in range(2000)]}
    ors = {"anyOf": [{"properties": {f"p{index}": {"const": index}}} for index in range(40)]}
    return [
        lambda: Constraint(regex=_deep("(", "a", ")")),
        lambda: Constraint(regex=_deep("(", "a", ")*")),
        lambda: Constraint(regex="(" * 200 + "a" + "{1,100})" * 200),
        lambda: Constraint(regex="[ab]*a[ab]{5000}"),
        lambda: Constraint(regex="|".join(f"a{{{index}}}b" for index in range(3000))),
        lambda: Constraint(regex="(.*a){50}.*(b.*){50}"),
        lambda: Constraint(regex="\\p{L}{1,60000}"),
        lambda: Constraint(grammar="start: " + _deep("(", '"a"', ")")),
        lambda: Constraint(grammar="start: A\nA: " + _deep("~(", '"a"', ")")),
        lambda: Constraint(grammar="start: A\nA: " + "~" * 100_000 + '"a"'),
        lambda: Constraint(grammar='start: "a"' + "?" * 100_000),
        lambda: Constraint(grammar="start: " + '"a" | ' * 100_000 + '"b"'),
        lambda: Constraint(grammar=f'start: R0\n{chain}\nR20000: "y"'),
        lambda: Constraint(grammar=f'start: r0\n{rules}\nr20000: "y"'),
        lambda: Constraint(grammar='start: start start | "a" | '),
        lambda: Constraint(grammar='start: "a"{1,1000000000}'),
        lambda: Constraint(json_schema={"enum": [{"a": [-(2**63)]}]}),
        lambda: Constraint(grammar='start: %json {"const": -9223372036854775808}'),
        lambda: Constraint(grammar='start: a{1000}\na: b{1000}\nb: "x"{1000}'),
        lambda: Constraint(grammar="start: %json " + _deep('{"not":', "{}", "}")),
        lambda: Constraint(grammar='start: S\nS: %regex {"substring_chars": "' + "ab" * 50_000 + '"}'),
        lambda: Constraint(grammar="start: S\nS: %regex " + json.dumps({"substring_chunks": ["a"] * 100_000})),
        lambda: Constraint(json_schema={"patternProperties": patterns}),
        lambda: Constraint(json_schema={"$ref": "#/$defs/a0", "$defs": refs | {"a60": {"type": "null"}}}),
        lambda: Constraint(json_schema={"$ref": "#/$defs/a0", "$defs": alls | {"a60": {"type": "null"}}}),
        lambda: Constraint(json_schema={"allOf": [ors] * 6}),
        lambda: Constraint(json_schema={"$ref": "#/$defs/a0", "$defs": steps}),
        lambda: Constraint(json_schema={"$ref": "#/$defs/a0", "$defs": direct}),
        lambda: Constraint(json_schema={"$ref": "#a0", "$defs": anchors}),
        lambda: Constraint(json_schema={"allOf": [many, large]}),
        lambda: Constraint(json_schema={"allOf": [{"$ref": "#/$defs/m"}] * 9, "$defs": {"m": many}} | large),
        lambda: Constraint(json_schema={"allOf": [{"pattern": f"a.*{index}"} for index in range(200)]}),
        lambda: Constraint(json_schema={"type": "array", "minItems": 10**9, "items": {"$ref": "#"}}),
        lambda: Constraint(json_schema={"type": "array", "maxItems": 10**9}),
        lambda: Constraint(json_schema={"type": "string", "minLength": 10**9}),
        lambda: Constraint(json_schema={"type": "string", "maxLength": 10**6, "pattern": "(a|b)*c"}),
        lambda: Constraint(json_schema={"enum": [f"{index:05}" for index in range(40_000)]}),
        lambda: Constraint(json_schema={"properties": {f"p{index}": {} for index in range(30_000)}}),
        lambda: Constraint(json_schema={"oneOf": [{"properties": {"a": {"const": i}}} for i in range(2000)]}),
        lambda: Constraint(json_schema={"oneOf": [{"const": str(index)} for index in range(3000)]}),
        lambda: Constraint(json_schema={"multipleOf": 123456789, "type": "integer"}),
        lambda: Constraint(json_schema={"allOf": [{"type": "integer", "multipleOf": 7919}, {"multipleOf": 7907}]}),
        lambda: Constraint(json_schema={"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}),
        lambda: Constraint(json_schema={"allOf": [{"type": "integer", "minimum": -(2**63)}, {"maximum": -(2**63)}]}),
        lambda: Constraint(json_schema={"type": "integer", "minimum": -1e20, "exclusiveMaximum": -1e19}),
        lambda: Constraint(json_schema={"$ref": "#/x/A", "x": {"A": {"const": -(2**63)}}}),
        lambda: Constraint(json_schema=_DRAFT_7 | {"$ref": "#/definitions", "definitions": {"const": -(2**63)}}),
        lambda: Constraint(grammar='start: %json {"$ref": "#/x", "x": {"const": -9223372036854775808}}'),
        lambda: Constraint(grammar="start: x\nx: x x | x x x | A\nA: /[a-z]/"),
        lambda: Constraint(grammar='start: x\nx: x x | x x x | x x x x | "a"'),
        lambda: Constraint(choice=tuple(f"{index}" * 20 for index in range(10_000))),
    ]


def examine(compiler: GrammarCompiler, make: Callable[[], Constraint], source: random.Random) -> bool:
    """Whether it compiled; takes a few steps then, and looks for an end."""
    try:
        grammar = compiler.compile(make())
    except InvalidRequest as error:
        if not str(error).startswith("constraint"):
            raise RuntimeError("an error that does not name its constraint") from error
        return False
    _walk(grammar, source)
    return True


def _walk(grammar: Grammar, source: random.Random) -> None:
    """Rows of few tokens as an engine has them, each with the lexer of the one before; the last is closed."""
    for most in (_STEPS, 3 * _STEPS):
        guide, left = Guide(grammar, Ends(eos=[1], stops=[], ignore_eos=False)), most
        try:
            while left and not guide.is_over and not guide.has_ended:
                guide.take(guide.choose(source.randrange(2**32)))
                left -= 1
        except ConstraintNotMet:
            return
    guide.closed(most)


def main(seconds: float, seed: int) -> None:
    """Known attacks first, then random ones until the time is up."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    compiler, source = GrammarCompiler(FOLDER, 2000, [1]), random.Random(seed)
    attacks, counts, slowest = known_attacks(), [0, 0], (0.0, "")
    until = time.monotonic() + seconds
    while attacks or time.monotonic() < until:
        make = attacks.pop() if attacks else _random_constraint(source)
        started = time.monotonic()
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        counts[examine(compiler, make, source)] += 1
        faulthandler.cancel_dump_traceback_later()
        slowest = max(slowest, (time.monotonic() - started, _shown(make)))
    print(f"refused {counts[0]}, compiled {counts[1]}, slowest {slowest[0]:.1f} s: {slowest[1]}")


def _random_constraint(source: random.Random) -> Callable[[], Constraint]:
    fields: dict[str, Any] = source.choice(
        [
            {"json_schema": random_schema(source)},
            {"grammar": random_text(source)},
            {"regex": random_regex(source)},
        ]
    )
    return lambda: Constraint(**fields)


def _shown(make: Callable[[], Constraint]) -> str:
    try:
        return repr(make())[:200]
    except InvalidRequest as error:
        return str(error)[:200]


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
