"""The lines of a batch's file, in OpenAI's batch format: {"custom_id", "method", "url", "body"}.

Source: https://platform.openai.com/docs/guides/batch. A line that is wrong here fails the whole batch; what is wrong
with a body fails its own request alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..openai.bodies import why_no_json
from .record import Problem

MOST_PROBLEMS = 100
"""Problems that are told of one file."""
_MOST_BYTES = 15 * 2**20
"""Longest line: the job takes rows of 16 MiB."""
_BOM = b"\xef\xbb\xbf"
_SHOWN = 80


class BatchLine(NamedTuple):
    """A request of the file; `number` from 1."""

    number: int
    custom_id: str
    body: dict[str, Any]


class BadLine(Exception):
    """A line that fails the batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def problem(self, number: int) -> Problem:
        """The same of the line with this number."""
        return Problem(code=self.code, message=str(self), line=number, param=self.param)


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, one at a time; one that is too long is cut where it becomes that."""
    with path.open("rb") as stream:
        number = 0
        while data := stream.readline(_MOST_BYTES + 1):
            number += 1
            whole = data
            while not data.endswith(b"\n") and (data := stream.readline(_MOST_BYTES + 1)):
                pass
            if stripped := (whole.removeprefix(_BOM) if number == 1 else whole).strip():
                yield number, stripped if len(whole) <= _MOST_BYTES else whole


def read_line(number: int, data: bytes, endpoint: str) -> BatchLine:
    """A line as a request; raises BadLine."""
    if len(data) > _MOST_BYTES:
        raise BadLine("line_too_long", f"the line is longer than {_MOST_BYTES // 2**20} MiB")
    try:
        row = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadLine("invalid_json_line", f"the line is not JSON: {why_no_json(error, data)}") from None
    if not isinstance(row, dict):
        raise BadLine("invalid_json_line", "the line is no object: takes custom_id, method, url and body")
    custom_id, body = row.get("custom_id"), row.get("body")
    _check("custom_id", custom_id, isinstance(custom_id, str) and custom_id != "", "a text that no other line has")
    _check("method", row.get("method"), row.get("method") == "POST", "POST")
    _check("url", row.get("url"), row.get("url") == endpoint, f"{endpoint}, the batch's endpoint", "mismatched_url")
    _check("body", body, isinstance(body, dict), "an object")
    assert isinstance(custom_id, str), "checked"
    assert isinstance(body, dict), "checked"
    return BatchLine(number, custom_id, {name: value for name, value in body.items() if value is not None})


def requests(path: Path, endpoint: str) -> Iterator[BatchLine]:
    """The requests of a file that was checked."""
    return (read_line(number, data, endpoint) for number, data in numbered(path))


def _check(name: str, got: Any, holds: bool, takes: str, code: str = "invalid_value") -> None:
    if got is None:
        raise BadLine("missing_required_parameter", f"{name}: is missing; takes {takes}", name)
    if not holds:
        shown = msgspec.json.encode(got).decode()[:_SHOWN]
        raise BadLine(code, f"{name}={shown}: takes {takes}", name)
