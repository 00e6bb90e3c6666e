"""Random changes of values that JSON and MessagePack hold, and of texts. Knows no meaning of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

ODD: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 255, 65536, 2**31, 2**32, 2**53 + 1, -(2**63), 2**63, 2**64 - 1),
    *(0.1, -0.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *("", "a", " ", "0", "\0", "\ud800", "é\u202e", "../../x", "/etc/passwd", "http://[", "a" * 300, "{}", "{{ x }}"),
    *([], {}, [[]], [{}], {"": None}, ["a"], [0], {"a": True}, [None], [1, "a", None]),
)
"""Values that readers forget."""


def mutated(value: Any, source: random.Random, odd: Sequence[Any] = ODD) -> Any:
    """A copy of `value` with a few changes, among them values of `odd` and other parts of itself."""
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        parts = _parts(value)
        value = _changed(value, source.randrange(len(parts)), [0], source, [*odd, *parts[:50]])
    return value


def spliced(text: str, source: random.Random, pieces: Sequence[str]) -> str:
    """A text with a piece put in, a part taken out, doubled, or moved."""
    for _ in range(source.choice((1, 1, 2, 4))):
        start, stop = sorted(source.randrange(len(text) + 1) for _ in range(2))
        if source.random() < 0.7:
            stop = min(stop, start + source.choice((0, 1, 2, 8, 32)))
        inside = source.choice((source.choice(pieces), "", text[start:stop] * source.choice((2, 2, 5, 50))))
        text = text[:start] + inside + text[stop:]
    return text


def _parts(value: Any) -> list[Any]:
    """The value and all in it, in the order of `_changed`."""
    found: list[Any] = []
    pending = [value]
    while pending and len(found) < 5000:
        each = pending.pop()
        found.append(each)
        if isinstance(each, dict):
            pending += reversed(list(each.values()))
        elif isinstance(each, list):
            pending += reversed(each)
    return found


def _changed(value: Any, place: int, seen: list[int], source: random.Random, odd: Sequence[Any]) -> Any:
    """The value with the part at `place` replaced."""
    here, seen[0] = seen[0], seen[0] + 1
    if here == place:
        return _replaced(value, source, odd)
    if isinstance(value, dict):
        return {name: _changed(each, place, seen, source, odd) for name, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, place, seen, source, odd) for each in value]
    return value


def _replaced(value: Any, source: random.Random, odd: Sequence[Any]) -> Any:
    if isinstance(value, dict) and value and source.random() < 0.7:
        return _other_object(value, source, odd)
    if isinstance(value, list) and value and source.random() < 0.7:
        return _other_list(value, source, odd)
    if isinstance(value, str) and source.random() < 0.5:
        texts = [each for each in odd if isinstance(each, str)]
        return spliced(value, source, texts)
    if type(value) in (int, float) and source.random() < 0.5:
        return source.choice((value + 1, value - 1, -value, value * 2, value * 1000, value // 2))
    if source.random() < 0.1:
        return [value] * source.choice((1, 2, 40)) if source.random() < 0.5 else {"a": value}
    return source.choice(odd)


def _other_object(value: dict[Any, Any], source: random.Random, odd: Sequence[Any]) -> dict[Any, Any]:
    made, names = dict(value), list(value)
    name = source.choice(names)
    match source.randrange(3):
        case 0:
            del made[name]
        case 1:
            made[source.choice([each for each in odd if isinstance(each, str)] + names)] = source.choice(odd)
        case _:
            made[source.choice(names)] = value[name]
    return made


def _other_list(value: list[Any], source: random.Random, odd: Sequence[Any]) -> list[Any]:
    place = source.randrange(len(value))
    match source.randrange(4):
        case 0:
            return value[:place] + value[place + 1 :]
        case 1:
            return [*value[:place], source.choice(odd), *value[place:]]
        case 2:
            return value[: 2000 // source.choice((1, 100))] * source.choice((2, 2, 10))
        case _:
            return source.sample(value, len(value))
