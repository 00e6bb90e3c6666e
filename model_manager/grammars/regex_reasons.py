"""Messages for regular expressions that are refused: the construct's name, its position, what to write instead.

Knows the syntax here and in other dialects; not what an expression matches. Characters count from 1.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NamedTuple

from llguidance import regex_to_lark

_SHOWN = 40
_LOOKS = "a grammar knows no look-around"
_FORGETS = "a grammar does not remember what a group matched"
_NEVER_BACK = "a grammar does not backtrack; write "


class Construct(NamedTuple):
    """A construct that is not supported."""

    name: str
    advice: str
    is_misread: bool = False
    """True if llguidance reads it as something else."""


_CONSTRUCTS: dict[str, tuple[str, Construct]] = {
    "behind": (r"\(\?<[=!]", Construct("look-behind", _LOOKS)),
    "ahead": (r"\(\?[=!]", Construct("look-ahead", _LOOKS)),
    "atomic": (r"\(\?>", Construct("atomic group", f"{_NEVER_BACK}`(?:`")),
    "branch": (r"\(\?\|", Construct("branch reset", "write `(?:`")),
    "conditional": (
        r"\(\?\([^()]*\)?",
        Construct("conditional", f"{_FORGETS}; write both cases, with `|` between them"),
    ),
    "comment": (r"\(\?\#", Construct("comment", "leave it out")),
    "recursion": (
        r"\(\?(?:R|[+-]?\d+|&\w*|P>\w*)\)|\\g<[^>]{0,64}>",
        Construct("recursion", "a grammar of the kind `grammar` has rules that name themselves", is_misread=True),
    ),
    "verb": (r"\(\*[A-Z][^()]*\)", Construct("verb", "leave it out")),
    "reference": (
        r"\\[1-9]\d*|\\k[<{'][^>}']*[>}']?|\\g\{?-?\w+\}?|\(\?P=\w*\)?",
        Construct("back-reference", _FORGETS),
    ),
    "boundary": (
        r"\\b(?:\{[a-z-]+\})?|\\[B<>]",
        Construct("word boundary", f"{_LOOKS}; write the characters that may stand there"),
    ),
    "anchor": (r"\\[ZGK]", Construct("anchor", "the whole is matched, so leave it out")),
    "quote": (r"\\[QE]", Construct("quoting", "write a `\\` before each character that would mean something else")),
    "possessive": (
        r"(?:[*+?]|\{\d+(?:,\d*)?\})\+",
        Construct("possessive quantifier", f"{_NEVER_BACK}it without the last `+`", is_misread=True),
    ),
}
_ESCAPE = r"\\(?:[pPxuU]\{[^{}]*\}|.)"
_TOKEN = re.compile(
    "|".join(f"(?P<{name}>{pattern})" for name, (pattern, _) in _CONSTRUCTS.items())
    + rf"|(?P<escape>{_ESCAPE})|(?P<class>\[\^?\]?)|(?P<begin>\^)|(?P<end>\$)|(?P<trailing>\\$)",
    re.DOTALL,
)
_IN_CLASS = re.compile(rf"(?P<escape>{_ESCAPE})|(?P<open>\[\^?\]?)|(?P<close>\])", re.DOTALL)
_FREE = re.compile(r"\(\?[a-zA-Z]*x")
_SPACES = re.compile(r"(?<!\\)\s+")
_MISREAD = re.compile(
    "|".join(pattern for pattern, construct in _CONSTRUCTS.values() if construct.is_misread) + r"|\\$"
)
_FLAGS_BEFORE = re.compile(r"(?:\(\?[a-z]+\))?")
"""The flags of a terminal, before its expression."""
_LOOK = re.compile(r"lookarounds not supported yet; \w+ in regex /(?P<regex>.*)/(?:\n|$)")
_PARSE_ERROR = re.compile(
    r"regex parse error:\n {4}(?P<regex>[^\n]*)\n {4}(?P<before> *)(?P<carets>\^+)[^\n]*\nerror: (?P<said>[^\n]+)"
)
_OTHER_WORDS = {
    "unrecognized flag": "unknown flag or kind of group",
    "unrecognized escape sequence": "unknown escape",
    "repetition operator missing expression": "repetition of nothing",
    "invalid escape sequence found in character class": "escape that no class takes",
    "Unicode property not found": "unknown Unicode property",
    "Unicode property value not found": "unknown value of a Unicode property",
    "backreferences are not supported": "octal escape; `\\x00` is NUL, and others are written likewise,",
    "invalid character class range, the start must be <= the end": "range whose first character comes after its last",
    "hexadecimal literal is not a Unicode scalar value": "number of no character",
    "expected flag but got end of regex": "group that is not closed",
    "decimal literal invalid": "number that is too large",
    "decimal literal empty": "repetition without a number",
    "repetition quantifier expects a valid decimal": "repetition without a number",
}


def misread(regex: str) -> str | None:
    """What is wrong with an expression that llguidance would misread; None if it reads it right."""
    free = _FREE.search(regex)
    if free:
        return _misread_in_free_spacing(regex, free)
    return _misread_in(regex)


def _misread_in(regex: str) -> str | None:
    for position, text, name in _tokens(regex):
        if name == "trailing":
            return "takes an expression that does not end within an escape"
        if name in _CONSTRUCTS and _CONSTRUCTS[name][1].is_misread:
            return _unsupported(position, text, _CONSTRUCTS[name][1])
    return None


def _misread_in_free_spacing(regex: str, free: re.Match[str]) -> str | None:
    """As `_misread_in`, where spaces and comments may mean nothing: what could be misread without them is refused."""
    joined = _SPACES.sub("", regex)
    if "#" not in regex and (said := _misread_in(regex)):
        return said
    if _misread_in(joined) if "#" not in regex else _MISREAD.search(joined):
        return (
            f"free-spacing mode `{free[0]}` at character {free.start() + 1} is not supported beside `++`, `*+`, `?+`, "
            "`}+`, recursion or a `\\` at the end: write the expression without spaces and comments"
        )
    return None


def regex_reason(regex: str, message: str) -> str | None:
    """Our sentence for an expression that llguidance refuses with this message; None if it refuses another, or none."""
    look, error = _LOOK.search(message), _PARSE_ERROR.search(message)
    refused = error["regex"] if error else look["regex"] if look else None
    flags = None if refused is None else _FLAGS_BEFORE.match(refused)
    if refused is None or flags is None or _written(regex) not in (refused, refused[flags.end() :]):
        return None
    before = 0 if refused == _written(regex) else flags.end()
    for position, text, name in _tokens(regex):
        if name in _CONSTRUCTS:
            return _unsupported(position, text, _CONSTRUCTS[name][1])
    if error is None:
        return _of_anchors(regex)
    column = len(error["before"]) - before
    start = _position(regex, column)
    text = regex[start : max(start + 1, _position(regex, column + len(error["carets"])))]
    said = _OTHER_WORDS.get(error["said"], error["said"])
    where = f"at character {start + 1}" if text else "at the end"
    return f"{said} {where}" + (f": `{text[:_SHOWN]}`" if text else "")


def _unsupported(position: int, text: str, construct: Construct) -> str:
    return f"{construct.name} `{text[:_SHOWN]}` at character {position + 1} is not supported: {construct.advice}"


def _of_anchors(regex: str) -> str:
    """What is wrong with `^` or `$` where text stands before or behind it, or with the flag `m`, which allows that."""
    found = [(position, text) for position, text, name in _tokens(regex) if name in ("begin", "end")]
    inner = [(at, text) for at, text in found if (at > 0 if text == "^" else at < len(regex) - 1)]
    position, text = (inner or found or [(0, regex[:1])])[0]
    said = "takes `^` and `$` where the text begins and ends alone, and no flag `m`"
    return f"{said}, got `{text}` at character {position + 1}"


def _tokens(regex: str) -> list[tuple[int, str, str]]:
    """Each construct outside of classes: its position, its text, its name."""
    found: list[tuple[int, str, str]] = []
    position = 0
    while token := _TOKEN.search(regex, position):
        name = str(token.lastgroup)
        found.append((token.start(), token[0], name))
        position = behind_class(regex, token.end()) if name == "class" else token.end()
    return found


def behind_class(regex: str, position: int) -> int:
    """The position behind a class of characters, `position` being behind its opening bracket."""
    depth = 1
    while depth and (token := _IN_CLASS.search(regex, position)):
        depth += {"open": 1, "close": -1}.get(str(token.lastgroup), 0)
        position = token.end()
    return len(regex) if depth else position


def _position(regex: str, column: int) -> int:
    """The position in the given expression of a column in llguidance's form of it."""
    return bisect_left(range(len(regex) + 1), column, key=lambda end: len(_written(regex[:end])))


def _written(regex: str) -> str:
    return regex_to_lark(regex, use_ascii="dw")
