"""Lark grammars as llguidance takes them safely: what stands in them in JSON is prepared as by itself, classes of
characters mean what they do elsewhere, and what is nested too deeply for a stack is refused before.

Knows a grammar's words, strings, regular expressions, comments and embedded JSON, not its rules.
"""

from __future__ import annotations

import json
import re

from llguidance import regex_to_lark

from model_manager.engine.constraints.schemas import OPTIONS, prepared
from model_manager.wire.constraint import Constraint
from model_manager.wire.errors import InvalidRequest

_PIECE = re.compile(
    r'"(?:\\.|[^"\\\n])*+"'
    r"|(?P<regex>/(?!/)(?:\\.|[^/\\])++/)"
    r"|<[^<>]*+>"
    r"|(?:#|//)[^\n]*+"
    r"|(?P<keyword>%(?:json|regex|llguidance))"
    r'|(?P<open>["/<])'
)
"""A string, a regular expression (which may go over lines), a special token, a comment or a keyword, as llguidance's
own lexer takes them; or what begins one and has no end, which ends the search: it would take forever otherwise.
"""
_COLON = re.compile(r"(?<!:):(?!:)")
_ATTRIBUTE = re.compile(r"\[[^\[\]]*\b(max_tokens|temperature|stop|stop_capture|capture)\b")
"""What would make a grammar a matter of sampling, or of taking tokens back."""
_MOST_NESTED = 800
"""Rules and brackets: each may stand within the one before, and what compiles them does so recursively."""
_MOST_SPAN_CHARACTERS = 500_000
"""Of texts whose spans begin and end anywhere: they take some 400 times their size and 5 µs a character."""
_SPACE = re.compile(r"\s*")
_decoder = json.JSONDecoder()


def prepared_lark(grammar: str) -> str:
    """A grammar that means the same; raises InvalidRequest for what cannot be compiled safely, or not at all."""
    written: list[str] = []
    plain: list[str] = []
    position = spans = 0
    while found := _PIECE.search(grammar, position):
        before, piece = grammar[position : found.start()], found[0]
        position = found.end()
        if found["keyword"]:
            text, position = _embedded(grammar, position, piece)
            spans += len(text) if "substring_chars" in text else 0
            piece += text
        elif found["regex"]:
            piece = f"/{ascii_classes(piece[1:-1])}/"
        elif found["open"]:
            said = grammar[found.start() : found.start() + 40]
            raise InvalidRequest(f"constraint.grammar: takes a {piece} with one that ends it, got {said!r}")
        written += [before, piece]
        plain += [before, " "]
    if spans > _MOST_SPAN_CHARACTERS:
        said = f"takes at most {_MOST_SPAN_CHARACTERS} characters, got {spans}; substring_words takes more"
        raise InvalidRequest(f"constraint.grammar: substring_chars: {said}")
    _check("".join([*plain, grammar[position:]]))
    return "".join([*written, grammar[position:]])


def ascii_classes(regex: str) -> str:
    r"""The expression with a `\d` and `\w` that are ASCII, as in a schema's patterns."""
    return regex_to_lark(regex, use_ascii="dw")


def _embedded(grammar: str, position: int, keyword: str) -> tuple[str, int]:
    """The JSON after a keyword, prepared, and where it ends."""
    space = _SPACE.match(grammar, position)
    assert space is not None
    try:
        value, end = _decoder.raw_decode(grammar, space.end())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"constraint.grammar: {keyword}: takes JSON: {error}") from None
    if keyword != "%json" or not isinstance(value, dict):
        return grammar[position:end], end
    try:
        Constraint(json_schema=value)
        return " " + json.dumps(prepared(value) | {"x-guidance": OPTIONS}), end
    except InvalidRequest as error:
        said = str(error).removeprefix("constraint.json_schema: ")
        raise InvalidRequest(f"constraint.grammar: %json: {said}") from None


def _check(plain: str) -> None:
    """The grammar without its strings, regular expressions, comments and JSON."""
    nested = len(_COLON.findall(plain)) + sum(map(plain.count, "([{"))
    if nested > _MOST_NESTED:
        raise InvalidRequest(f"constraint.grammar: takes at most {_MOST_NESTED} rules and brackets, got {nested}")
    attribute = _ATTRIBUTE.search(plain)
    if attribute:
        raise InvalidRequest(f"constraint.grammar: takes rules without the attribute {attribute[1]}")
