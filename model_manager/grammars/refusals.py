"""Messages for constraints that llguidance refuses: one sentence with the construct, its place and what to write
instead.

Knows llguidance's messages and uses none of its words; compiles nothing.
"""

from __future__ import annotations

import logging
import re

from ..wire.constraint import Constraint
from ..wire.errors import counted
from .lark import given_position, pieces, place
from .llguidance_schemas import prepared
from .regex_reasons import regex_reason
from .schema_reasons import TOO_LARGE, TOO_LARGE_SAID, Judge, schema_reason

OF_A_MODEL = re.compile(r"unknown special token|Token range end too large")
"""Messages for a grammar with tokens that the model does not have."""
NOTHING = "takes one that something satisfies, and nothing does"
_LONGEST = 500
_TOO_LARGE = re.compile(TOO_LARGE_SAID)
TOO_MANY_STATES = f"{TOO_LARGE}: repetitions with bounds, such as `{{1,1000}}`, and alternatives multiply"
_STATED = (
    (r"^Expected token '(.)'.*, found '\\n'.*", r"takes `\1`, got the end of the line"),
    (r"^Expected token (.*), found end of input.*", r"takes \1, got the end"),
    (r"^Expected token '([^']*)'.*, found '([^']*)'.*", r"takes `\1`, got `\2`"),
    (r"^at EOF: ", ""),
    (r"^Expected value.*", "takes a name, a string or an expression"),
    (r"^expecting rule, token or statement.*", "takes a rule, a terminal or a statement"),
    (r"^lexer error.*", "takes no such character, or a string with an escape that JSON has not"),
    (r"^no start rule found", "has no rule `start`"),
    (r"^unknown name: \"(.*)\"", r"`\1` is not defined, or is a rule in a terminal"),
    (r"^duplicate (rule|token): \"(.*)\"", r"`\2` is defined twice"),
    (
        r"^circular reference in token \"(.*)\" definition",
        r"`\1` is within itself: write a rule, in lower case",
    ),
    (r"^failed to parse (%\w+): unknown field (`\w+`), expected one of (.*) at line.*", r"\1: takes one of \3, got \2"),
    (r"^failed to parse (%\w+).*", r"\1: takes an object of its own settings"),
    (r"^(.*) at line \d+ column \d+$", r"%llguidance: takes JSON: \1"),
    (r"^Unknown common regex: (\S+);.*", r"there is no terminal `\1` to import"),
    (r"^failed to compile JSON schema.*", "%json: takes a schema, which is an object, true or false"),
    (r"^%json literals.*", "%json: takes a place in a rule, whose name is in lower case"),
    (r"^declare statement.*", "%declare is not supported"),
    (
        r"^range end must be >= start, got \((\d+), (\d+)\)",
        r"takes a range that ends behind its begin, got \1 to \2",
    ),
    (r"^unknown grammar (\S+)", r"there is no grammar \1"),
    (r"^& is only supported.*", "`&` takes terminals, whose names are in upper case"),
    (r" \(at .*\)$", ""),
)
"""llguidance's messages about grammars, and ours."""
_AT = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_log = logging.getLogger(__name__)


def reason(constraint: Constraint, message: str, judge: Judge) -> str:
    """Our sentence for a message of llguidance; `judge` gives its message for other schemas."""
    if "NoExtension" in message:
        return NOTHING
    if isinstance(constraint.json_schema, dict):
        return _cut(schema_reason(constraint.json_schema, prepared(constraint.json_schema), message, judge))
    if constraint.grammar is not None:
        return _cut(_of_grammar(constraint.grammar, message, judge))
    said = regex_reason(constraint.regex or "", message)
    return _cut(said or _of_limits(message))


def of_slowness(name: str, length: int) -> str:
    """Our sentence for an output that took too long under the constraint of that name; `length` in tokens."""
    return (
        f"{name}: takes too much processor time to follow, after {counted(length, 'token')} of output: write it so "
        'that a text can be read in one way only, as the rule `x: "a"+` for `x: x x | "a"`'
    )


def of_a_step(message: str) -> str:
    """Our sentence for an output whose grammar failed at a token with this message of llguidance."""
    if _TOO_LARGE.search(message):
        return "the constraint takes too many states"
    _log.info("an output's grammar failed: %s", message)
    return "the grammar allows no such token"


def _cut(said: str) -> str:
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def _of_grammar(grammar: str, message: str, judge: Judge) -> str:
    for piece in pieces(grammar):
        if piece.keyword == "/" and (said := regex_reason(piece.value, message)):
            return f"{place(grammar, piece.start)}: {said}"
        if piece.keyword == "%json" and "JSON schema" in message and isinstance(piece.value, dict):
            schema = prepared(piece.value)
            alone = judge(schema)
            if alone is not None and alone.strip().partition("\n")[0] in message:
                return f"{place(grammar, piece.start)}: %json: {schema_reason(piece.value, schema, alone, judge)}"
    if _TOO_LARGE.search(message) and not OF_A_MODEL.search(message):
        return _of_limits(message)
    line, found = message.strip().partition("\n")[0], _AT.match(message.strip())
    said = line[found.end() :] if found else line
    for theirs, ours in _STATED:
        said = re.sub(theirs, ours, said)
    said = said.replace('"', "`")
    return f"{place(grammar, given_position(grammar, int(found[1]), int(found[2])))}: {said}" if found else said


def _of_limits(message: str) -> str:
    if _TOO_LARGE.search(message):
        return TOO_MANY_STATES
    _log.info("refused for a reason that has no sentence yet: %s", message)
    return "takes one that a grammar can be made of"
