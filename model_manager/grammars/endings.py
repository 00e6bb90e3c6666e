"""The endings that a cut output may get: those that say nothing else than the output does.

In JSON, an ending may
- end the string of free text in which the output stopped, at any character of it;
- end a list or an object that was still open where the output stopped, in place of any of its commas;
- go on where the output stopped between two values.

So what the output had ended stays as it is, and what a schema requires behind is said for the first time.

An ending that changes a key, a number, a literal, or a string that only some values may have, is refused, unless the
grammar allows nothing else there: `tru` becomes `true`. In other grammars nobody knows what a byte means, so an output
may only go on where the grammar allows nothing else. Knows no search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_SCALAR = re.compile(rb"[\w.+-]*\Z", re.ASCII)
_SCALAR_BEGINS = re.compile(rb"[\w.+-]*", re.ASCII)
_LITERALS = (b"true", b"false", b"null")
_SEPARATORS, _AFTER_A_VALUE = b", \n\r\t", b",]} \n\r\t"
_BRACKETS = frozenset((b"]", b"}"))
_CONTAINERS = ("object", "array", None)
"""Types of values that may be a list or an object; None is any type."""


class EndingPlace(Protocol):
    """The place where an ending begins to differ from the output, and what the grammar allows there."""

    def is_free_text(self) -> bool:
        """True if any character may come next, and the string's end after each: the string may end anywhere."""

    def forced(self) -> bytes:
        """What must come next."""

    def is_over_after(self, ending: bytes) -> bool:
        """True if nothing may follow the ending."""


@dataclass(frozen=True)
class Endings:
    """Endings that outputs of one grammar may get."""

    is_json: bool
    ends_items: bool = True
    """True if a list or an object may end in place of a comma."""

    @classmethod
    def under(cls, schema: Any) -> Endings:
        """Endings of JSON under a schema.

        If the schema chooses among lists or among objects, a list or object that ends early may become another choice.
        Then none may end in place of a comma.
        """
        return cls(is_json=True, ends_items=not any(_chooses_containers(part) for part in _all_parts(schema)))

    def may_accept(self, end: EndingPlace) -> bool:
        """True if an output that stops at `end` may have an acceptable ending; known without a search."""
        return self.is_json or end.is_over_after(end.forced())

    def accepts(self, said: bytes, dropped: bytes, ending: bytes, place: EndingPlace) -> bool:
        """True if the ending may be used. `said` is the output up to the first byte that differs, `dropped` the rest of
        the output, `ending` its replacement.
        """
        if not self.is_json:
            return not dropped and place.forced() == ending and place.is_over_after(ending)
        if _is_within_string(said):
            return _ends_string(said, dropped, ending, place)
        return self._ends_value(said, dropped, ending, place)

    def _ends_value(self, said: bytes, dropped: bytes, ending: bytes, place: EndingPlace) -> bool:
        scalar = _SCALAR.search(said)
        if scalar is not None and scalar[0] and not _is_complete(scalar[0], dropped):
            return _finishes_scalar(scalar[0], ending, place)
        if not dropped:
            return True
        ends = ending[:1] in _BRACKETS and dropped[:1] in _SEPARATORS
        return self.ends_items and ends and not _leaves_container(dropped)


def _is_within_string(said: bytes) -> bool:
    return _ESCAPE.sub(b"", said).count(b'"') % 2 == 1


def _leaves_container(dropped: bytes) -> bool:
    """True if these bytes, which begin outside a string, end the list or object that they begin in."""
    depth = 0
    for byte in _STRING.sub(b"", dropped):
        depth += (byte in b"[{") - (byte in b"]}")
        if depth < 0:
            return True
    return False


def _ends_string(said: bytes, dropped: bytes, ending: bytes, place: EndingPlace) -> bool:
    if _ESCAPE.sub(b"", said).endswith(b"\\"):
        return False
    quote = _closing_quote(ending)
    if quote is not None and len(place.forced()) > quote:
        return True
    is_key = ending[1:].lstrip()[:1] == b":"
    if ending[:1] != b'"' or is_key or _closing_quote(dropped) is not None:
        return False
    return place.is_free_text()


def _closing_quote(ending: bytes) -> int | None:
    """Where the string that is already open ends."""
    at = _ESCAPE.sub(b"..", ending).find(b'"')
    return None if at < 0 else at


def _is_complete(scalar: bytes, dropped: bytes) -> bool:
    """True if the model itself has ended this number or literal."""
    return scalar in _LITERALS or (dropped[:1] != b"" and dropped[:1] in _AFTER_A_VALUE)


def _finishes_scalar(scalar: bytes, ending: bytes, place: EndingPlace) -> bool:
    more = _SCALAR_BEGINS.match(ending)
    length = len(more[0]) if more is not None else 0
    forced = place.forced()
    return len(forced) > length or (len(forced) == length and scalar + ending[:length] in _LITERALS)


def _all_parts(schema: Any) -> Iterator[Any]:
    """All objects of a schema, whatever their role: a reference may name any."""
    yield schema
    within = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in within:
        yield from _all_parts(part)


def _chooses_containers(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    listed = schema.get("enum")
    values = [*(listed if isinstance(listed, list) else ()), schema.get("const")]
    if any(isinstance(value, dict | list) for value in values):
        return True
    choices = (schema.get(name) for name in ("anyOf", "oneOf"))
    return any(sum(map(_may_be_container, members)) > 1 for members in choices if isinstance(members, list))


def _may_be_container(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if "enum" in schema or "const" in schema:
        return False
    types = schema.get("type")
    return any(kind in _CONTAINERS for kind in (types if isinstance(types, list) else [types]))
