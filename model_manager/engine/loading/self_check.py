"""What an untested architecture must show before it is served: our answers for it are those of its own attention.

Two sequences go through the engine's path, cut into steps and packed together, and each through transformers' path by
itself. Code that ignores positions, mixes the sequences of a batch, or attends otherwise than it says, differs there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from model_manager.engine.interface import StepInput
from model_manager.engine.model_runner import TorchModelRunner
from model_manager.engine.modules.attention_hook import IMPLEMENTATION
from model_manager.wire.errors import ModelUnsupported

_LENGTHS = (24, 13)
_CUTS = (((0, 10), (0, 13)), ((10, 24),))
"""Positions of each sequence that a step computes."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Difference of a row's logits as a part of their size; what is computed otherwise differs by a few percent to 1."""
_ROUNDED = 0.15
"""The same where the KV cache is held in fewer bits."""


def check_against_own_attention(model: Any, runner: TorchModelRunner, *, rounds_cache: bool) -> None:
    """Raise ModelUnsupported unless packed, paged logits equal those of `model` alone with transformers' attention.

    They differ a little more if the runner rounds keys and values in its cache.

    Writes to the first blocks of the KV cache, whose content nobody has a use for yet.
    """
    try:
        error = _difference(model, runner)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as failure:
        reason = f"a first batch through it ended in {type(failure).__name__}: {failure}".partition("\n")[0]
        raise ModelUnsupported(f"architecture {type(model).__name__} is not served: {reason}") from failure
    if not error < max(_TOLERANCE[model.dtype], _ROUNDED if rounds_cache else 0.0):
        raise ModelUnsupported(
            f"architecture {type(model).__name__} is not served: in a batch it answers otherwise than alone with "
            f"transformers' own attention (its logits differ by {error:.1%})"
        )


def _difference(model: Any, runner: TorchModelRunner) -> float:
    """Of our logits from transformers', as a part of their size: the worst of the cuts, each by its median row.

    The median, because rounding sends some token of a mixture of experts to another expert.
    """
    generator = np.random.default_rng(0)
    tokens = [generator.integers(0, runner.vocab_size, length) for length in _LENGTHS]
    with _own_attention(model):
        wanted = [_all_logits(model, ids) for ids in tokens]
    medians = []
    for step, spans in zip(_steps(tokens, runner.block_size), _CUTS, strict=True):
        rows = runner.execute(step).logits.split([end - start for start, end in spans])
        for got, alone, (start, end) in zip(rows, wanted, spans, strict=False):
            medians.append(((got - alone[start:end]).norm(dim=-1) / alone[start:end].norm(dim=-1)).median())
    return float(torch.stack(medians).max())


def _steps(tokens: list[np.ndarray[Any, Any]], block_size: int) -> Iterator[StepInput]:
    """The sequences cut as `_CUTS` says, on blocks one after the other."""
    per_sequence = -(-max(_LENGTHS) // block_size)
    tables = np.arange(len(tokens) * per_sequence, dtype=np.int32).reshape(len(tokens), per_sequence)
    for spans in _CUTS:
        positions = [np.arange(start, end, dtype=np.int64) for start, end in spans]
        ends = np.cumsum([len(places) for places in positions])
        slots = [tables[row, p // block_size] * block_size + p % block_size for row, p in enumerate(positions)]
        yield StepInput(
            token_ids=np.concatenate([tokens[row][places] for row, places in enumerate(positions)]),
            positions=np.concatenate(positions),
            slots=np.concatenate(slots).astype(np.int64),
            query_starts=np.array([0, *ends], np.int32),
            context_lens=np.array([end for _, end in spans], np.int32),
            block_tables=tables[: len(spans)],
            logits_rows=np.arange(ends[-1]),
        )


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    """Within, `model` attends as transformers does by default."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


@torch.inference_mode()
def _all_logits(model: Any, tokens: np.ndarray[Any, Any]) -> torch.Tensor:
    """[length, vocab_size] of one sequence alone, without a cache."""
    ids = torch.from_numpy(tokens).unsqueeze(0).to(model.device)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()
