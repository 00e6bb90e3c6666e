"""OpenVINO GenAI's continuous batching, on a checkpoint that optimum-intel has converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sides import Unsupported
from benchmarks.workload import Item

MAX_NUM_BATCHED_TOKENS = 256
CACHE_GB = 1


class OpenVinoGenAi:
    """`ContinuousBatchingPipeline`, all requests added at once, each with its own length, stepped to the end.

    int8 holds for weights (asymmetric, a scale a channel), with dynamic quantization and KV cache in u8, its defaults.
    """

    def load(self, folder: Path, dtype: str) -> None:
        import openvino_genai

        settings = openvino_genai.SchedulerConfig()
        settings.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        settings.cache_size = CACHE_GB
        precision = {"INFERENCE_PRECISION_HINT": _precision(dtype)}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), settings, "CPU", precision)

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
