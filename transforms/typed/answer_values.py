"""An answer's text → its values, where each stands in the answer, and where each span stands in the document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from json.decoder import JSONDecoder
from typing import Any

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import AnswerRejected

from .leaves import float_within
from .record_grammar import pieces
from .shapes import Items, Leaf, Maybe, Piece, Record, Shape, Span

_DECODER = JSONDecoder(parse_float=Decimal)
_SPACE = " \t\r\n"
_PLACE = re.compile(r"\[\d+\]")
Range = tuple[int, int]
"""Begin and end of characters; the end is not included."""


@dataclass(frozen=True)
class Reading:
    """What an answer says. Paths are such as `lines[0].item`, of names as rows have them."""

    json: str
    """The answer without the questions in its keys, its floats within their bounds."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """Where the values stand in the answer; the whole one at the path ``."""
    spans: dict[str, Range] = field(default_factory=dict)
    """Where the pieces of the document stand in the document."""


def read(record: Record, answer: str, document: str) -> Reading:
    """Raises AnswerRejected where the text is not a value of the record."""
    reader = _Reader(answer, document)
    found, end = reader.value(record, reader.skipped(0), "", ())
    if reader.skipped(end) != len(answer):
        raise AnswerRejected(f"the answer goes on behind its end: {answer[end : end + 40]!r}")
    return Reading(found, reader.ranges, reader.spans)


def _within(leaf: Leaf, text: str, path: str) -> str:
    try:
        return float_within(leaf, text)
    except ValueError as error:
        raise AnswerRejected(f"{path}: {error}") from None


def _overlaps(place: Range, others: Sequence[Range]) -> bool:
    return any(start < place[1] and end > place[0] for start, end in others)


class _Reader:
    def __init__(self, answer: str, document: str) -> None:
        self._answer = answer
        self._document = document
        self._bounds: dict[Span, set[int]] = {}
        self._behind: dict[str, int] = {}
        """Where spans end in the document that a field of a list's elements had, by its path without their places."""
        self._placed: list[Range] = []
        self.ranges: dict[str, Range] = {}
        self.spans: dict[str, Range] = {}

    def value(self, shape: Shape, at: int, path: str, before: Sequence[Range]) -> tuple[str, int]:
        """The JSON of the value at a place, and where it ends; `before`: the spans of the list's element before it."""
        if isinstance(shape, Maybe):
            if self._answer.startswith("null", at):
                self.ranges[path] = at, at + 4
                return "null", at + 4
            return self.value(shape.shape, at, path, before)
        if isinstance(shape, Record):
            found, end = self._record(shape, at, path, before)
        elif isinstance(shape, Items):
            found, end = self._items(shape, at, path, before)
        else:
            found, end = self._leaf(shape, at, path, before)
        self.ranges[path] = at, end
        return found, end

    def skipped(self, at: int) -> int:
        """The position after white space."""
        while at < len(self._answer) and self._answer[at] in _SPACE:
            at += 1
        return at

    def _expect(self, text: str, at: int) -> int:
        if not self._answer.startswith(text, at):
            raise AnswerRejected(f"the answer has {self._answer[at : at + 20]!r} in the place of {text!r}")
        return self.skipped(at + len(text))

    def _decoded(self, at: int) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(self._answer, at)
        except (ValueError, RecursionError, InvalidOperation):  # the last: an exponent that no decimal has
            raise AnswerRejected(f"the answer is no JSON from {self._answer[at : at + 40]!r} on") from None

    def _record(self, record: Record, at: int, path: str, before: Sequence[Range]) -> tuple[str, int]:
        by_key = {member.key_with_question: member for member in record.members}
        parts: list[str] = []
        at = self._expect("{", at)
        while not self._answer.startswith("}", at):
            at = self._expect(",", at) if parts else at
            key, at = self._decoded(at)
            member = by_key.pop(key, None) if isinstance(key, str) else None
            if member is None:
                raise AnswerRejected(f"the answer has the key {key!r}, which is none or has been")
            at = self._expect(":", self.skipped(at))
            inner = f"{path}.{member.name}" if path else member.name
            found, at = self.value(member.shape, at, inner, before)
            parts.append(f"{json.dumps(member.key, ensure_ascii=False)}: {found}")
            at = self.skipped(at)
        if missing := [member.key for member in by_key.values() if member.required]:
            raise AnswerRejected(f"the answer lacks {missing[0]!r}")
        return "{" + ", ".join(parts) + "}", at + 1

    def _items(self, items: Items, at: int, path: str, before: Sequence[Range]) -> tuple[str, int]:
        parts: list[str] = []
        at = self._expect("[", at)
        while not self._answer.startswith("]", at):
            at = self._expect(",", at) if parts else at
            first = len(self._placed)
            found, at = self.value(items.item, at, f"{path}[{len(parts)}]", before)
            before = self._placed[first:] or before
            parts.append(found)
            at = self.skipped(at)
        return "[" + ", ".join(parts) + "]", at + 1

    def _leaf(self, shape: Shape, at: int, path: str, before: Sequence[Range]) -> tuple[str, int]:
        found, end = self._decoded(at)
        if isinstance(shape, Piece):
            if not isinstance(found, str):
                raise AnswerRejected(f"{path}: the answer has {found!r}: takes a piece of the document")
            self.spans[path] = self._place(shape.span, found, path, before)
        text = self._answer[at:end]
        if isinstance(shape, Leaf) and shape.kind == "number" and type(found) in (int, Decimal):
            return _within(shape, text, path), end
        return text, end

    def _place(self, span: Span, piece: str, path: str, before: Sequence[Range]) -> Range:
        of_field = _PLACE.sub("[]", path)
        behind = self._behind.get(of_field, min((end for _, end in before), default=0))
        clear = (each for each in self._places(span, piece, behind) if not _overlaps(each, before))
        place = next(chain(clear, self._places(span, piece, behind), self._places(span, piece, 0)), None)
        if place is None:
            raise AnswerRejected(f"{path}: {shown(piece)} does not stand in the document")
        self._behind[of_field] = max(behind, place[1])
        self._placed.append(place)
        return place

    def _places(self, span: Span, piece: str, start: int) -> Iterator[Range]:
        """Where a piece stands in the document, from a character on."""
        while piece and (start := self._document.find(piece, start)) >= 0:
            end = start + len(piece)
            if {start, end} <= self._bounds_of(span):
                yield start, end
            start += 1

    def _bounds_of(self, span: Span) -> set[int]:
        """Where spans may begin and end."""
        if span not in self._bounds:
            lengths = map(len, pieces(self._document, span.by))
            self._bounds[span] = set(accumulate(lengths, initial=0))
        return self._bounds[span]
