"""The inputs that are kept, one zip a target, and the record of how long each target was fuzzed."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(__file__).parent / "corpora"
RECORD = FOLDER / "record.json"
_ROOT = str(Path(__file__).parents[2])
_MOST_BYTES = 120_000
"""Bytes of a target's kept inputs, each compressed."""
_WAS = "was-"
"""How the names of inputs begin that were defects."""
_OLDEST = (1980, 1, 1, 0, 0, 0)


def kept(name: str) -> list[bytes]:
    """The inputs that are kept of a target; those that were once a defect come first."""
    inputs = _archived(name)
    return [inputs[each] for each in sorted(inputs, key=lambda each: (not each.startswith(_WAS), each))]


def _archived(name: str) -> dict[str, bytes]:
    file = FOLDER / f"{name}.zip"
    if not file.is_file():
        return {}
    with zipfile.ZipFile(file) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def keep(name: str, run: Any, inputs: Iterable[bytes], were_defects: Iterable[bytes] = ()) -> int:
    """Write the zip of a target: the smallest inputs that together reach all lines that any reaches, up to a size.
    Returns their number. `run` is the target's; its errors are ignored here. `were_defects` are kept for good.
    """
    lines: set[tuple[str, int]] = set()
    chosen = {title: each for title, each in _archived(name).items() if title.startswith(_WAS)}
    chosen |= {f"{_WAS}{_digest(each)}": each for each in were_defects}
    size = 0
    for each in sorted({*inputs}, key=len):
        new = _lines_of(run, each) - lines
        size += len(each) if new else 0
        if new and size <= _MOST_BYTES:
            lines |= new
            chosen[_digest(each)] = each
    with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for title, each in sorted(chosen.items()):
            archive.writestr(zipfile.ZipInfo(title, _OLDEST), each, zipfile.ZIP_DEFLATED)
    return len(chosen)


def record() -> dict[str, Any]:
    """How long each target was fuzzed, and what came of it."""
    return json.loads(RECORD.read_text()) if RECORD.is_file() else {}


def add_to_record(name: str, part: dict[str, float]) -> dict[str, Any]:
    """Add a part's figures to the target's: sums, and of what begins with `most_` the highest."""
    whole = record()
    before = whole.get(name, {})
    for key, value in part.items():
        now = max(before.get(key, 0), value) if key.startswith("most_") else before.get(key, 0) + value
        before[key] = round(now, 1)
    whole[name] = before
    RECORD.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    return dict(before)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _lines_of(run: Any, data: bytes) -> set[tuple[str, int]]:
    with _traced() as lines:
        try:
            run(data)
        except Exception:
            return lines
    return lines


@contextmanager
def _traced() -> Iterator[set[tuple[str, int]]]:
    """The product's lines that run, on all threads that begin meanwhile and on this one."""
    found: set[tuple[str, int]] = set()

    def in_frame(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return in_frame

    def on_call(frame: FrameType, _event: str, _given: Any) -> Any:
        name = frame.f_code.co_filename
        return in_frame if name.startswith(_ROOT) and "/tests/" not in name and "/.venv/" not in name else None

    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield found
    finally:
        sys.settrace(None)
        threading.settrace(None)
