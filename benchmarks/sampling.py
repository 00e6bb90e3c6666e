"""Milliseconds that sampling takes of a decode step of 64 sequences, on a CPU, for several mixes of parameters.

    python -m benchmarks.sampling
    python -m benchmarks.sampling --vocab 151936 --step_ms 100

Each figure is the least of many short rounds, all mixes taking turns, in the threads that torch computes with: what it
takes where nothing else runs. A share relates to a decode step of 64 sequences of opt-125m's shape, the engine's
fastest in the same run (random weights, bfloat16, 128 tokens of prompt), or to `--step_ms`. The step holds a greedy
sampling, so a share counts what a mix takes beyond greedy. Logits are normal numbers times a scale: 0.5 is what
random weights of that shape give, 4 more like a trained model's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command_line import command_line
from benchmarks.environments import cache_folder
from benchmarks.sides.millrace import MillraceEngine
from benchmarks.timeline import record
from benchmarks.workload import VOCAB, Item, write_checkpoints
from millrace.model_manager.engine.sampling.logit_rows import SETTINGS, SamplingRows, settings_of
from millrace.model_manager.engine.sampling.sampler import Sampler
from millrace.model_manager.wire.sampling import SamplingParams

ROWS, HISTORY, PROMPT = 64, 140, 80
SHAPE = "opt-125m"
SCALES = (0.5, 1.0, 4.0)
SAMPLED: dict[str, Any] = {"temperature": 0.8}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.3}
EACH: tuple[dict[str, Any], ...] = (
    {},
    SAMPLED,
    SAMPLED | {"top_p": 0.9},
    SAMPLED | {"top_k": 50},
    SAMPLED | {"min_p": 0.05} | PENALTIES,
    SAMPLED | {"typical_p": 0.9},
    SAMPLED | {"top_k": 200, "top_p": 0.95, "logprobs": 5},
    {"temperature": 1.5, "top_p": 0.95, "frequency_penalty": 0.2},
)
MIXES: dict[str, Callable[[int], dict[str, Any]]] = {
    "greedy": lambda _: {},
    "temperature": lambda _: SAMPLED,
    "top_p": lambda _: SAMPLED | {"top_p": 0.9},
    "mixed": lambda row: (
        SAMPLED
        | {"top_p": 0.9, "min_p": 0.02}
        | (PENALTIES if row % 2 else {})
        | ({"logprobs": 5} if row % 8 == 0 else {})
    ),
    "each": lambda row: EACH[row % len(EACH)],
}
"""By name: `each` gives every kind of parameter to an eighth of the rows."""


def main() -> None:
    """Measure; the last line is JSON."""
    parser = command_line("sampling", __doc__)
    parser.add_argument("--vocab", type=int, default=VOCAB[SHAPE], help="tokens of the vocabulary")
    parser.add_argument("--rounds", type=int, default=200, help="how often each mix is sampled")
    parser.add_argument("--step_ms", type=float, help="milliseconds of a decode step; by default it is measured")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of made checkpoints"
    )
    arguments = parser.parse_args()
    step = arguments.step_ms or step_ms(arguments.checkpoints)
    figures = {"threads": torch.get_num_threads(), "vocab": arguments.vocab, "step_ms": round(step, 2)}
    for scale in SCALES:
        spent = spent_ms(arguments, scale)
        for name, ms in spent.items():
            share = (ms - spent["greedy"]) / step
            figures[f"{name}_scale_{scale:g}_ms"] = round(ms, 2)
            print(f"{name}, scale {scale:g}: {ms:.2f} ms, {share:.1%} of a step of {step:.1f} ms beyond greedy")
    print(json.dumps(figures))


def spent_ms(arguments: argparse.Namespace, scale: float) -> dict[str, float]:
    """Milliseconds for each mix, on logits of that scale."""
    generator = torch.Generator().manual_seed(0)
    logits, sampler = torch.randn(ROWS, arguments.vocab, generator=generator) * scale, Sampler()
    rows = {name: rows_of(mix, arguments.vocab) for name, mix in MIXES.items()}
    times: dict[str, list[float]] = {name: [] for name in MIXES}
    for _ in range(arguments.rounds):
        for name in MIXES:
            started = time.perf_counter()
            sampler.sample(logits, rows[name])
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: min(each) for name, each in times.items()}


def rows_of(mix: Callable[[int], dict[str, Any]], vocab: int) -> SamplingRows:
    """64 rows of one history each."""
    params = [SamplingParams.parse(mix(row)) for row in range(ROWS)]
    settings = np.array([settings_of(each, row, PROMPT) for row, each in enumerate(params)], SETTINGS)
    tokens = np.random.default_rng(0).integers(0, vocab, (ROWS, HISTORY)).astype(np.int32)
    return SamplingRows.of(settings, tokens, np.arange(ROWS), np.full(ROWS, HISTORY), [None] * ROWS)


def step_ms(checkpoints: Path) -> float:
    """A decode step of 64 greedy sequences in the engine."""
    write_checkpoints(checkpoints, (SHAPE,))
    side = MillraceEngine()
    side.load(checkpoints / SHAPE, "bfloat16")
    prompts = np.random.default_rng(0).integers(5, VOCAB[SHAPE], (ROWS, 128)).tolist()
    items = [Item(prompt, 60) for prompt in prompts]
    line = record(side.engine, side.runner, items, SHAPE, [0.0] * ROWS)
    full = zip(line.step_ms, line.tokens, line.sampled, strict=True)
    return min(ms for ms, tokens, sampled in full if tokens == sampled == ROWS)


if __name__ == "__main__":
    main()
