"""Runs transformers' model code on packed batches over the paged KV cache.

Knows tokens, positions and slots; not requests, not why a batch is put together as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model_manager.engine.interface import StepInput
from model_manager.engine.paged_attention import PagedAttention


class TorchModelRunner:
    """A ModelRunner (interface.py): one transformers model on one device, its attention served by `attention`."""

    def __init__(
        self,
        model: Any,
        attention: PagedAttention,
        *,
        device: torch.device,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        eos_token_ids: list[int],
    ) -> None:
        self._model = model
        self._attention = attention
        self._device = device
        self.vocab_size = int(model.lm_head.out_features)
        self.max_model_len = max_model_len
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def execute(self, step: StepInput) -> torch.Tensor:
        """Compute the batch, writing keys and values to `slots`; returns float32 logits [L, vocab_size]."""
        self._attention.begin(step)
        output = self._model(
            input_ids=self._place(step.token_ids).unsqueeze(0),
            position_ids=self._place(step.positions).unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._place(step.logits_rows),
            paged=self._attention,
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def warm_up(self) -> None:
        """Compute one short batch, so that whatever is compiled on first use is compiled; leaves block 0 unread."""
        tokens = min(2, self.block_size)
        self.execute(
            StepInput(
                token_ids=np.zeros(tokens, np.int64),
                positions=np.arange(tokens, dtype=np.int64),
                slots=np.arange(tokens, dtype=np.int64),
                query_starts=np.array([0, tokens], np.int32),
                context_lens=np.array([tokens], np.int32),
                block_tables=np.zeros((1, 1), np.int32),
                logits_rows=np.array([tokens - 1], np.int64),
            )
        )

    def _place(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
