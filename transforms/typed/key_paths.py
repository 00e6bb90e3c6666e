"""Paths of values by their keys in JSON, `lines[0].unit-price`, made from paths by names, `lines[0].unit_price`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from .shapes import Items, Maybe, Record, Shape

_PLACE = re.compile(r"\[\d+\]")
_MARKS = re.compile(r"[].[]|^$")
"""What keys have that stand in brackets and quotation marks in paths."""


def renamed_keys(record: Record) -> dict[str, str]:
    """The keys that are not their fields' names, by the fields' paths without places: `lines[].unit_price`."""
    return dict(_renamed(record, ""))


def _renamed(shape: Shape, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(shape, Maybe):
        yield from _renamed(shape.shape, path)
    elif isinstance(shape, Items):
        yield from _renamed(shape.item, f"{path}[]")
    elif isinstance(shape, Record):
        for member in shape.members:
            inner = f"{path}.{member.name}" if path else member.name
            if member.key != member.name:
                yield inner, member.key
            yield from _renamed(member.shape, inner)


def key_path(path: str, keys: Mapping[str, str], top: Callable[[str], str]) -> str:
    """The path by keys. `keys`: the keys that are not names. `top` gives the key of the first part."""
    found = of_field = ""
    for name in path.split("."):
        word, bracket, places = name.partition("[")
        of_field += f".{word}" if found else word
        key = keys.get(of_field, word)
        key = key if found else top(key)
        found += (f"[{json.dumps(key, ensure_ascii=False)}]" if _MARKS.search(key) else f".{key}") + bracket + places
        of_field += _PLACE.sub("[]", bracket + places)
    return found.removeprefix(".")
