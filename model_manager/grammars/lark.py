"""Lark grammars in a form that llguidance takes safely.

Embedded JSON is prepared as a schema is, character classes mean what they mean in schemas, and what is nested too
deeply for a stack is refused. Knows a grammar's words, strings, regular expressions, comments and embedded JSON; not
its rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llguidance import regex_to_lark

from ..wire.constraint import Constraint
from ..wire.errors import InvalidRequest
from .llguidance_schemas import OPTIONS, prepared
from .regex_reasons import misread

_PIECE = re.compile(
    r'"(?:\\.|[^"\\\n])*+"'
    r"|(?P<regex>/(?!/)(?:\\.|[^/\\])++/)"
    r"|<[^<>]*+>"
    r"|(?:#|//)[^\n]*+"
    r"|(?P<keyword>%(?:json|regex|llguidance))"
    r'|(?P<open>["/<])'
)
"""A string, a regular expression (which may span lines), a special token, a comment or a keyword, as llguidance's lexer
takes them; or the beginning of one without an end, which stops the search (it would never end).
"""
_COLON = re.compile(r"(?<!:):(?!:)")
_ATTRIBUTE = re.compile(r"\[[^\[\]]*\b(max_tokens|temperature|stop|stop_capture|capture)\b")
"""Attributes that change sampling, or that take tokens back."""
_MOST_NESTED = 800
"""Most rules and brackets: each may be nested in the one before, and the compiler is recursive."""
_MOST_SPAN_CHARACTERS = 500_000
"""Most characters of a text whose spans begin and end anywhere: it takes 400 times its size and 5 µs a character."""
_SPACE = re.compile(r"\s*")
_decoder = json.JSONDecoder()


class Lexeme(NamedTuple):
    """A part that is no rule: a string, an expression, a comment, embedded JSON."""

    start: int
    end: int
    keyword: str
    """`%json`, `%regex` or `%llguidance` for embedded JSON; `/` for an expression."""
    value: Any
    """The JSON, or the expression."""
    written: str
    """The text that is compiled."""


def prepared_lark(grammar: str, options: Mapping[str, Any] = OPTIONS) -> str:
    """An equal grammar in that form, with `options` of how its JSON is written; raises InvalidRequest for what cannot
    be compiled safely, or not at all.
    """
    written: list[str] = []
    plain: list[str] = []
    position = spans = 0
    for piece in pieces(grammar, options):
        before, position = grammar[position : piece.start], piece.end
        if piece.keyword.startswith("%") and "substring_chars" in piece.written:
            spans += piece.end - piece.start - len(piece.keyword)
        written += [before, piece.written]
        plain += [before, " "]
    if spans > _MOST_SPAN_CHARACTERS:
        said = f"takes at most {_MOST_SPAN_CHARACTERS} characters, got {spans}; substring_words takes more"
        raise InvalidRequest(f"constraint.grammar: substring_chars: {said}")
    _check("".join([*plain, grammar[position:]]))
    return "".join([*written, grammar[position:]])


def pieces(grammar: str, options: Mapping[str, Any] = OPTIONS) -> Iterator[Lexeme]:
    """The pieces in order; raises InvalidRequest for one that has no end, or that llguidance misreads."""
    position = 0
    while found := _PIECE.search(grammar, position):
        start, position, text = found.start(), found.end(), found[0]
        if found["keyword"]:
            value, written, position = _embedded(grammar, position, text, options)
            yield Lexeme(start, position, text, value, text + written)
        elif found["regex"]:
            said = misread(text[1:-1])
            if said is not None:
                raise InvalidRequest(f"constraint.grammar: {place(grammar, start)}: {said}")
            yield Lexeme(start, position, "/", text[1:-1], f"/{ascii_classes(text[1:-1])}/")
        elif found["open"]:
            said = grammar[start : start + 40]
            raise InvalidRequest(f"constraint.grammar: takes a {text} with one that ends it, got {said!r}")
        else:
            yield Lexeme(start, position, "", None, text)


def place(grammar: str, position: int) -> str:
    """A position in a grammar, for a message."""
    begin = grammar.rfind("\n", 0, position) + 1
    return f"line {grammar.count(chr(10), 0, position) + 1}, column {position - begin + 1}"


def given_position(grammar: str, line: int, column: int) -> int:
    """The position in the given grammar of a line and column (from 1) in the compiled one."""
    text = prepared_lark(grammar)
    begin = 0
    for _ in range(line - 1):
        begin = text.find("\n", begin) + 1
    offset, shift = begin + column - 1, 0
    for piece in pieces(grammar):
        if offset < piece.start + shift + len(piece.written):
            return min(offset - shift, piece.start)
        shift += len(piece.written) - (piece.end - piece.start)
    return min(offset - shift, len(grammar))


def ascii_classes(regex: str) -> str:
    r"""The expression with ASCII `\d` and `\w`, as in a schema's patterns."""
    return regex_to_lark(regex, use_ascii="dw")


def _embedded(grammar: str, position: int, keyword: str, options: Mapping[str, Any]) -> tuple[Any, str, int]:
    """The compiled form of the JSON after a keyword, and where the JSON ends."""
    space = _SPACE.match(grammar, position)
    assert space is not None
    start = position - len(keyword)
    try:
        value, end = _decoder.raw_decode(grammar, space.end())
    except json.JSONDecodeError as error:
        said = f"{place(grammar, error.pos)}: {keyword}: takes JSON: {error.msg}"
        raise InvalidRequest(f"constraint.grammar: {said}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"constraint.grammar: {place(grammar, start)}: {keyword}: takes JSON: {error}") from None
    if keyword != "%json" or not isinstance(value, dict | bool):
        return value, grammar[position:end], end
    try:
        schema = Constraint(json_schema=value).json_schema
        if schema is False:
            raise InvalidRequest("takes a schema that something satisfies, got false")
        schema = schema if isinstance(schema, dict) else {}
        return schema, " " + json.dumps(prepared(schema) | {"x-guidance": dict(options)}), end
    except InvalidRequest as error:
        said = str(error).removeprefix("constraint.").removeprefix("json_schema: ")
        raise InvalidRequest(f"constraint.grammar: {place(grammar, start)}: %json: {said}") from None


def _check(plain: str) -> None:
    """Check a grammar without its strings, regular expressions, comments and JSON."""
    nested = len(_COLON.findall(plain)) + sum(map(plain.count, "([{"))
    if nested > _MOST_NESTED:
        raise InvalidRequest(f"constraint.grammar: takes at most {_MOST_NESTED} rules and brackets, got {nested}")
    attribute = _ATTRIBUTE.search(plain)
    if attribute:
        raise InvalidRequest(f"constraint.grammar: takes rules without the attribute {attribute[1]}")
