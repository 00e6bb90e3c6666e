"""transformers' two ways to generate: `generate` over static batches, and its continuous batching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.workload import Item

STATIC_BATCH = 8


class StaticGenerate:
    """`model.generate` over batches of `batch_size` in order of arrival, left-padded, each as long as its longest."""

    def __init__(self, batch_size: int = STATIC_BATCH) -> None:
        self._batch_size = batch_size

    def load(self, folder: Path, dtype: str) -> None:
        self._model = load_transformers(folder, dtype)

    def run(self, items: list[Item]) -> list[int]:
        counts: list[int] = []
        for start in range(0, len(items), self._batch_size):
            counts.extend(generate_batch(self._model, items[start : start + self._batch_size]))
        return counts


class TransformersContinuousBatching:
    """transformers' own continuous batching, with one of its attention implementations for a CPU."""

    def __init__(self, attention: str) -> None:
        self._attention = attention

    def load(self, folder: Path, dtype: str) -> None:
        self._model = load_transformers(folder, dtype, attn_implementation=self._attention)

    def run(self, items: list[Item]) -> list[int]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        longest = max(len(item.prompt_token_ids) + item.num_output for item in items)
        settings = ContinuousBatchingConfig(page_size=32, num_blocks=-(-longest // 32) * 64, max_batch_tokens=512)
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=1, max_new_tokens=256)
        with self._model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=settings, block=True, timeout=5
        ) as manager:
            return _answered(manager, items)


class CudaContinuousBatching:
    """transformers' continuous batching on a GPU, its cache and batches sized by itself; in a rehearsal on a CPU.

    With "sdpa", which needs no further package, it captures no graphs.
    """

    def load(self, folder: Path, dtype: str) -> None:
        import torch

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_transformers(folder, dtype, attn_implementation="sdpa").to(self._device)

    def run(self, items: list[Item]) -> list[int]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        most = max(item.num_output for item in items)
        sizes: dict[str, Any] = (
            {} if self._device == "cuda" else {"num_blocks": 64, "max_batch_tokens": 512}
        )  # else most of the memory
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=1, max_new_tokens=most)
        with self._model.continuous_batching_context_manager(
            generation_config=generation,
            continuous_batching_config=ContinuousBatchingConfig(**sizes),
            block=True,
            timeout=5,
        ) as manager:
            return _answered(manager, items)


def _answered(manager: Any, items: list[Item]) -> list[int]:
    """How many tokens continuous batching generated for each item."""
    for i, item in enumerate(items):
        manager.add_request(item.prompt_token_ids, request_id=str(i), max_new_tokens=item.num_output, eos_token_id=-1)
    results = [manager.get_result(timeout=600) for _ in items]
    counts = {result.request_id: len(result.generated_tokens) for result in results}
    return [counts[str(i)] for i in range(len(items))]


def load_transformers(folder: Path, dtype: str, **options: Any) -> Any:
    """A transformers model in evaluation mode, as its documentation loads one."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **options).eval()


def generate_batch(model: Any, batch: list[Item]) -> list[int]:
    """One left-padded `generate` call, as long as its longest output needs; counts what each item asked for."""
    import torch

    width, longest = max(len(i.prompt_token_ids) for i in batch), max(i.num_output for i in batch)
    pads = [width - len(item.prompt_token_ids) for item in batch]
    ids = torch.tensor([[1] * pad + item.prompt_token_ids for pad, item in zip(pads, batch, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=1,
        )
    return [min(item.num_output, out.shape[1] - width) for item in batch]
