"""Paged attention in plain torch operations, for any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..interface import StepInput
from ..paged_attention import AttentionOptions, CacheShape
from ..quantization.rounding import RoundedRows, round_rows
from ..released_memory import give_back_tail


class GatheringAttention:
    """Gathers a sequence's keys and values, then calls SDPA.

    Runs where no kernel of ours does, and is the reference in their tests.
    """

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        slots = shape.num_blocks * shape.block_size
        size = (shape.num_layers, slots, shape.num_kv_heads, shape.head_dim)
        self._keys = _StoredStates(size, shape, device)
        self._values = _StoredStates(size, shape, device)
        self.bytes_per_block = shape.bytes_per_block if device.type == "cpu" else 0
        self._block_size = shape.block_size
        self._device = device
        self._slots = torch.empty(0, dtype=torch.long, device=device)
        self._sequences: list[_GatheredSequence] = []

    def begin(self, step: StepInput) -> None:
        self._slots = torch.from_numpy(step.slots).to(self._device)
        offsets = torch.arange(self._block_size, device=self._device)
        tables = torch.from_numpy(step.block_tables).to(self._device, torch.long)
        slots = (tables.unsqueeze(-1) * self._block_size + offsets).flatten(1)
        starts, lens = step.query_starts.tolist(), step.context_lens.tolist()
        self._sequences = [_GatheredSequence(starts[s], starts[s + 1], slots[s, : lens[s]]) for s in range(len(lens))]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        self._keys.put(layer, self._slots, key)
        self._values.put(layer, self._slots, value)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for sequence in self._sequences:
            rows = slice(sequence.start, sequence.end)
            keys, values = (states.get(layer, sequence.slots) for states in (self._keys, self._values))
            output[rows] = _dense(query[rows], keys, values, options)
        return output

    def give_back(self, first_block: int) -> None:
        for states in (self._keys, self._values):
            states.give_back(first_block * self._block_size)


class _StoredStates:
    """Keys or values of every layer and slot, [layers, slots, kv heads, dim]."""

    def __init__(self, size: tuple[int, ...], shape: CacheShape, device: torch.device) -> None:
        self._states = torch.empty(size, dtype=shape.stored, device=device)
        self._scales = torch.empty(size[:-1] if shape.rounded else 0, device=device)
        self._dtype, self._rounded = shape.dtype, shape.rounded

    def put(self, layer: int, slots: torch.Tensor, states: torch.Tensor) -> None:
        if self._rounded is not None:
            rounded = round_rows(states, self._rounded)
            self._scales[layer].index_copy_(0, slots, rounded.scales)
            states = rounded.steps
        self._states[layer].view(torch.uint8)[slots] = states.contiguous().view(torch.uint8)

    def give_back(self, first_slot: int) -> None:
        for layers in (self._states, self._scales) if self._rounded else (self._states,):
            for layer in layers:
                give_back_tail(layer, first_slot * (layer.nbytes // len(layer)))

    def get(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """[slots, kv heads, dim] in the format that they came in."""
        states = self._states[layer][slots]
        if self._rounded is None:
            return states
        return RoundedRows(states, self._scales[layer][slots]).values().to(self._dtype)


@dataclass(frozen=True)
class _GatheredSequence:
    start: int
    end: int
    slots: torch.Tensor
    """[context] where its keys and values lie, in order."""


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """Causal attention of a sequence's last n positions: q [n, heads, dim], k and v [context, kv heads, dim]."""
    behind = torch.arange(k.shape[0], device=q.device)
    position = behind[-q.shape[0] :].unsqueeze(1)
    seen = behind <= position
    if options.window is not None:
        seen &= behind > position - options.window
    q, k, v = (states.transpose(0, 1).unsqueeze(0) for states in (q, k, v))
    if options.softcap is None and options.sinks is None:
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=options.scale, enable_gqa=True)
    else:
        out = _written_out(q, k, v, seen, options)
    return out[0].transpose(0, 1)


def _written_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """Attention with options that SDPA lacks; [1, heads, n, dim], softmax in float32."""
    k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], 1) for states in (k, v))
    scores = (q @ k.transpose(2, 3)).float() * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    return scores.softmax(-1)[..., : k.shape[2]].to(v.dtype) @ v
