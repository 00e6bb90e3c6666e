"""Many small models in memory for a few: rows in random order against the same rows sorted by model.

    python -m benchmarks.many_models --models 20 --room 4 --rows 10000 --rounds 3

Each model has the embedded model's shape and tokenizer, and random weights of its own. Each round runs two jobs of
`millrace run --models …`, one after the other; which one is first alternates. Each begins with no engine running.
A job before the first round, of a row for each model, is not counted: the first load of any model checks it against
transformers' code. Every row must have an answer. The last line is JSON: loads of each model, rows a second, their
ratio by the medians, and the ratio of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from millrace.model_manager.client.status import read_status, stop_models
from millrace.model_manager.store import resolve
from millrace.model_manager.store.memory import memory_need
from millrace.model_manager.store.weight_headers import read_header
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig

_ORDERS = ("sorted", "shuffled")
_LOOK = 0.2
"""Seconds between two looks at the manager's status."""


@dataclass(frozen=True)
class Job:
    """One run of all rows."""

    order: str
    seconds: float
    rows_per_s: float
    loads: dict[str, int]
    answered: int


def write_models(folder: Path, count: int) -> list[Path]:
    """Models with random weights, in folders of their numbers."""
    embedded = resolve(EMBEDDED_MODEL)
    folders = [folder / f"model-{number:02}" for number in range(count)]
    for number, made in enumerate(folders):
        shutil.copytree(embedded, made, ignore=shutil.ignore_patterns("SHA256SUMS"))
        _draw_weights(made / "model.safetensors", np.random.default_rng(number))
    return folders


def _draw_weights(file: Path, chance: np.random.Generator) -> None:
    """Replace the matrices of a checkpoint in bfloat16; vectors, which are norms, stay."""
    header, content = read_header(file), bytearray(file.read_bytes())
    for tensor in (header.tensors or {}).values():
        if len(tensor["shape"]) > 1:
            start, end = (len(header.raw) + offset for offset in tensor["data_offsets"])
            drawn = np.asarray(chance.normal(0, 0.02, tensor["shape"]), dtype=np.float32)
            content[start:end] = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    file.write_bytes(content)


def write_rows(folder: Path, models: list[Path], rows: int, tokens: int) -> dict[str, Path]:
    """The same rows sorted by model and in random order, and `first`, a row for each model."""
    lines = [
        json.dumps(
            {"id": f"r{number}", "prompt": f"row {number}", "model": str(models[number * len(models) // rows])}
            | {"max_tokens": tokens, "ignore_eos": True}
        )
        for number in range(rows)
    ]
    files = {order: folder / f"{order}.jsonl" for order in ("sorted", "shuffled", "first")}
    files["sorted"].write_text("\n".join(lines) + "\n")
    files["first"].write_text("\n".join(lines[:: rows // len(models)]) + "\n")
    random.Random(0).shuffle(lines)
    files["shuffled"].write_text("\n".join(lines) + "\n")
    return files


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if read_status() is not None:
            stop_models()


def run(order: str, rows: Path, models: list[Path], memory_gib: float, engine_flags: list[str]) -> Job:
    """One job, from no engine to its end."""
    output = rows.parent / f"out-{order}"
    names = ",".join(map(str, models))
    loads: dict[str, int] = {}
    started = time.monotonic()
    command = [sys.executable, "-m", "millrace", "run", "--input", str(rows), "--output", str(output)]
    flags = [
        "--models",
        names,
        "--memory_gib",
        str(memory_gib),
        "--overwrite",
        "--quiet",
        "--no-report",
        "--linger",
        "30",
    ]
    with _running([*command, *flags, *engine_flags]) as process:
        while process.poll() is None:
            if (status := read_status()) is not None:
                loads |= {Path(model.model).name: model.loads for model in status.models if model.loads}
            time.sleep(_LOOK)
        seconds = time.monotonic() - started
        assert process.returncode == 0, f"the job ended with {process.returncode}"
    files = rows.parent.glob(f"out-{order}*.jsonl")
    answered = {json.loads(line)["id"] for file in files for line in file.read_text().splitlines()}
    total = len(rows.read_text().splitlines())
    assert len(answered) == total, f"{len(answered)} of {total} rows are answered"
    return Job(order, round(seconds, 2), round(total / seconds, 1), loads, len(answered))


def _arguments() -> argparse.Namespace:
    parser = command_line("many_models", __doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--room", type=int, default=4, help="models that fit in memory at once")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="torch", help="fake: no model is computed, only the models' turns are")
    parser.add_argument("--num_threads", type=int, default=1, help="of each engine")
    parser.add_argument("--results", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="many-models-") as place:
        folder = Path(place)
        os.environ.setdefault("MILLRACE_RUNTIME_DIR", str(folder / "runtime"))
        models = write_models(folder, options.models)
        rows = write_rows(folder, models, options.rows, options.tokens)
        need = memory_need(ModelConfig(model=str(models[0]), backend=options.backend), str(models[0])).least
        engine = ["--num_threads", str(options.num_threads), "--backend", options.backend]

        def job(order: str) -> Job:
            made = run(order, rows[order], models, (options.room + 0.5) * need / 2**30, engine)
            print(made, flush=True)
            return made

        job("first")
        rounds = [{order: job(order) for order in _ORDERS[:: 1 - 2 * (number % 2)]} for number in range(options.rounds)]
    conclude({"settings": _settings(options)} | told(rounds), options.results)


def told(rounds: list[dict[str, Job]]) -> dict[str, Any]:
    """The figures of all rounds; each has a job of each order."""
    speed = {order: statistics.median(each[order].rows_per_s for each in rounds) for order in _ORDERS}
    return {
        "rows_per_s": speed,
        "ratio": round(speed["shuffled"] / speed["sorted"], 3),
        "ratios": [round(each["shuffled"].rows_per_s / each["sorted"].rows_per_s, 3) for each in rounds],
        "most_loads": max(max(each["shuffled"].loads.values()) for each in rounds),
        "loads": {order: [sum(each[order].loads.values()) for each in rounds] for order in _ORDERS},
        "jobs": [asdict(each[order]) for each in rounds for order in _ORDERS],
    }


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("models", "room", "rows", "tokens", "backend", "num_threads")}


if __name__ == "__main__":
    main()
