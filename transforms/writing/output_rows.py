"""Completions and dead letters as written: a line of JSON, a row of Parquet.

    {"id", "text", "finish_reason", ["stop_reason", "closed_at",]
     "usage": {"prompt_tokens", "cached_tokens", "completion_tokens"},
     "timings": {"queued", "first_token", "finished", "latency"}, "model", "revision", "prompt_hash",
     ["error": {"kind", "message"},] "columns": {…}, ["logprobs": [{"token", "token_id", "logprob", "top_logprobs":
     [{"token", "token_id", "logprob"}, …]}, …],]
     ["choices": [{"text", "finish_reason", ["stop_reason", "closed_at",] ["logprobs"]}, …]]}

`prompt_logprobs` are as `logprobs`. Score has `scores` in the place of the text, and Embed `embedding`. Extract has the
fields of its type, `confidence`, `confidences` and `spans`, and Classify `label`, `labels` and `probabilities`, both
without a finish reason. docs/reference/rows.md has every field. The prompt's further columns stand under `columns`, so
none collides with ours. Timings are in seconds: the first three from the manager's receipt of the request, latency
from submission to result as the worker saw it. In Parquet the schemas are fixed, or follow from the user's type, and
`columns` is a string of JSON. CSV has the same columns. JSON lines of rows that came in OpenAI's batch format have that
format (openai_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..elements.completions import Choice, Completion, DeadLetter
from ..elements.task_results import Classified, Embedded, Extracted, Result, Scored
from .csv_rows import write_csv
from .openai_rows import error_row, openai_row
from .typed_rows import arrow_row, extracted_fields

_TOP_LOGPROB = [("token", pa.string()), ("token_id", pa.int64()), ("logprob", pa.float64())]
_LOGPROBS = pa.list_(pa.struct([*_TOP_LOGPROB, ("top_logprobs", pa.list_(pa.struct(_TOP_LOGPROB)))]))
PARQUET_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("stop_reason", pa.string()),
        pa.field("closed_at", pa.int64()),
        pa.field(
            "choices",
            pa.list_(
                pa.struct(
                    [
                        *((name, pa.string()) for name in ("text", "finish_reason", "stop_reason")),
                        ("closed_at", pa.int64()),
                        ("logprobs", _LOGPROBS),
                    ]
                )
            ),
        ),
        pa.field(
            "usage",
            pa.struct([(name, pa.int64()) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]),
        ),
        pa.field(
            "timings",
            pa.struct([(name, pa.float64()) for name in ("queued", "first_token", "finished", "latency")]),
        ),
        pa.field("model", pa.string()),
        pa.field("revision", pa.string()),
        pa.field("prompt_hash", pa.string()),
        pa.field("error", pa.struct([("kind", pa.string()), ("message", pa.string())])),
        pa.field("columns", pa.string()),
        pa.field("logprobs", _LOGPROBS),
        pa.field("prompt_logprobs", _LOGPROBS),
    ]
)


_COMMON = ("usage", "timings", "model", "revision", "prompt_hash", "columns")
COMMON_FIELDS = [PARQUET_SCHEMA.field(name) for name in _COMMON]
"""What rows of every kind end with."""


def _task_schema(result: pa.Field) -> pa.Schema:
    """The schema of completions, with another result."""
    return pa.schema([PARQUET_SCHEMA.field("id"), result, PARQUET_SCHEMA.field("finish_reason"), *COMMON_FIELDS])


_SCORES = [
    ("continuation", pa.string()),
    ("logprob", pa.float64()),
    ("is_greedy", pa.bool_()),
    ("num_tokens", pa.int64()),
    ("token_ids", pa.list_(pa.int64())),
    ("token_logprobs", pa.list_(pa.float64())),
]
SCORED_SCHEMA = _task_schema(pa.field("scores", pa.list_(pa.struct(_SCORES))))
EMBEDDED_SCHEMA = _task_schema(pa.field("embedding", pa.list_(pa.float32())))
CLASSIFIED_SCHEMA = pa.schema(
    [
        PARQUET_SCHEMA.field("id"),
        ("label", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("probabilities", pa.map_(pa.string(), pa.float64())),
        *COMMON_FIELDS,
    ]
)
_ROWS_A_GROUP = 10_000
_BYTES_A_GROUP = 64 * 2**20
"""Bytes of JSON. A row group of Parquet ends with the row that reaches one of the two bounds."""


def json_line(element: Completion | Result | DeadLetter, *, openai: bool = True) -> bytes:
    """One line, with its end; `openai`: what came in OpenAI's batch format goes in it too."""
    return msgspec.json.encode(_row(element, openai=openai)) + b"\n"


def _row(element: Completion | Result | DeadLetter, *, openai: bool) -> dict[str, Any]:
    if openai and not isinstance(element, Result) and element.endpoint:
        return openai_row(element) if isinstance(element, Completion) else error_row(element)
    if isinstance(element, Completion):
        return _completion_row(element)
    return _dead_letter_row(element) if isinstance(element, DeadLetter) else _task_row(element)


def _task_row(result: Result) -> dict[str, Any]:
    return {"id": result.id, **_found(result), **_common(result), "columns": result.columns}


def _found(result: Result) -> dict[str, Any]:
    if isinstance(result, Extracted):
        return extracted_fields(result)
    if isinstance(result, Classified):
        likeliest = result.labels[0] if result.labels else None
        return {"label": likeliest, "labels": result.labels, "probabilities": result.probabilities}
    assert isinstance(result, Scored | Embedded), f"no row is known for {type(result).__name__}"
    found = {"scores": result.scores} if isinstance(result, Scored) else {"embedding": result.embedding}
    return {**found, "finish_reason": result.finish_reason}


def _common(result: Completion | Result) -> dict[str, Any]:
    """Columns that every result may have."""
    row: dict[str, Any] = {"usage": result.usage, **_maker(result)}
    if result.prompt_hash:
        row["prompt_hash"] = result.prompt_hash
    if result.timings is not None:
        row["timings"] = msgspec.to_builtins(result.timings) | {"latency": result.latency}
    return row


def _completion_row(completion: Completion) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": completion.id,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "columns": completion.columns,
    }
    row |= _common(completion) | _ending(completion)
    if completion.error is not None:
        row["error"] = completion.error
    if completion.choices:
        row["choices"] = [_choice(choice) for choice in completion.choices]
    for name in ("logprobs", "prompt_logprobs"):
        if (logprobs := getattr(completion, name)) is not None:
            row[name] = logprobs
    return row


def _choice(choice: Choice) -> dict[str, Any]:
    logprobs = {} if choice.logprobs is None else {"logprobs": choice.logprobs}
    return {"text": choice.text, "finish_reason": choice.finish_reason, **_ending(choice), **logprobs}


def _ending(answer: Completion | Choice) -> dict[str, Any]:
    """What more there is to say of how an answer ended."""
    fields = {"stop_reason": answer.stop_reason, "closed_at": answer.closed_at}
    return {name: value for name, value in fields.items() if value is not None}


def _dead_letter_row(letter: DeadLetter) -> dict[str, Any]:
    names = ("id", "error", "reason", "source", "row", *(("answer",) if letter.answer else ()))
    return {name: getattr(letter, name) for name in names} | (_maker(letter) if letter.model else {})


def _maker(element: Completion | Result | DeadLetter) -> dict[str, str]:
    """Which model, and which contents of that name where that is known."""
    return {"model": element.model} | ({"revision": element.revision} if element.revision else {})


def write_rows(lines: Iterable[bytes], stream: BinaryIO, path: str, schema: pa.Schema | None = None) -> int:
    """Lines of results, all of one kind, in the format that the path names; returns how many.

    `schema`: of rows of a user's type.
    """
    if path.endswith(".parquet"):
        return write_parquet(lines, stream, schema)
    if path.endswith(".csv"):
        lines = iter(lines)
        first = list(islice(lines, 1))
        columns = schema or _schema_of(msgspec.json.decode(first[0]) if first else {})
        return write_csv(chain(first, lines), stream, columns.names)
    count = 0
    for line in lines:
        stream.write(line)
        count += 1
    return count


def write_parquet(lines: Iterable[bytes], stream: BinaryIO, schema: pa.Schema | None = None) -> int:
    """Write rows as write_rows does, to a Parquet file."""
    as_row = _parquet_row if schema is None else partial(arrow_row, schema=schema)
    groups = _groups(lines, as_row)
    first = next(groups, [])
    schema = schema or (_schema_of(first[0]) if first else PARQUET_SCHEMA)
    count = 0
    with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as writer:
        for group in chain([first], groups):
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return count


def _schema_of(row: dict[str, Any]) -> pa.Schema:
    of_fields = {"scores": SCORED_SCHEMA, "embedding": EMBEDDED_SCHEMA, "probabilities": CLASSIFIED_SCHEMA}
    return next((schema for name, schema in of_fields.items() if name in row), PARQUET_SCHEMA)


def _parquet_row(line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.json.decode(line)
    row["columns"] = msgspec.json.encode(row["columns"]).decode()
    if "probabilities" in row:
        row["probabilities"] = list(row["probabilities"].items())
    for score in row.get("scores", ()):
        if not isinstance(score["continuation"], str):  # token ids
            score["continuation"] = msgspec.json.encode(score["continuation"]).decode()
    for answer in (row, *row.get("choices", ())):
        answer["stop_reason"] = None if answer.get("stop_reason") is None else str(answer["stop_reason"])
    return row


def _groups(lines: Iterable[bytes], as_row: Callable[[bytes], dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for line in lines:
        group.append(as_row(line))
        size += len(line)
        if len(group) == _ROWS_A_GROUP or size >= _BYTES_A_GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group
