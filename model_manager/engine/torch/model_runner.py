"""Runs transformers' model code on packed batches over the paged KV cache.

Knows tokens, positions and slots; not requests, not why a batch is put together as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from ..interface import StepInput, StepOutput
from ..lora.adapted_linear import LoraLayers
from ..paged_attention import PagedAttention, ReleasingAttention
from .attention_hook import connect


@dataclass
class _DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """A decoder's output with any field that an architecture's head reads."""

    router_logits: Any = None


class DecoderTap:
    """Stands in for the forward pass of a model's decoder (all but its output head).

    It notes the decoder's last hidden states as they pass, or gives others in their place: then the rest of the model
    is computed from those, whatever an architecture does there (a scale, a soft cap) beside its `lm_head`.
    """

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        if decoder is model.get_output_embeddings():  # transformers goes by the name, and some heads have it
            decoder = model.base_model
        self._forward = decoder.forward
        self._noted: torch.Tensor | None = None
        self._given: torch.Tensor | None = None
        decoder.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            return _DecoderOutput(last_hidden_state=self._given)
        output = self._forward(*args, **kwargs)
        self._noted = output.last_hidden_state
        return output

    def take(self) -> torch.Tensor:
        """The hidden states [1, T, hidden_size] of the last pass; forgets them."""
        assert self._noted is not None
        hidden, self._noted = self._noted, None
        return hidden

    @contextmanager
    def giving(self, hidden: torch.Tensor) -> Iterator[None]:
        """Within, the model's passes start after its decoder, from these [1, N, hidden_size]."""
        self._given = hidden
        try:
            yield
        finally:
            self._given = None


class TorchModelRunner:
    """A ModelRunner (interface.py): one transformers model on one device, its attention served by `attention`."""

    def __init__(
        self,
        model: Any,
        attention: PagedAttention,
        *,
        device: torch.device,
        vocab_size: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        eos_token_ids: list[int],
        adapters: LoraLayers | None = None,
        as_written: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`adapters` are the model's layers that take adapters; within `as_written` the model computes what its own
        code says, whatever stands in its layers' places.
        """
        connect(model, attention)
        self._model = model
        self._decoder = DecoderTap(model)
        self._attention = attention
        self.adapters = adapters
        self.as_written = as_written
        self.has_graphs = False
        self.runs_ahead = device.type == "cuda"
        self.bytes_per_block = attention.bytes_per_block if isinstance(attention, ReleasingAttention) else 0
        self._device = device
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Compute the batch, writing keys and values to `slots`."""
        self._attention.begin(step)
        self._begin(step)
        hidden_rows = self._place(step.hidden_rows) if len(step.hidden_rows) else None
        token_ids = self._place(step.token_ids)
        if step.sampled is not None:
            token_ids = with_sampled(token_ids, self._place(step.sources), step.sampled)
        return self._forward(token_ids, self._place(step.positions), self._place(step.logits_rows), hidden_rows)

    def _begin(self, step: StepInput) -> None:
        """Tell layers that take adapters which rows have which adapter."""
        if self.adapters is not None:
            self.adapters.begin(step)

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        logits_rows: torch.Tensor | None,
        hidden_rows: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> StepOutput:
        """The model on tensors of its device, int64 all, without a look at what is in them; None is every row's logits
        and no hidden states. Logits go to `out` if there is one.
        """
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if logits_rows is None else logits_rows,
        )
        hidden = self._decoder.take()[0]
        return StepOutput(
            logits=output.logits[0].float() if out is None else out.copy_(output.logits[0]),
            hidden=None if hidden_rows is None else hidden[hidden_rows],
        )

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output head alone: float32 logits [N, vocab_size] of final hidden states [N, hidden_size]."""
        with self._decoder.giving(hidden.unsqueeze(0)):
            logits: torch.Tensor = self._model(use_cache=False).logits[0]
        return logits.float()

    def give_back(self, first_block: int) -> None:
        """Give the memory of this block and all after it back to the system; they take memory again once written."""
        assert isinstance(self._attention, ReleasingAttention)
        self._attention.give_back(first_block)

    @contextmanager
    def attending_with(self, attention: PagedAttention | None) -> Iterator[None]:
        """Within, steps use another KV cache than the runner's own, if one is given."""
        own = self._attention
        self._attention = attention or own
        connect(self._model, self._attention)
        try:
            yield
        finally:
            self._attention = own
            connect(self._model, own)

    def warm_up(self) -> None:
        """Compute one short batch, so that whatever is compiled on first use is compiled; leaves block 0 unread."""
        self.execute(StepInput.of_first_tokens(min(2, self.block_size)))

    def _place(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def with_sampled(token_ids: torch.Tensor, sources: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """A step's token ids [T], with tokens that only the device knows filled in (StepInput.sources)."""
    taken = sampled.index_select(0, sources.clamp(min=0)).to(token_ids.dtype)
    return torch.where(sources < 0, token_ids, taken)
