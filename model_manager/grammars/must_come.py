"""The length of what must come, once a part of a constraint has begun: `a{1000000000}` is a billion characters.

llguidance would make a state of each before it refuses, within the engine's step. Knows syntax and lengths; matches
nothing. Where an expression is malformed, the length counts what is read so far: compiling says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..wire.constraint import Constraint
from .lark import Lexeme, pieces
from .regex_reasons import behind_class

MOST = 250_000
"""Characters after which llguidance's states are used up, so no output could be whole."""
_PIECE = re.compile(
    r"(?P<times>\{\s*(?P<least>\d+)\s*(?:,\s*\d*\s*)?\}|[*+?])\??"
    r"|(?P<flags>\(\?[a-zA-Z-]*\))|(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<class>\[\^?\]?)|(?P<atom>\\(?:[pPxuU]\{[^{}]*\}|.)|.)",
    re.DOTALL,
)
_COMMENTS = frozenset(("description", "title", "$comment", "examples", "default"))
"""What a schema tells people."""
_DOCUMENTS = ("substring_chars", "substring_words", "substring_chunks")
_SHOWN = 10**9
"""The longest part whose length an error tells: repetitions of repetitions can have thousands of digits."""
_LEAST = {"*": 0, "?": 0, "+": 1}


@dataclass
class _Group:
    """An open group: its shortest finished alternative, what has come of this one, and the last atom of it."""

    shortest: int | None = None
    before: int = 0
    last: int = 0

    def add(self, length: int) -> None:
        self.before += self.last
        self.last = length

    def end_alternative(self) -> None:
        length = self.before + self.last
        self.shortest = length if self.shortest is None else min(self.shortest, length)
        self.before = self.last = 0


def longest_part(regex: str) -> int:
    """Characters that must come in the longest part, whether the expression must have that part or not."""
    groups, longest = [_Group()], 0
    for piece in _pieces(regex):
        group = groups[-1]
        if piece["open"]:
            groups.append(_Group())
        elif piece["close"] and len(groups) > 1:
            groups.pop()
            group.end_alternative()
            groups[-1].add(group.shortest or 0)
        elif piece["bar"]:
            group.end_alternative()
        elif piece["times"]:
            group.last *= _times(piece["least"]) if piece["least"] else _LEAST[piece["times"]]
        elif not piece["flags"]:
            group.add(1)
        longest = max(longest, groups[-1].before + groups[-1].last)
    return longest


def _pieces(regex: str) -> Iterator[re.Match[str]]:
    position = 0
    while piece := _PIECE.match(regex, position):
        yield piece
        position = behind_class(regex, piece.end()) if piece["class"] else piece.end()


def _regexes_of(constraint: Constraint) -> Iterator[str]:
    """The regular expressions in a constraint."""
    if constraint.regex is not None:
        yield constraint.regex
    yield from (piece.value for piece in _pieces_of(constraint) if piece.keyword == "/")
    yield from (value for name, value in _schema_strings(constraint) if name == "pattern")


def longest_of(constraint: Constraint, *, documents: bool = True) -> int:
    """Characters that must come in the longest part of a constraint: of a regular expression, or a string as it is.
    Without `documents`, a text that an answer may quote any span of (`substring_words`, …) is left out.
    """
    strings = list(constraint.choice or ())
    strings += (piece.written for piece in _pieces_of(constraint) if piece.written.startswith('"'))
    others = ("pattern",) if documents else ("pattern", *_DOCUMENTS)
    strings += (value for name, value in _schema_strings(constraint) if name not in others)
    return max((*map(longest_part, _regexes_of(constraint)), *map(len, strings)), default=0)


def _times(digits: str) -> int:
    """The number, at most _SHOWN: Python reads none of thousands of digits."""
    return min(int(digits), _SHOWN) if len(digits) < 100 else _SHOWN


def _pieces_of(constraint: Constraint) -> Iterator[Lexeme]:
    return pieces(constraint.grammar) if constraint.grammar is not None else iter(())


def _schema_strings(constraint: Constraint) -> Iterator[tuple[str, str]]:
    """As `_strings_of`, of its schema, or of all schemas in its grammar."""
    yield from _strings_of(constraint.json_schema)
    for piece in _pieces_of(constraint):
        if piece.keyword.startswith("%"):
            yield from _strings_of(piece.value)


def _strings_of(schema: Any) -> Iterator[tuple[str, str]]:
    """Each string in a JSON Schema, with the name under which it, or a list that holds it, stands."""
    pending: list[tuple[str, Any]] = [("", schema)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, str) and name not in _COMMENTS:
            yield name, value
        elif isinstance(value, dict):
            pending += value.items()
            pending += (("", key) for key in value)
        elif isinstance(value, list):
            pending += ((name, each) for each in value)


def too_long(constraint: Constraint) -> str | None:
    """The error for a constraint that requires more characters than any output has, in one part or in all, or None."""
    required = sum(len(value) for name, value in _schema_strings(constraint) if name in ("required", "const"))
    length = max(longest_of(constraint, documents=False), required)
    if length <= MOST:
        return None
    shown = f"{length}" if length < _SHOWN else f"more than {_SHOWN}"
    return f"takes parts of at most {MOST} characters that must come, got one of {shown}"
