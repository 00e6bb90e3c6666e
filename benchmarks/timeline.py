"""How one run of millrace's engine goes: each step's batch and time, and each request's way through.

    python -m benchmarks.timeline --shape opt-125m --workload skewed --dtype bfloat16 --output out/timeline.json

All requests are there at the start. The last line of output is a summary in JSON; `benchmarks.draw` draws the file.
"""

from __future__ import annotations

import json
import math
import statistics
import time
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
    """From the start of the run to a request's end."""

    def summary(self) -> dict[str, float]:
        """Steps, seconds, tokens a step and a second, and latency at the median and the 95th percentile."""
        return {
            "steps": len(self.step_ms),
            "seconds": round(self.ended_at[-1], 3),
            "tokens_per_s": round(sum(self.sampled) / self.ended_at[-1], 1),
            "tokens_per_step": round(statistics.mean(self.tokens), 1),
            "median_latency_s": round(statistics.median(self.latency), 3),
            "p95_latency_s": round(sorted(self.latency)[math.ceil(0.95 * len(self.latency)) - 1], 3),
        }


def record(engine: Any, runner: Any, items: list[Item], title: str) -> Timeline:
    """Run the items, noting each step as `runner` gets it and as `engine` ends it."""
    from model_manager.wire.messages import Request
    from model_manager.wire.sampling import SamplingParams

    line, execute, started = Timeline(title), runner.execute, time.perf_counter()

    def noting(step: Any) -> Any:
        line.sequences.append(len(step.context_lens))
        line.tokens.append(len(step.token_ids))
        line.sampled.append(len(step.logits_rows))
        return execute(step)

    for i, item in enumerate(items):
        params = SamplingParams(max_tokens=item.num_output, ignore_eos=True)
        engine.add(Request(request_id=f"timeline-{i}", prompt_token_ids=item.prompt_token_ids, params=params))
    runner.execute = noting
    try:
        while engine.has_work():
            began = time.perf_counter()
            outputs = engine.step().outputs
            now = time.perf_counter()
            line.step_ms.append(1000 * (now - began))
            line.ended_at.append(now - started)
            line.latency += [now - started] * len(outputs)
    finally:
        runner.execute = execute
    return line


def main() -> None:
    """Run the workload once, after a bit of it that is not counted."""
    parser = command_line("timeline", __doc__)
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--workload", choices=WORKLOADS, default="skewed", help="lengths of prompts and outputs")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of weights and activations")
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
    line = record(side.engine, side.runner, items, title)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(asdict(line)), encoding="utf-8")
    print(json.dumps(line.summary()))


if __name__ == "__main__":
    main()
