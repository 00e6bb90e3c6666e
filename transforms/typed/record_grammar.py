"""The grammar of a shape, in llguidance's dialect of Lark: JSON on one line, as `json.dumps` writes it.

Keys, braces and commas are fixed text, so they are forced; a leaf is a regular expression where that says it all, and
JSON Schema otherwise. A span is a terminal of the document: pieces of its text joined as they follow each other there,
each escaped for JSON on its own, so that none ends within an escape.
"""

from __future__ import annotations

import json

import regex

from .blanks import BLANKS, JOINERS
from .leaves import bounded, expression, is_choice
from .shapes import Items, Leaf, Maybe, Member, Piece, Record, Shape, Span, spans_of

_RUN = regex.compile(rf"[{BLANKS}]+|[^{BLANKS}]+")
"""Cut first, as some marks take a space after them into one character."""
_WORD = regex.compile(rf"[{BLANKS}]+|[{JOINERS}]+|\w+|\X")
"""A word has the marks on its letters; what is no word is cut where a reader sees a new character."""
_SHOWN = rf'([^\\{BLANKS}{JOINERS}]|\\["\\])'
"""A character of a JSON string, as it is escaped there, that a span may begin and end with."""
_ANY = r'([^\\]|\\["\\bfnrt]|\\u[0-9a-f]{4})'


def pieces(text: str, by: str) -> list[str]:
    """The text cut where spans may begin and end."""
    return list(text) if by == "chars" else [word for run in _RUN.findall(text) for word in _WORD.findall(run)]


class RecordGrammar:
    """The grammar of a record: made once, and completed for each document if it has spans."""

    def __init__(self, record: Record) -> None:
        self._names: dict[str, str] = {}
        self._spans = sorted(spans_of(record), key=lambda span: span.by)
        start = self._of(record)
        rules = (f"{name}: {body}" for body, name in self._names.items())
        self._fixed = "\n".join([*rules, f"start: {start}"]) + "\n"

    def of(self, document: str) -> str:
        """The grammar of answers about this document."""
        return self._fixed + "".join(_terminals(span, document) for span in self._spans)

    def _of(self, shape: Shape) -> str:
        """An expression that stands for the shape, whose rules are written."""
        if isinstance(shape, Leaf):
            return self._leaf(shape)
        if isinstance(shape, Piece):
            return _name(shape.span)
        if isinstance(shape, Maybe):
            return self._rule(f'{self._of(shape.shape)} | "null"')
        return self._rule(self._items(shape) if isinstance(shape, Items) else self._record(shape))

    def _rule(self, body: str, kind: str = "part") -> str:
        """A rule's name, or a terminal's; what is equal has one."""
        return self._names.setdefault(body, f"{kind}_{len(self._names)}")

    def _leaf(self, leaf: Leaf) -> str:
        if is_choice(leaf):
            values = (json.dumps(value, ensure_ascii=False) for value in leaf.schema["enum"])
            return self._rule(" | ".join(map(_fixed, values)))
        if (found := expression(leaf)) is None:
            return self._rule("%json " + json.dumps(bounded(leaf)))
        return self._rule(f"/{found}/", "VALUE")

    def _items(self, items: Items) -> str:
        if items.most == 0:
            return '"[]"'
        item = self._of(items.item)
        least, most = max(items.least - 1, 0), "" if items.most is None else items.most - 1
        listed = item if items.most == 1 else f'{item} (", " {item}){{{least},{most}}}'
        return f'"[" {listed} "]"' if items.least else f'"[" ({listed})? "]"'

    def _record(self, record: Record) -> str:
        pairs = [self._pair(member) for member in record.in_order]
        always = sum(member.required for member in record.members)
        if always:
            first = ' ", " '.join(pairs[:always])
            rest = " ".join(f'(", " {pair})?' for pair in pairs[always:])
            return f'"{{" {first} {rest} "}}"'
        return f'"{{" ({self._any_of(pairs)})? "}}"'

    def _any_of(self, pairs: list[str]) -> str:
        """Some of them, in order, at least one; by halves, as what compiles it follows rules within rules."""
        if len(pairs) == 1:
            return pairs[0]
        first, later = self._any_of(pairs[: len(pairs) // 2]), self._any_of(pairs[len(pairs) // 2 :])
        return self._rule(f'{first} | {later} | {first} ", " {later}')

    def _pair(self, member: Member) -> str:
        return f"{_fixed(json.dumps(member.key_with_question, ensure_ascii=False) + ': ')} {self._of(member.shape)}"


def _fixed(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # Lark's strings have no DEL


def _name(span: Span) -> str:
    return f"SPAN_{span.by.upper()}"


def _terminals(span: Span, document: str) -> str:
    name = _name(span)
    escaped = [json.dumps(piece, ensure_ascii=False)[1:-1] for piece in pieces(document, span.by)]
    part = json.dumps({"substring_chunks": escaped}, ensure_ascii=False)
    lines = (
        f'{name}: "\\"" {name}_TEXT "\\""',
        f"{name}_TEXT: {name}_PART & /(?s:{_SHOWN}({_ANY}*{_SHOWN})?[{JOINERS}]*)/",
        f"{name}_PART: %regex {part}",
    )
    return "\n".join(lines) + "\n"
