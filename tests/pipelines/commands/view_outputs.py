"""Outputs to look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.transforms.writing.output_rows import PARQUET_SCHEMA, write_rows


def row(number: int) -> dict[str, Any]:
    """A completion; every tenth was cut, every hundredth failed."""
    ended = "error" if number % 100 == 99 else "length" if number % 10 == 9 else "stop"
    return {
        "id": f"r{number}",
        "text": f"answer {number}",
        "finish_reason": ended,
        "usage": {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 3},
        "model": "m",
        "columns": {},
        **({"error": {"kind": "EngineKiller", "message": "died"}} if ended == "error" else {}),
    }


def lines(folder: Path, count: int, name: str = "out") -> Path:
    """As JSON lines."""
    path = folder / f"{name}-00000-of-00001.jsonl"
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(count)))
    return path


def csv_lines(folder: Path, count: int, name: str = "out") -> Path:
    """As CSV."""
    path = folder / f"{name}-00000-of-00001.csv"
    with path.open("wb") as stream:
        write_rows((json.dumps(row(number)).encode() + b"\n" for number in range(count)), stream, str(path))
    return path


def parquet(folder: Path, count: int) -> Path:
    """As Parquet, in row groups as jobs write them; made group by group."""
    path = folder / "out-00000-of-00001.parquet"
    with pq.ParquetWriter(path, PARQUET_SCHEMA, compression="zstd") as writer:
        like = pa.Table.from_pylist([row(number) | {"columns": "{}"} for number in range(10_000)], PARQUET_SCHEMA)
        for group in _groups(count):
            ids = pa.array([f"r{number}" for number in group])
            writer.write_table(like.slice(0, len(group)).set_column(0, PARQUET_SCHEMA.field("id"), ids))
    return path


def _groups(count: int) -> Iterator[range]:
    for start in range(0, count, 10_000):
        yield range(start, min(start + 10_000, count))
