"""A decoded row → a Prompt, or the DeadLetter that says what is wrong with it or with its file. Knows no format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.model_manager.wire.errors import RequestError

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape, batch_endpoint, given_id, parse_row, too_deep

BOM = b"\xef\xbb\xbf"
"""What text in UTF-8 may begin with."""
SHOWN = 2000
"""Bytes that a dead letter has of a row that is no object."""


class UnreadableRow(RequestError):
    """A row is not of its file's format."""


class UnreadableFile(RequestError):
    """A file, or a part of it, cannot be read."""


def check_column_names(names: Iterable[str]) -> None:
    """Raises UnreadableFile where two columns have one name: a row would lose one of the two values."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UnreadableFile(f"two columns are called `{twice}`: give each a name of its own; all rows are missing")


def prompt_or_letter(row: Any, shape: RowShape, position: str, original: str | None = None) -> Prompt | DeadLetter:
    """The row's prompt; `original`: its JSON."""
    try:
        return parse_row(row, shape, position=position, original=original)
    except RequestError as error:
        shown = (original or "")[:SHOWN] if too_deep(row) else row
        found = letter(error, position, shown, given_id(row, shape))
        return msgspec.structs.replace(found, endpoint=batch_endpoint(shown, shape))


def letter(error: RequestError, position: str, row: Any, identity: str = "") -> DeadLetter:
    """The letter of a row; without an id of its own it has its position's."""
    return DeadLetter(id=identity or position, error=type(error).__name__, reason=str(error), row=row, source=position)


def file_letter(path: str, reason: str) -> DeadLetter:
    """The letter of a file, or of a part of one."""
    line = "".join(each if each.isprintable() else " " for each in reason)  # what read the file may have lines to say
    return letter(UnreadableFile(" ".join(line.split())), path, None)


def without_prefix(error: Exception) -> str:
    """What is wrong with a JSON text, which the reader's error says twice."""
    return str(error).removeprefix("JSON is malformed: ")
