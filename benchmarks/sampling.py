"""Milliseconds that sampling adds to a decode step of 64 sequences over a vocabulary of 50,272, on a CPU.

python -m benchmarks.sampling

Each figure is the least of a few repetitions, in processor time of the calling thread, so that other work on the
machine counts little; run it with one thread (OMP_NUM_THREADS=1). The step that it is compared with is a stand-in:
torch's plain float32 products of opt-125m's shape for 64 tokens, without attention, on the same thread. The engine's
packed products take less, so `--step_ms` may say what its step took. Logits are normal numbers times `scale`: 1 is as
flat as random weights give them, 4 more like a trained model's. The last line is JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.command_line import command_line
from model_manager.engine.sampler import Sampler
from model_manager.engine.sampling_rows import SETTINGS, SamplingRows, settings_of
from model_manager.wire.sampling import SamplingParams

ROWS, VOCAB, HISTORY, PROMPT = 64, 50_272, 140, 80
HIDDEN, FEED_FORWARD, LAYERS = 768, 3072, 12
SAMPLED: dict[str, Any] = {"temperature": 0.8}
MIXES: dict[str, Callable[[int], dict[str, Any]]] = {
    "greedy": lambda _: {},
    "temperature": lambda _: SAMPLED,
    "top_p": lambda _: SAMPLED | {"top_p": 0.9},
    "mixed": lambda row: (
        SAMPLED
        | {"top_p": 0.9, "min_p": 0.02}
        | ({"repetition_penalty": 1.1, "presence_penalty": 0.3} if row % 2 else {})
        | ({"logprobs": 5} if row % 8 == 0 else {})
    ),
}


def main() -> None:
    """Measure; the last line is JSON."""
    parser = command_line("sampling", __doc__)
    parser.add_argument("--step_ms", type=float, help="milliseconds of a decode step; by default the stand-in's")
    step = parser.parse_args().step_ms or least(stand_in_step())
    figures: dict[str, float] = {"step_ms": round(step, 2)}
    for scale in (1.0, 4.0):
        logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * scale
        for name, mix in MIXES.items():
            spent = least(sampling(logits, rows_of(mix)))
            figures[f"{name}_scale_{scale:g}_ms"] = round(spent, 2)
            print(f"{name}, scale {scale:g}: {spent:.2f} ms, {spent / step:.1%} of a step of {step:.1f} ms")
    print(json.dumps(figures))


def least(work: Callable[[], object], repetitions: int = 10) -> float:
    """Milliseconds of processor time."""
    best = float("inf")
    for _ in range(repetitions):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
    return best * 1000


def sampling(logits: torch.Tensor, rows: SamplingRows) -> Callable[[], object]:
    """One step's sampling."""
    sampler = Sampler()
    return lambda: sampler.sample(logits, rows)


def rows_of(mix: Callable[[int], dict[str, Any]]) -> SamplingRows:
    """64 rows of one history each."""
    params = [SamplingParams.parse(mix(row)) for row in range(ROWS)]
    settings = np.array([settings_of(each, row, PROMPT) for row, each in enumerate(params)], SETTINGS)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, HISTORY)).astype(np.int32)
    return SamplingRows.of(settings, tokens, np.arange(ROWS), np.full(ROWS, HISTORY), [None] * ROWS)


def stand_in_step() -> Callable[[], object]:
    """The products of a decode step."""
    shapes = [(HIDDEN, 4 * HIDDEN), (HIDDEN, FEED_FORWARD), (FEED_FORWARD, HIDDEN)] * LAYERS + [(HIDDEN, VOCAB)]
    weights = [torch.randn(shape) for shape in shapes]
    inputs = {size: torch.randn(ROWS, size) for size in (HIDDEN, FEED_FORWARD)}
    return lambda: [inputs[weight.shape[0]] @ weight for weight in weights]


if __name__ == "__main__":
    main()
