"""Duels of a pipeline with its own engine: who meets whom, and the tables of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from benchmarks.contenders import OWN
from benchmarks.results import Match, Row

PIPELINE = "pipeline-"
DUELS = {
    name: (PIPELINE + name, name) for name in ("torch", "vllm", "openvino", "ctranslate2", "llama_cpp", "endpoint")
}
"""By back end: `Generate` over it, and the engine by itself."""
BEAM = {"vllm": ("pipeline-vllm", "beam-vllm")}
"""`Generate` over vLLM, and Beam's own handler of vLLM, in the batches of Beam's choice."""

DEFAULTS = {name: (name, name + OWN) for name in ("vllm", "openvino", "llama_cpp")}
"""An engine by itself as millrace's back end sets it, and with its own defaults."""


def pairs(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Each pipeline and its engine by itself, in the order of the rows."""
    by_side: dict[tuple[Match, str], Row] = {(row.match, row.engine): row for row in rows}
    for row in rows:
        alone = by_side.get((row.match, row.engine.removeprefix(PIPELINE)))
        if row.engine.startswith(PIPELINE) and alone:
            yield row, alone


def shares(rows: list[Row]) -> Iterator[str]:
    """A line for each row: what of its rate the pipeline of its match keeps, or has times over."""
    ours = {row.match: row for row in rows if row.engine.startswith(PIPELINE)}
    for row in rows:
        line = f"{row.match} {row.engine:20} {row.tokens_per_s:8.1f} tokens/s, {row.peak_rss_mb or 0:6.0f} MB"
        line += "" if row.processor_s is None else f", {row.processor_s:.1f} s of processors"
        pipeline = next((p for p, alone in pairs(rows) if alone is row), ours.get(row.match))
        yield line if pipeline is None or pipeline is row else f"{line}, pipeline {_share(pipeline, row):.2f} of it"


def duel_tables(rows: list[Row]) -> list[str]:
    """A table for each shape and workload."""

    def place(row: Row) -> tuple[str, str]:
        return row.match.shape, row.match.workload

    return [_table(*where, list(group)) for where, group in itertools.groupby(sorted(rows, key=place), key=place)]


def _table(shape: str, workload: str, rows: list[Row]) -> str:
    sides = "`Generate`", "by itself"
    is_counted = any(row.processor_s is not None for row in rows)
    head = [
        *(f"{shape}, {workload}", *(f"{side}, tokens/s" for side in sides), "share"),
        *(["processor time, s"] if is_counted else []),
        *("load, s", "peak, MB"),
    ]
    lines = [head, ["---"] * len(head)]
    for pipeline, alone in pairs(rows):
        lines.append(
            [
                f"{alone.engine}, {alone.match.dtype}",
                _rate(pipeline),
                _rate(alone),
                f"{_share(pipeline, alone):.2f}",
                *([" / ".join(map(_processor_time, (pipeline, alone)))] if is_counted else []),
                " / ".join(f"{row.load_s or 0:.0f}" for row in (pipeline, alone)),
                " / ".join(f"{row.peak_rss_mb or 0:,.0f}" for row in (pipeline, alone)),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _share(pipeline: Row, alone: Row) -> float:
    return pipeline.tokens_per_s / alone.tokens_per_s


def _rate(row: Row) -> str:
    return f"{row.tokens_per_s:,.0f} ({min(row.rounds):,.0f}–{max(row.rounds):,.0f})"


def _processor_time(row: Row) -> str:
    return "–" if row.processor_s is None else f"{row.processor_s:,.1f}"
