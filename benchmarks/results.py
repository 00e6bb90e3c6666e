"""Figures as rows, and the files that keep them, from which README's tables and the plots are made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Match:
    """What contestants meet on: one model's shape, one workload, one dtype."""

    shape: str
    workload: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.shape} {self.workload} {self.dtype}"


@dataclass(frozen=True)
class Row:
    """One engine's figures in one match: the median over the rounds, and the rounds themselves."""

    match: Match
    engine: str
    tokens_per_s: float
    rounds: list[float]
    peak_rss_mb: float | None
    """MB of 2^20: the peak of the process and all that it started."""
    load_s: float | None = None
    first_token_s: float | None = None
    """Seconds from the start of the process to the first token of a first request."""
    processor_s: float | None = None
    """Seconds of processor time that a round takes all its processes, the median; None where it was not counted."""
    memory: dict[str, float] = field(default_factory=dict)
    """What of it the side can name: `weights_mb`, and `kv_mb`, the KV cache as far as it was ever written."""
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    taken: str = ""
    """The day, as 2026-11-21."""


def read(path: Path) -> list[Row]:
    """The rows of a file, in its order."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [Row(**(row | {"match": Match(**row["match"])})) for row in rows]


def keep(path: Path, rows: list[Row]) -> None:
    """Write `rows` into a file; they replace all that it holds of their matches, whose rounds were interleaved."""
    played = {row.match for row in rows}
    others = [row for row in read(path) if row.match not in played] if path.exists() else []
    _write(path, others + rows)


def keep_duel(path: Path, rows: list[Row]) -> None:
    """Write `rows` into a file; each replaces the row of its own match and engine, as only these took turns."""
    played = {(row.match, row.engine) for row in rows}
    others = [row for row in read(path) if (row.match, row.engine) not in played] if path.exists() else []
    _write(path, others + rows)


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n", encoding="utf-8")


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    """Rows as plain values."""
    return [asdict(row) for row in rows]


def describe_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor, its cores that this process may use, memory, and what of AVX-512 matters to products."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    features = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flag in flags]
    gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{fields.get('model name', 'unknown')}, {cores} cores, {gib:.0f} GiB, {' '.join(features)}"


def conclude(figures: dict[str, Any], path: Path | None) -> None:
    """The last line of a benchmark: figures, machine and day as JSON; kept in `path` too, if there is one."""
    line = json.dumps(figures | {"machine": describe_machine(), "taken": f"{datetime.now(UTC):%Y-%m-%d}"})
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line + "\n", encoding="utf-8")
    print(line)
