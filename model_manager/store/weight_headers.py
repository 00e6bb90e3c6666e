"""The headers of a checkpoint's weights, read without loading them; knows no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

_MOST_HEADER = 100_000_000
"""Bytes, as the library of the format has it."""
TensorEntry = dict[str, Any]
"""A tensor in a header of safetensors: `dtype`, `shape` and `data_offsets`."""


class Header(NamedTuple):
    """The header of a safetensors file, https://github.com/huggingface/safetensors#format."""

    raw: bytes
    """Its bytes, with the eight before them that say how long it is."""
    tensors: dict[str, TensorEntry] | None
    """By name; None if this is no header."""


def read_header(path: Path) -> Header:
    """The header of a file, damaged or not."""
    with path.open("rb") as file:
        start = file.read(8)
        raw = start + file.read(min(int.from_bytes(start, "little"), _MOST_HEADER))
    try:
        found = json.loads(raw[8:])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Header(raw, None)
    tensors = {name: value for name, value in found.items() if name != "__metadata__"}
    return Header(raw, tensors if all(map(_is_entry, tensors.values())) else None)


def _is_entry(value: Any) -> bool:
    """Whether it has the fields of a tensor. Sizes that are no integers could make any product of them huge."""
    if not (isinstance(value, dict) and isinstance(value.get("dtype"), str)):
        return False
    sizes = [value.get("shape"), value.get("data_offsets")]
    return all(isinstance(each, list) and all(type(size) is int and size >= 0 for size in each) for each in sizes)
