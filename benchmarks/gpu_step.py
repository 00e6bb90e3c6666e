"""Measures where the time of a step goes on a GPU: a decoding step of many sequences, one of few, one of prompts.

    python -m benchmarks.gpu_step --shape qwen3-0.6b
    python -m benchmarks.gpu_step --rehearse        # the same on a CPU and a small model: whether it runs

For each, the GPU's time a step and the kernels that take most of it, and the host's time to launch one. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.contenders import CUDA
from benchmarks.environments import cache_folder
from benchmarks.sides.millrace import MillraceEngine
from benchmarks.workload import (
    GPU_SHAPES,
    NANO_VLLM,
    NANO_VLLM_SMALL,
    SMALL_SHAPES,
    VOCAB,
    Item,
    make,
    write_checkpoints,
)

_DECODING_STEPS, _STEPS_BEFORE, _PROMPT_STEPS = 20, 40, 4
_SHOWN = 20


@dataclass(frozen=True)
class Step:
    """Means over some steps."""

    name: str
    device_ms: float
    launch_ms: float
    kernels: dict[str, float]
    """Microseconds a step by kernel, the longest first."""


class Profiler:
    """An engine whose steps are looked at."""

    def __init__(self, side: MillraceEngine, items: list[Item], *, on_gpu: bool) -> None:
        self._engine, self._runner, self._items, self._on_gpu = side.engine, side.runner, items, on_gpu
        self._launch_s = 0.0
        execute = self._runner.execute

        def timed(step: Any) -> Any:
            began = time.perf_counter()
            output = execute(step)
            self._launch_s += time.perf_counter() - began
            return output

        self._runner.execute = timed

    def decoding(self, sequences: int) -> Step:
        """Steps in which so many sequences have a token each."""
        self._add(sequences, _STEPS_BEFORE + _DECODING_STEPS + 8)
        for _ in range(_STEPS_BEFORE):
            self._engine.step()
        return self._profile(f"{sequences} sequences decode", _DECODING_STEPS)

    def prompts(self) -> Step:
        """Steps of as many tokens of prompts as one takes."""
        self._add(len(self._items), 1)
        return self._profile("prompts begin", _PROMPT_STEPS)

    def _add(self, sequences: int, max_tokens: int) -> None:
        from millrace.model_manager.wire.request import Request
        from millrace.model_manager.wire.sampling import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for index in range(sequences):
            prompt = self._items[index % len(self._items)].prompt_token_ids
            self._engine.add(Request(str(index), prompt, params))

    def _profile(self, name: str, steps: int) -> Step:
        """Look at some steps; then run until nothing is left."""
        from torch.profiler import ProfilerActivity, profile

        activity = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._launch_s, launched = 0.0, 0
        with profile(activities=[activity], acc_events=True) as found:
            while launched < steps and self._engine.has_work():
                self._engine.step()
                launched += 1
        launch_s = self._launch_s
        while self._engine.has_work():
            self._engine.step()
        events = found.key_averages()
        times = {event.key: event.device_time_total if self._on_gpu else event.self_cpu_time_total for event in events}
        longest = sorted(times.items(), key=lambda item: -item[1])
        kernels = {key: round(microseconds / launched, 1) for key, microseconds in longest[:_SHOWN]}
        return Step(name, sum(times.values()) / launched / 1e3, launch_s / launched * 1e3, kernels)


def main() -> None:
    """Print each kind of step."""
    arguments = _arguments()
    import torch

    on_gpu = torch.cuda.is_available()
    if not (on_gpu or arguments.rehearse):
        raise SystemExit("benchmarks.gpu_step: torch finds no usable CUDA device here; --rehearse takes a CPU")
    shape = SMALL_SHAPES[0] if arguments.rehearse else arguments.shape
    items = make(NANO_VLLM_SMALL if arguments.rehearse else NANO_VLLM, VOCAB[shape])
    write_checkpoints(arguments.checkpoints, (shape,))
    side = MillraceEngine(CUDA)
    side.load(arguments.checkpoints / shape, "bfloat16" if on_gpu else "float32")
    profiler = Profiler(side, items, on_gpu=on_gpu)
    steps = [profiler.decoding(len(items)), profiler.decoding(max(1, len(items) // 8)), profiler.prompts()]
    for step in steps:
        print(f"{step.name}: {step.device_ms:.2f} ms of the device a step, {step.launch_ms:.2f} ms of the host")
        for kernel, microseconds in step.kernels.items():
            print(f"{microseconds:12.1f} us  {kernel[:96]}")
    device = torch.cuda.get_device_name(0) if on_gpu else "CPU"
    print(json.dumps({"shape": shape, "device": device, "steps": [asdict(step) for step in steps]}))


def _arguments() -> argparse.Namespace:
    parser = command_line("gpu_step", __doc__)
    parser.add_argument("--shape", choices=GPU_SHAPES, default=GPU_SHAPES[0], help="random weights in its shape")
    parser.add_argument("--rehearse", action="store_true", help="a small model, on a CPU too")
    checkpoints = cache_folder() / "checkpoints"
    parser.add_argument("--checkpoints", type=Path, default=checkpoints, help="folder of made checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    main()
