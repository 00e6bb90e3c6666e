"""vLLM's engine for CPUs, called offline as its documentation shows."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.workload import Item

KV_CACHE_GIB = "2"


class Vllm:
    """`LLM.generate` with all requests at once, each with its own length; text is not asked for."""

    def __init__(self, eager: bool = False) -> None:
        """`eager`: nothing is compiled."""
        self._eager = eager

    def load(self, folder: Path, dtype: str) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
        os.environ["HF_HUB_OFFLINE"] = "1"
        from vllm import LLM

        self._llm = LLM(model=str(folder), dtype=dtype, enable_prefix_caching=False, enforce_eager=self._eager)

    def run(self, items: list[Item]) -> list[int]:
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=0, max_tokens=item.num_output, ignore_eos=True, detokenize=False)
            for item in items
        ]
        prompts = [{"prompt_token_ids": item.prompt_token_ids} for item in items]
        results = self._llm.generate(prompts, params, use_tqdm=False)
        return [len(result.outputs[0].token_ids) for result in results]
