"""The results that a job has written so far: finished files, and files of a job that runs or was interrupted.

The names are as in transforms/writing/output_files.py, the rows as in its JSON lines.

<answers>-…jsonl, <answers>.tmp/*/completions-…jsonl                     answers
<answers>.dead_letters-…jsonl, <answers>.tmp/*/dead_letters-…jsonl       rows that failed
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millrace.model_manager.wire.decoding import convert, json_decoder
from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.timings import Timings

_NO_TIMINGS = Timings(0.0, 0.0, 0.0)


class _Id(msgspec.Struct):
    id: str


class RowPlace(NamedTuple):
    """Where a row is."""

    path: Path
    offset: int
    size: int


class BatchResults:
    """The rows of a job by their ids; each is read where it is wanted."""

    def __init__(self, answers: Path) -> None:
        """`answers`: the job's output."""
        self._prefix = answers
        self._read: dict[Path, int] = {}
        self.answers: dict[str, RowPlace] = {}
        self.failures: dict[str, RowPlace] = {}

    def look(self) -> list[str]:
        """Find what is new, and return the ids of new answers. A row that was cut off is not there yet, and files that
        move meanwhile are found again.
        """
        before = len(self.answers)
        folder, name = self._prefix.parent, self._prefix.name
        for pattern, found in (
            (f"{name}-*.jsonl", self.answers),
            (f"{name}.tmp/*/completions-*.jsonl", self.answers),
            (f"{name}.dead_letters-*.jsonl", self.failures),
            (f"{name}.tmp/*/dead_letters-*.jsonl", self.failures),
        ):
            for path in folder.glob(pattern):
                with contextlib.suppress(FileNotFoundError):
                    self._add(path, found)
        return [*islice(self.answers, before, None)]

    def _add(self, path: Path, found: dict[str, RowPlace]) -> None:
        with path.open("rb") as stream:
            at = self._read.get(path, 0)
            stream.seek(at)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                found[json_decoder(_Id).decode(line).id] = RowPlace(path, at, len(line))
                at += len(line)
            self._read[path] = at


class RowReader:
    """Reads rows where a job that has ended left them; keeps their files open. A context manager."""

    def __init__(self) -> None:
        self._open: dict[Path, Any] = {}
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def row(self, place: RowPlace) -> dict[str, Any]:
        """The row at a place."""
        stream = self._open.get(place.path)
        if stream is None:
            stream = self._open[place.path] = self._closing.enter_context(place.path.open("rb"))
        stream.seek(place.offset)
        row: dict[str, Any] = msgspec.json.decode(stream.read(place.size))
        return row


def output_of(row: dict[str, Any]) -> Output:
    """The engine's answer that an answer's row was made of, as far as answers over HTTP need it.

    The row itself has what its first choice has, and the log-probabilities of the prompt.
    """
    used = row["usage"]
    count = used["completion_tokens"]
    whole = _said(row, used, count)
    if not (others := (row.get("choices") or [])[1:]):
        return whole
    return msgspec.structs.replace(whole, choices=(whole, *(_said(each, used, 0) for each in others)))


def failure_of(row: dict[str, Any]) -> ErrorInfo:
    """Why a row failed."""
    return ErrorInfo(kind=row["error"], message=row["reason"])


def _said(row: dict[str, Any], used: dict[str, int], count: int) -> Output:
    """`count`: its tokens. A row says the tokens of all choices together, so the first one has them."""
    vector, text = row.get("embedding"), row.get("text", "")
    reason = FinishReason(row.get("finish_reason", "stop"))
    return Output(
        request_id="",
        token_ids=[],
        finish_reason=reason,
        timings=_NO_TIMINGS,
        prompt_tokens=used["prompt_tokens"],
        cached_tokens=used["cached_tokens"],
        stop_reason=row.get("stop_reason"),
        embedding=None if vector is None else struct.pack(f"<{len(vector)}f", *vector),
        is_cut=reason is FinishReason.LENGTH and not _is_json(text),
        text=text,
        num_tokens=count,
        logprobs=_logprobs(row.get("logprobs")),
        prompt_logprobs=_logprobs(row.get("prompt_logprobs")),
    )


def _is_json(text: str) -> bool:
    """Whether a call of a tool is whole, which a row does not say."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _logprobs(tokens: list[Any] | None) -> Logprobs | None:
    if tokens is None:
        return None
    return Logprobs([], [], tokens=convert(tokens, list[TokenLogprob]))


def row_ids(path: Path) -> Iterator[str]:
    """The ids of a job's input."""
    with path.open("rb") as stream:
        for line in stream:
            yield json_decoder(_Id).decode(line).id
