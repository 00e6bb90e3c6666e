"""Checks a batch's file, and writes what its job reads: a row for each prompt, whose id names the prompt's line."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from millrace.model_manager.wire.errors import counted

from ..http.http_errors import HttpError
from ..requests.service import MOST_NAMED
from .asking import Desk
from .batch_lines import MOST_PROBLEMS, BadLine, BatchLine, numbered, read_line
from .record import Batch, Problem


class NotValid(Exception):
    """The file fails the batch."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(counted(len(problems), "problem"))
        self.problems = problems


def row_id(batch_id: str, line: int, part: int) -> str:
    """The id of a row: of the batch too, since a row without a seed is sampled by its id."""
    return f"{batch_id}.{line}.{part}"


def line_of(row: str) -> int:
    """The line that a row's id names."""
    return int(row.rsplit(".", 2)[1])


def validate(batch: Batch, source: Path, target: Path, desk: Desk, most_rows: int) -> int:
    """Write the rows, and return how many requests there are. The rows are the same each time.

    Raises NotValid for a file with a wrong line, with none or with too many prompts. Computes for long.
    """
    beside = target.with_name(f".{target.name}-{secrets.token_hex(6)}")
    try:
        with beside.open("wb") as stream:
            total = _Validation(batch, desk, most_rows).write(source, stream)
            stream.flush()
            os.fsync(stream.fileno())
        beside.rename(target)
    finally:
        beside.unlink(missing_ok=True)
    return total


class _Validation:
    def __init__(self, batch: Batch, desk: Desk, most_rows: int) -> None:
        self._batch = batch
        self._desk = desk
        self._most = most_rows
        self._seen: set[str] = set()
        self._rows = 0
        self._problems: list[Problem] = []

    def write(self, source: Path, target: BinaryIO) -> int:
        for number, data in numbered(source):
            try:
                line = self._checked(number, data)
                for row in self._asked(line):
                    target.write(msgspec.json.encode(row) + b"\n")
            except BadLine as error:
                self._problems.append(error.problem(number))
            if len(self._problems) >= MOST_PROBLEMS or self._rows > self._most:
                break
        self._check_amount()
        if self._problems:
            raise NotValid(self._problems)
        return len(self._seen)

    def _checked(self, number: int, data: bytes) -> BatchLine:
        line = read_line(number, data, self._batch.endpoint)
        if line.custom_id in self._seen:
            raise BadLine(
                "duplicate_custom_id", f"custom_id={line.custom_id!r}: an earlier line has it too", "custom_id"
            )
        self._seen.add(line.custom_id)
        model = line.body.get("model")
        known = [self._batch.model, *self._desk.served.adapters]
        if model not in known:
            given = "is missing" if model is None else f"{str(model)[:80]!r} is not served here"
            raise BadLine(
                "model_not_found", f"body.model: {given}; takes {', '.join(known[:MOST_NAMED])}", "body.model"
            )
        return line

    def _asked(self, line: BatchLine) -> Iterator[dict[str, Any]]:
        """The rows of a line; none for one whose body is wrong, which is told in the errors' file."""
        try:
            questions = self._desk.prepared(self._batch.endpoint, line.body).questions
        except HttpError:
            return
        self._rows += len(questions)
        for part, question in enumerate(questions):
            yield self._desk.written(question).row(row_id(self._batch.id, line.number, part))

    def _check_amount(self) -> None:
        if self._rows > self._most:
            told = (
                f"the file has more than {counted(self._most, 'prompt')} (--max_batch_rows): make several batches of it"
            )
            self._problems = [*self._problems, Problem(code="too_many_requests", message=told)]
        elif not self._seen and not self._problems:
            self._problems = [Problem(code="empty_file", message="the file has no request")]
