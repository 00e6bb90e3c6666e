"""A short text that a regular expression matches, as a hint for who looks for the end of an output.

Knows the syntax of regular expressions, as far as it stands in patterns of schemas and the like, and no tokens. What it
says is tried, never trusted: of an expression that it reads wrongly or not at all it makes a text that does not match,
or none. Free parts (`.*`, what may be left out) are empty, of alternatives the shortest is taken.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LONGEST = 256
"""Characters of a text that is any use."""
_DEEPEST = 50
"""Levels of groups that are read."""
_ANY = "a0 -_A.:/"
"""What stands for any character, or for any but some."""
_OF_ESCAPE = {"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a", "n": "\n", "t": "\t", "r": "\r"}
_OF_PROPERTY = {"L": "a", "Ll": "a", "Lu": "A", "N": "0", "Nd": "0", "P": ".", "Z": " ", "Zs": " "}
_EMPTY = frozenset("bBAz")
"""Escapes that stand for places."""
_REPEAT = re.compile(r"\{(\d+)(?:,\d*)?\}|[*+?]")
_GROUP = re.compile(r"\?(?:[a-zA-Z-]*:|P?<\w+>)")
_HEX = re.compile(r"x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_PROPERTY = re.compile(r"p(?:\{(\w+)\}|(\w))")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_NESTED = re.compile(r"\[|--|&&|~~|\|\|")
"""Sets within sets, and operations on them."""


class _Read(NamedTuple):
    """The text of what has been read of an expression, and where the rest begins."""

    text: str
    end: int


class _Unread(Exception):
    """There is something that is not read here, or too much of it."""


def witness(pattern: str) -> str | None:
    """A short text in which the expression is found; None where none is known, or it is empty or long."""
    try:
        read = _alternatives(pattern, 0, 0)
        read.text.encode()
    except (_Unread, ValueError, IndexError, OverflowError):
        return None
    return read.text if read.end == len(pattern) and read.text else None


def _alternatives(pattern: str, at: int, depth: int) -> _Read:
    """Up to the bracket that ends them, or the end; the shortest of them."""
    if depth > _DEEPEST:
        raise _Unread
    found = [_sequence(pattern, at, depth)]
    while pattern[found[-1].end : found[-1].end + 1] == "|":
        found.append(_sequence(pattern, found[-1].end + 1, depth))
    return _Read(min((each.text for each in found), key=len), found[-1].end)


def _sequence(pattern: str, at: int, depth: int) -> _Read:
    text = ""
    while at < len(pattern) and pattern[at] not in "|)":
        part, at = _part(pattern, at, depth)
        repeat = _REPEAT.match(pattern, at)
        if repeat is not None:
            part, at = part * _least(repeat), repeat.end()
            at += pattern[at : at + 1] == "?"  # as few as will do
        text += part
        if len(text) > _LONGEST:
            raise _Unread
    return _Read(text, at)


def _least(repeat: re.Match[str]) -> int:
    """How often at the least; more than can be of use is refused before it is made."""
    times = int(repeat[1]) if repeat[1] else int(repeat[0] == "+")
    if times > _LONGEST:
        raise _Unread
    return times


def _part(pattern: str, at: int, depth: int) -> _Read:
    """What a repetition refers to."""
    char = pattern[at]
    if char == "(":
        group = _GROUP.match(pattern, at + 1)
        if group is None and pattern[at + 1 : at + 2] == "?":
            raise _Unread
        inner = _alternatives(pattern, at + 1 if group is None else group.end(), depth + 1)
        if pattern[inner.end : inner.end + 1] != ")":
            raise _Unread
        return _Read(inner.text, inner.end + 1)
    if char == "[":
        return _of_set(pattern, at)
    if char == "\\":
        return _escaped(pattern, at + 1)
    return _Read({"^": "", "$": "", ".": _ANY[0]}.get(char, char), at + 1)


def _escaped(pattern: str, at: int) -> _Read:
    """What stands behind a backslash."""
    char = pattern[at]
    code, name = _HEX.match(pattern, at), _PROPERTY.match(pattern, at)
    if code is not None:
        return _Read(chr(int(code[1] or code[2] or code[3], 16)), code.end())
    if name is not None:
        return _Read(_OF_PROPERTY.get(name[1] or name[2], _ANY[0]), name.end())
    return _Read("" if char in _EMPTY else _OF_ESCAPE.get(char, char), at + 1)


def _of_set(pattern: str, at: int) -> _Read:
    """A character of a set: its first, or one that it leaves."""
    found = _SET.match(pattern, at)
    if found is None:
        raise _Unread
    if pattern[at + 1] != "^":
        return _Read(_escaped(pattern, at + 2).text if pattern[at + 1] == "\\" else pattern[at + 1], found.end())
    if _NESTED.search(found[0], 1) is not None:
        raise _Unread
    try:
        left = re.compile(found[0], re.ASCII)
    except re.error:
        raise _Unread from None
    return _Read(next((char for char in _ANY if left.match(char)), "~"), found.end())
