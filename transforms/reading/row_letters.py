"""One row → a Prompt, or the DeadLetter that says what is wrong with it or with its file.

A row is bytes, of JSON or of text, or was decoded by the reader of a table. What its columns mean says
elements/prompt_rows.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from millrace.model_manager.wire.errors import RequestError

from ..elements.completions import DeadLetter, Prompt
from ..elements.prompt_rows import RowShape, batch_endpoint, given_id, parse_row, text_prompt, too_deep
from ..files.formats import InputFormat
from ..files.lines import Line

BOM = b"\xef\xbb\xbf"
"""What text in UTF-8 may begin with."""
SHOWN = 2000
"""Bytes that a dead letter has of a row that is too long, or not UTF-8."""
_KEPT = 65_536
"""Characters that a dead letter has of a file's row that is not JSON: `millrace show` prints all of it."""
_Parse = Callable[[str, RowShape, str], Prompt | DeadLetter]
_SURROGATE = re.compile("[\ud800-\udfff]")


class UnreadableRow(RequestError):
    """A row is not of its file's format."""


class UnreadableFile(RequestError):
    """A file, or a part of it, cannot be read."""


def check_column_names(names: Iterable[str]) -> None:
    """Raises UnreadableFile where two columns have one name: a row would lose one of the two values."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UnreadableFile(f"two columns are called `{twice}`, so no row can be read: give each a name of its own")


def message_row(data: bytes, form: InputFormat, shape: RowShape, position: str, limit: int) -> Prompt | DeadLetter:
    """The row that a message's payload is: of JSON, or a text."""
    if not data.strip():
        return letter(UnreadableRow("the message is empty"), position, "")
    return row_or_letter(Line(0, data[:limit], too_long=len(data) > limit), shape, position, limit, ROW_OF[form])


def row_or_letter(
    line: Line, shape: RowShape, position: str, limit: int, parse: _Parse, what: str = "row"
) -> Prompt | DeadLetter:
    """The row that some bytes are; `what` their letter calls them."""
    if line.too_long:
        return letter(UnreadableRow(f"the {what} is longer than {limit} bytes"), position, _shown(line))
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason} at byte {error.start} of the {what}"
        return letter(UnreadableRow(reason), position, _shown(line))
    return parse(text, shape, position)


def _shown(line: Line) -> str:
    return line.data[:SHOWN].decode("utf-8", "backslashreplace")


def text_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    """The row of a line, a message or a file that is the prompt itself."""
    try:
        return text_prompt(text, shape, position=position)
    except RequestError as error:
        return letter(error, position, text)


def _json_row(text: str, shape: RowShape, position: str) -> Prompt | DeadLetter:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return letter(UnreadableRow(f"not JSON: {_fault(text) or without_prefix(error)}"), position, text)
    return prompt_or_letter(row, shape, position, text)


def _fault(text: str) -> str:
    """What is wrong with a text that has half a character in it, which the reader takes for its end; else empty."""
    try:
        found = _SURROGATE.search(json.dumps(json.loads(text), ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""
    return f"\\u{ord(found[0]):x} is half of a character, without the other half (a lone surrogate)" if found else ""


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


def shortened(row: Prompt | DeadLetter) -> Prompt | DeadLetter:
    """The same, but of a file's row that cannot be read the beginning: the file has the rest, as `source` says."""
    if isinstance(row, DeadLetter) and isinstance(row.row, str) and len(row.row) > _KEPT:
        return msgspec.structs.replace(row, row=row.row[:_KEPT]) if row.error == UnreadableRow.__name__ else row
    return row


def file_letter(path: str, reason: str) -> DeadLetter:
    """The letter of a file, or of a part of one."""
    line = "".join(each if each.isprintable() else " " for each in reason)  # what read the file may have lines to say
    return letter(UnreadableFile(" ".join(line.split())), path, None)


def without_prefix(error: Exception) -> str:
    """What is wrong with a JSON text, which the reader's error says twice."""
    return str(error).removeprefix("JSON is malformed: ")


ROW_OF: dict[InputFormat, _Parse] = {"jsonl": _json_row, "text": text_row}
"""What reads one line, or one message."""
