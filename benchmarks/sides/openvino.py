"""OpenVINO GenAI's continuous batching, on a checkpoint that optimum-intel has converted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.sides import Unsupported
from benchmarks.workload import Item

MAX_NUM_BATCHED_TOKENS = 256
CACHE_GB = 1
_SCHEDULER = {
    "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
    "cache_size": CACHE_GB,
    "enable_prefix_caching": False,
}
_PRECISION = "INFERENCE_PRECISION_HINT"
_MAX_NUM_SEQS = 64
"""millrace's default, for its back end; OpenVINO's own is 256."""


class OpenVinoGenAi:
    """`ContinuousBatchingPipeline`, all requests added at once, each with its own length, stepped to the end.

    int8 holds for weights (asymmetric, a scale a channel), with dynamic quantization and KV cache in u8, its defaults.
    """

    def __init__(self, as_back_end: bool = False) -> None:
        """`as_back_end`: with all that millrace's back end sets; else what is not named here is at its default."""
        self._as_back_end = as_back_end

    def load(self, folder: Path, dtype: str) -> None:
        import openvino_genai

        settings = openvino_genai.SchedulerConfig()
        for name, value in (back_end_scheduler() if self._as_back_end else _SCHEDULER).items():
            setattr(settings, name, value)
        precision = _precision(dtype)
        properties = back_end_properties(dtype, precision) if self._as_back_end else {_PRECISION: precision}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), settings, "CPU", properties)

    def run(self, items: list[Item]) -> list[int]:
        import numpy as np
        from openvino import Tensor

        handles = [
            self.pipeline.add_request(i, Tensor(np.array([item.prompt_token_ids])), exactly(item.num_output))
            for i, item in enumerate(items)
        ]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        return [len(handle.read_all()[0].generated_ids) for handle in handles]


def back_end_scheduler() -> dict[str, Any]:
    """Fields of SchedulerConfig as millrace's back end has them under sides/backends.py."""
    return {**_SCHEDULER, "max_num_seqs": _MAX_NUM_SEQS}


def back_end_properties(dtype: str, precision: str) -> dict[str, Any]:
    """Properties of the device as millrace's back end has them: threads, and no rounding where weights are floats."""
    ours = {_PRECISION: precision, "KV_CACHE_PRECISION": "u8", "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0))}
    return ours if dtype == "int8" else ours | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def _precision(dtype: str) -> str:
    """The type of what is not quantized; raises Unsupported for bfloat16 on a processor without it."""
    from openvino import Core

    has_bfloat16 = "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and not has_bfloat16:
        raise Unsupported("the processor has no bfloat16")
    return "bf16" if has_bfloat16 and dtype != "float32" else "f32"


def exactly(num_output: int) -> Any:
    """A greedy GenerationConfig that ends at this many tokens and nowhere else."""
    from openvino_genai import GenerationConfig

    return GenerationConfig(max_new_tokens=num_output, ignore_eos=True, do_sample=False)
