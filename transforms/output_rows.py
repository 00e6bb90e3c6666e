"""How completions and dead letters are written: a line of JSON, a row of Parquet.

    {"id", "text", "finish_reason", ["stop_reason",] "usage": {"prompt_tokens", "cached_tokens", "completion_tokens"},
     "timings": {"queued", "first_token", "finished", "latency"}, "model", ["error": {"kind", "message"},] "columns":
     {…}, ["logprobs": [{"token", "token_id", "logprob", "top_logprobs": [{"token", "token_id", "logprob"}, …]}, …],]
     ["choices": [{"text", "finish_reason", ["stop_reason",] ["logprobs"]}, …]]}

The prompt's further columns stand under `columns`, so none collides with ours. Timings are in seconds: the first three
from the manager's receipt of the request, latency from submission to result as the worker saw it. In Parquet the schema
is fixed, and `columns` is a string of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from transforms.elements import Choice, Completion, DeadLetter

_TOP_LOGPROB = [("token", pa.string()), ("token_id", pa.int64()), ("logprob", pa.float64())]
_LOGPROBS = pa.list_(pa.struct([*_TOP_LOGPROB, ("top_logprobs", pa.list_(pa.struct(_TOP_LOGPROB)))]))
PARQUET_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("stop_reason", pa.string()),
        pa.field(
            "choices",
            pa.list_(
                pa.struct(
                    [
                        *((name, pa.string()) for name in ("text", "finish_reason", "stop_reason")),
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
        pa.field("error", pa.struct([("kind", pa.string()), ("message", pa.string())])),
        pa.field("columns", pa.string()),
        pa.field("logprobs", _LOGPROBS),
    ]
)
_ROWS_A_GROUP = 10_000


def json_line(element: Completion | DeadLetter) -> bytes:
    """One line, with its end."""
    row = _completion_row(element) if isinstance(element, Completion) else _dead_letter_row(element)
    return msgspec.json.encode(row) + b"\n"


def _completion_row(completion: Completion) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": completion.id,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": completion.usage,
        "model": completion.model,
        "columns": completion.columns,
    }
    if completion.stop_reason is not None:
        row["stop_reason"] = completion.stop_reason
    if completion.choices:
        row["choices"] = [_choice(choice) for choice in completion.choices]
    if completion.timings is not None:
        row["timings"] = msgspec.to_builtins(completion.timings) | {"latency": completion.latency}
    if completion.logprobs is not None:
        row["logprobs"] = completion.logprobs
    if completion.error is not None:
        row["error"] = completion.error
    return row


def _choice(choice: Choice) -> dict[str, Any]:
    reason = {} if choice.stop_reason is None else {"stop_reason": choice.stop_reason}
    logprobs = {} if choice.logprobs is None else {"logprobs": choice.logprobs}
    return {"text": choice.text, "finish_reason": choice.finish_reason, **reason, **logprobs}


def _dead_letter_row(letter: DeadLetter) -> dict[str, Any]:
    names = ("id", "error", "reason", "source", "row")
    return {name: getattr(letter, name) for name in names}


def write_parquet(lines: Iterable[bytes], stream: BinaryIO) -> int:
    """Lines of completions → a Parquet file; returns how many."""
    count = 0
    with pq.ParquetWriter(stream, PARQUET_SCHEMA, compression="zstd") as writer:
        for rows in _groups(lines):
            writer.write_table(pa.Table.from_pylist(rows, PARQUET_SCHEMA))
            count += len(rows)
    return count


def _groups(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for line in lines:
        row = msgspec.json.decode(line)
        row["columns"] = msgspec.json.encode(row["columns"]).decode()
        for answer in (row, *row.get("choices", ())):
            answer["stop_reason"] = None if answer.get("stop_reason") is None else str(answer["stop_reason"])
        group.append(row)
        if len(group) == _ROWS_A_GROUP:
            yield group
            group = []
    if group:
        yield group
