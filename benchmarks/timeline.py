"""The timeline of one run of millrace's engine: each step's batch and time, and each request's course.

    python -m benchmarks.timeline --rate 6 --output benchmarks/results/timeline.json

Requests come at random, so many a second on average (exponential gaps, from a seed), or are all there at the start. The
last line of output is a summary in JSON; `benchmarks.draw` draws the file.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES
from benchmarks.environments import cache_folder
from benchmarks.sides.millrace import MillraceEngine
from benchmarks.workload import SHAPES, VOCAB, WORKLOADS, Item, make, write_checkpoints


@dataclass
class Timeline:
    """Times in seconds since the start of the run; one entry a step, then one a request, in order of their end."""

    title: str
    ended_at: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """How many were in the step's batch."""
    tokens: list[int] = field(default_factory=list)
    """How many of their tokens the step computed, prompts' and outputs'."""
    sampled: list[int] = field(default_factory=list)
    """How many of these rows gave a token."""
    latency: list[float] = field(default_factory=list)
    """Seconds from a request's arrival to its end."""
    finished_at: list[float] = field(default_factory=list)
    max_num_seqs: int = 0
    """Most sequences that a batch takes."""

    def summary(self) -> dict[str, float]:
        """Steps, seconds, tokens a step and a second, and latency at the median and the 95th and 99th percentiles."""
        return {
            "steps": len(self.step_ms),
            "seconds": round(self.ended_at[-1], 3),
            "tokens_per_s": round(sum(self.sampled) / self.ended_at[-1], 1),
            "tokens_per_step": round(statistics.mean(self.tokens), 1),
            "median_latency_s": round(statistics.median(self.latency), 3),
            "p95_latency_s": round(percentile(self.latency, 95), 3),
            "p99_latency_s": round(percentile(self.latency, 99), 3),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many per cent of the values do not exceed."""
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def arrivals(count: int, rate: float, seed: int = 1) -> list[float]:
    """Seconds at which requests come, so many a second on average with exponential gaps; with rate 0 all at 0."""
    rnd = random.Random(seed)
    return list(itertools.accumulate(rnd.expovariate(rate) if rate else 0.0 for _ in range(count)))


def record(
    engine: Any,
    runner: Any,
    items: list[Item],
    title: str,
    arrive_at: Sequence[float],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Timeline:
    """Run the items as they arrive, noting each step as `runner` gets it and as `engine` ends it."""
    line, execute, started = Timeline(title, max_num_seqs=engine.info.max_num_seqs), runner.execute, clock()
    waiting = deque(zip(arrive_at, _requests(items), strict=True))
    came = {request.request_id: at for at, request in waiting}

    def noting(step: Any) -> Any:
        line.sequences.append(len(step.context_lens))
        line.tokens.append(len(step.token_ids))
        line.sampled.append(len(step.logits_rows))
        return execute(step)

    runner.execute = noting
    try:
        while waiting or engine.has_work():
            began = clock() - started
            while waiting and waiting[0][0] <= began:
                engine.add(waiting.popleft()[1])
            if not engine.has_work():
                sleep(waiting[0][0] - began)
                continue
            outputs, now = engine.step().outputs, clock() - started
            line.step_ms.append(1000 * (now - began))
            line.ended_at.append(now)
            line.latency += [now - came[output.request_id] for output in outputs]
            line.finished_at += [now] * len(outputs)
    finally:
        runner.execute = execute
    return line


def _requests(items: list[Item]) -> Iterator[Any]:
    from millrace.model_manager.wire.request import Request
    from millrace.model_manager.wire.sampling import SamplingParams

    for i, item in enumerate(items):
        params = SamplingParams(max_tokens=item.num_output, ignore_eos=True)
        yield Request(request_id=f"timeline-{i}", prompt_token_ids=item.prompt_token_ids, params=params)


def main() -> None:
    """Run the workload once, after a bit of it that is not counted."""
    parser = command_line("timeline", __doc__)
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--workload", choices=WORKLOADS, default="skewed", help="lengths of prompts and outputs")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of weights and activations")
    parser.add_argument("--rate", type=float, default=0.0, help="requests that come in a second; 0: all at the start")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of made checkpoints"
    )
    arguments = parser.parse_args()
    write_checkpoints(arguments.checkpoints, (arguments.shape,))
    side = MillraceEngine()
    side.load(arguments.checkpoints / arguments.shape, arguments.dtype)
    items = make(arguments.workload, VOCAB[arguments.shape])
    side.run(items[:8])
    title = f"{arguments.shape}, {arguments.workload}, {arguments.dtype}"
    title += f", {arguments.rate:g} requests/s" if arguments.rate else ", all requests at the start"
    line = record(side.engine, side.runner, items, title, arrivals(len(items), arguments.rate))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(asdict(line)), encoding="utf-8")
    print(json.dumps(line.summary()))


if __name__ == "__main__":
    main()
