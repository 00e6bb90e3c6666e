"""The files that a batch ends with: each request of its input once, in order, in the one file or in the other.

Output: {"id", "custom_id", "response": {"status_code": 200, "request_id", "body"}, "error": null}. Errors: the same,
with another status and an error as body; of a request that was never answered no response, and {"code", "message"}.
Source: https://platform.openai.com/docs/api-reference/batch/request-output
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from millrace.model_manager.wire.errors import InvalidRequest, MillraceError

from ..http.http_errors import HttpError, http_error
from ..openai.answers import usage_of
from ..openai.endpoints import Answers
from ..openai.naming import names_of, renamed
from ..requests.exchanges import End
from ..requests.ids import new_id
from ..requests.service import Service
from .asking import AcceptedDesk, Desk
from .batch_lines import BatchLine, requests
from .batch_results import BatchResults, RowReader, failure_of, output_of, row_ids
from .batch_store import BatchFolder
from .record import Batch, Counts
from .validation import line_of, row_id

UNANSWERED: Mapping[str, tuple[str, str]] = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
    "expired": ("batch_expired", "the completion window ended before this request was answered"),
    "failed": ("batch_failed", "the batch failed before this request was answered"),
    "completed": ("no_answer", "the job gave no answer to this request"),
}
"""Code and message of a request without an answer, by what the batch ends as."""
_ENDS_OF_LINES = tuple((each.encode(), b"\\u%04x" % ord(each)) for each in "\u0085\u2028\u2029")
"""What ends a line of Python's text, though not of JSON Lines; JSON escapes all others."""


@dataclass
class Finished:
    """Counts of what was written."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    unanswered: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    @property
    def counts(self) -> Counts:
        """The counts as the batch shows them."""
        return Counts(self.total, self.completed, self.failed)

    @property
    def has_errors(self) -> bool:
        """Whether the errors' file has a line."""
        return self.failed + self.unanswered > 0

    def spend(self, used: Mapping[str, Any]) -> None:
        """Count the tokens of an answer's `usage`."""
        self.prompt_tokens += used["prompt_tokens"]
        self.cached_tokens += used["prompt_tokens_details"]["cached_tokens"]
        self.generated_tokens += used["completion_tokens"]

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens of all answers."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.generated_tokens,
        }


class Finishing:
    """Writes the two files of a batch. Computes for long."""

    def __init__(self, batch: Batch, folder: BatchFolder, service: Service, outcome: str) -> None:
        """`outcome`: what the batch ends as."""
        self._batch = batch
        self._folder = folder
        self._desk, self._accepted_desk = Desk(service), AcceptedDesk(service)
        self._unanswered = UNANSWERED[outcome]
        self._results = BatchResults(folder.answers)
        self._done = Finished()
        self._accepted = set[int]()

    def write(self, output: BinaryIO, errors: BinaryIO) -> Finished:
        """Write a line for each request."""
        self._results.look()
        with contextlib.suppress(FileNotFoundError):  # a batch that failed before it had rows
            self._accepted = set(map(line_of, row_ids(self._folder.rows)))
        with RowReader() as rows:
            for line in requests(self._folder.input, self._batch.endpoint):
                self._done.total += 1
                self._write_line(line, rows, output, errors)
        return self._done

    def _write_line(self, line: BatchLine, rows: RowReader, output: BinaryIO, errors: BinaryIO) -> None:
        try:
            ends = self._ends(line, rows)
        except HttpError as error:
            self._done.failed += 1
            errors.write(_row(line, {"response": _response(error.status, error.body()), "error": None}))
            return
        if ends is None:
            self._done.unanswered += 1
            code, message = self._unanswered
            errors.write(_row(line, {"response": None, "error": {"code": code, "message": message}}))
            return
        body, spent = ends
        self._done.completed += 1
        self._done.spend(spent)
        output.write(_row(line, {"response": _response(200, body), "error": None}))

    def _ends(self, line: BatchLine, rows: RowReader) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The answer's body, and its usage; None where something of it is missing. Raises HttpError."""
        desk = self._accepted_desk if line.number in self._accepted else self._desk
        answers = desk.prepared(self._batch.endpoint, line.body)
        ids = [row_id(self._batch.id, line.number, part) for part in range(len(answers.questions))]
        failed = next((each for each in ids if each not in self._results.answers), None)
        if failed is not None:
            if failed not in self._results.failures:
                return None
            raise self._named(http_error(_failure(rows.row(self._results.failures[failed]))), line)
        try:
            return _answered(answers, [rows.row(self._results.answers[each]) for each in ids])
        except MillraceError as error:
            raise self._named(http_error(error), line) from None

    def _named(self, error: HttpError, line: BatchLine) -> HttpError:
        """The error with the names of the line's body."""
        return renamed(error, names_of(line.body, self._batch.endpoint))


def _answered(answers: Answers, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    ends, index = [], 0
    for question, row in zip(answers.questions, rows, strict=True):
        ends.append(End(index, output_of(row)))
        index += question.count
    return answers.whole(ends), usage_of(ends)


def _failure(row: dict[str, Any]) -> MillraceError:
    """A row's own error; a class that only jobs have is about the row."""
    info = failure_of(row)
    error = info.exception()
    return error if type(error).__name__ == info.kind else InvalidRequest(info.message)


def _response(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": new_id("req_"), "body": body}


def _row(line: BatchLine, rest: dict[str, Any]) -> bytes:
    """A line; what `str.splitlines` takes for the end of one is escaped."""
    encoded = msgspec.json.encode({"id": new_id("batch_req_"), "custom_id": line.custom_id, **rest})
    for raw, escaped in _ENDS_OF_LINES:
        encoded = encoded.replace(raw, escaped)
    return encoded + b"\n"
