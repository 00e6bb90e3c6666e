"""millrace's engine alone, in this process: no manager, no Beam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.checkpoint_sizes import kv_bytes_per_token, weight_bytes
from benchmarks.sides import Unsupported
from benchmarks.workload import Item


def settings(folder: Path, dtype: str) -> dict[str, Any]:
    """The fields of ModelConfig, all else at its default. int8: weights and KV cache, over bfloat16 if there is.

    The prefix cache is off: a round has the prompts of the round before, which it would find there.
    """
    return {"model": str(folder), "prefix_caching": False, **(_int8() if dtype == "int8" else {"dtype": dtype})}


def _int8() -> dict[str, str]:
    from millrace.model_manager.engine.loading.device import computes_bfloat16_fast

    rest = "bfloat16" if computes_bfloat16_fast() else "float32"
    return {"quantization": "int8", "kv_cache_dtype": "int8", "dtype": rest}


class MillraceEngine:
    """`load_engine`, then requests added and the engine stepped until it has no work."""

    def __init__(self, further: dict[str, Any] | None = None, in_turn: bool = False) -> None:
        """`further` settings, beside those that every benchmark gives; `in_turn`: no step is launched before the last
        one's tokens are known, to measure what that is worth.
        """
        self._further = further or {}
        self._in_turn = in_turn

    def load(self, folder: Path, dtype: str) -> None:
        from millrace.model_manager.engine.process import load_engine
        from millrace.model_manager.wire.config import ModelConfig
        from millrace.model_manager.wire.engine_messages import StartEngine
        from millrace.model_manager.wire.errors import ConfigError

        config = ModelConfig.parse(settings(folder, dtype) | self._further)
        try:
            self.engine: Any = load_engine(StartEngine(config=config, folder=str(folder), heartbeat=1.0))
        except ConfigError as error:
            raise Unsupported(str(error)) from error
        if self._in_turn:
            self.runner.runs_ahead = False
        self._folder = folder

    def memory(self) -> dict[str, float]:
        """Memory of weights and cache. Each weight of the checkpoint counts once, in the bytes that it is held in."""
        info = self.engine.info
        itemsize = 2 if info.dtype in ("bfloat16", "float16") else 4
        blocks = self.engine._blocks._untouched  # all before it were used at some time
        return {
            "weights_mb": weight_bytes(self._folder, itemsize, 1 if info.quantization == "int8" else itemsize) / 2**20,
            "kv_mb": blocks * info.block_size * kv_bytes_per_token(self._folder, info.kv_cache_dtype) / 2**20,
        }

    @property
    def runner(self) -> Any:
        """The engine's ModelRunner."""
        return self.engine._runner

    def run(self, items: list[Item]) -> list[int]:
        from millrace.model_manager.wire.request import Request
        from millrace.model_manager.wire.sampling import SamplingParams

        for i, item in enumerate(items):
            params = SamplingParams(max_tokens=item.num_output, ignore_eos=True)
            self.engine.add(Request(request_id=str(i), prompt_token_ids=item.prompt_token_ids, params=params))
        counts = {}
        while self.engine.has_work():
            counts.update({output.request_id: len(output.token_ids) for output in self.engine.step().outputs})
        return [counts[str(i)] for i in range(len(items))]
