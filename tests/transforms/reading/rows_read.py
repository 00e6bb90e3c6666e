"""Files' rows, as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.reading.file_ranges import match_files, split_file
from millrace.transforms.reading.read_rows import read_range


def read(path: Path, named_format: str | None = None, limit: int = 10_000, **shape: Any) -> list[Prompt | DeadLetter]:
    return list(one_by_one(path, named_format, limit, **shape))


def one_by_one(
    path: Path, named_format: str | None = None, limit: int = 10_000, **shape: Any
) -> Iterator[Prompt | DeadLetter]:
    parts = [part for file in match_files([str(path)]) for part in split_file(file, named_format)]
    return (row for part in parts for row in read_range(part, RowShape(**shape), limit))


def read_bytes(folder: Path, name: str, content: bytes, **options: Any) -> list[Prompt | DeadLetter]:
    (folder / name).write_bytes(content)
    return read(folder / name, **options)


def texts(rows: list[Prompt | DeadLetter]) -> list[str | None]:
    return [row.text if isinstance(row, Prompt) else row.error for row in rows]


def params(path: Path) -> list[dict[str, Any]]:
    """The prompts of a file that has no bad row."""
    rows = read(path)
    assert all(isinstance(row, Prompt) for row in rows), reasons(rows)
    return [row.params for row in rows if isinstance(row, Prompt)]


def reasons(rows: list[Prompt | DeadLetter]) -> list[str]:
    return [row.reason for row in rows if isinstance(row, DeadLetter)]
