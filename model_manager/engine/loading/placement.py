"""A load's inputs: the settings, the checkpoint, the chosen device and format, and the memory it may take.

Knows no way of loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec
import torch

from ...store.memory import SHARE_OF_GPU, SHARE_OF_MACHINE
from ...wire.config import ModelConfig
from ...wire.machine import cores_of_engines, free_memory
from ..paged_attention import AttentionLayout, CacheShape
from ..quantization.precision import CACHE_FORMATS, check_formats
from ..sampling.torch_sampling import BYTES_A_WEIGHT, MOST_WEIGHTS
from ..scheduling.prompt_outputs import MOST_LOGITS
from ..speculation.drafts import most_draft_rows
from . import kv_memory
from .architectures import feed_forward_size, longest_context
from .checkpoint import Checkpoint
from .device import choose_device, choose_dtype
from .kv_memory import NO_OTHER, CachePlan, OtherModel
from .ranks import Rank


@dataclass(frozen=True)
class Placement:
    """One model, or a rank's part of it, on one device."""

    config: ModelConfig
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    rank: Rank | None = None
    beside: OtherModel = NO_OTHER
    """Memory for another model, whose cache has as many blocks."""
    num_blocks: int | None = None
    """Blocks of the KV cache; by default all that fit."""

    @classmethod
    def choose(
        cls,
        config: ModelConfig,
        checkpoint: Checkpoint,
        rank: Rank | None = None,
        beside: OtherModel = NO_OTHER,
        num_blocks: int | None = None,
    ) -> Self:
        """Raises ConfigError, naming the setting, for what this machine or this model cannot do."""
        device = rank.device if rank else choose_device(config.device)
        dtype = choose_dtype(config.dtype, checkpoint.stored_dtype, device)
        check_formats(config, device)
        max_model_len = longest_context(checkpoint.config, config.max_model_len)
        if rank:
            config = _share_of(config, rank.world)
        return cls(config, checkpoint, device, dtype, max_model_len, rank, beside, num_blocks)

    @property
    def world(self) -> int:
        """Processes among which the model is divided."""
        return self.rank.world if self.rank else 1

    @property
    def is_whole_on_cpu(self) -> bool:
        return self.device.type == "cpu" and self.rank is None

    @property
    def num_threads(self) -> int:
        return self.config.num_threads or cores_of_engines()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the whole model as it is loaded, before any of its matrices is quantized."""
        return self.checkpoint.weights.loaded_bytes(self.dtype.itemsize, on_cpu=self.device.type == "cpu")

    @property
    def unpacked_bytes(self) -> int:
        """Bytes that packing a loaded model takes on a CPU: weights in their file's own format are mapped until then,
        and count as free.
        """
        is_mapped = self.dtype == self.checkpoint.stored_dtype and self.checkpoint.quantization is None
        return self.weight_bytes if self.device.type == "cpu" and is_mapped else 0

    def check_weights(self) -> None:
        """Raise ModelDoesNotFit if the weights exceed the memory there is."""
        kv_memory.check_weights(self.weight_bytes // self.world, self._free_memory())

    def cache_shape(self, layout: AttentionLayout, num_blocks: int) -> CacheShape:
        """The shape of a KV cache with that many blocks."""
        return CacheShape(
            num_layers=layout.num_layers,
            num_heads=layout.num_heads,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            num_blocks=num_blocks,
            block_size=self.config.block_size,
            dtype=self.dtype,
            rounded=CACHE_FORMATS[self.config.kv_cache_dtype],
        )

    def plan_cache(self, layout: AttentionLayout, reserve: int) -> CachePlan:
        """The number of blocks; `reserve` bytes are for what the model still needs, beside a step's activations."""
        if self.num_blocks is not None:
            return CachePlan(self.num_blocks, self.max_model_len)
        return kv_memory.plan_cache(
            self.config,
            bytes_per_block=self.cache_shape(layout, num_blocks=0).bytes_per_block + self.beside.bytes_per_block,
            max_model_len=self.max_model_len,
            free=self._free_memory(),
            reserve=reserve + self.beside.weight_bytes + self._activation_bytes(layout),
            share=SHARE_OF_GPU if self.device.type == "cuda" else SHARE_OF_MACHINE,
        )

    def _free_memory(self) -> int:
        """Bytes that this process may take; the same for all ranks, which need equal KV caches."""
        is_cuda = self.device.type == "cuda"
        free = torch.cuda.mem_get_info(self.device)[0] if is_cuda else free_memory()
        if self.rank is None:
            return free
        return self.rank.least(free if is_cuda else free // self.world)

    def _activation_bytes(self, layout: AttentionLayout) -> int:
        """Most bytes of one step besides weights and cache: one layer's states, and logits with the copies that
        sampling and reading prompts make; drafts are sampled one row at a time.
        """
        config, model = self.config, self.checkpoint.config
        width = 3 * feed_forward_size(model) + 8 * model.hidden_size
        states = config.max_num_batched_tokens * width * self.dtype.itemsize
        read = min(MOST_LOGITS, config.max_num_batched_tokens * layout.vocab_size)
        logits = (config.max_num_seqs * layout.vocab_size + read) * (self.dtype.itemsize + 4 * 4)
        sampled = min(MOST_WEIGHTS[self.device.type], config.max_num_seqs * layout.vocab_size)
        sampling = sampled * BYTES_A_WEIGHT if self.device.type == "cuda" else 0
        drafts = most_draft_rows(config, self.device.type, layout.vocab_size) * layout.vocab_size
        return int(states + logits + sampling + drafts * (self.dtype.itemsize + 4))


def _share_of(config: ModelConfig, world: int) -> ModelConfig:
    """The settings with a rank's share of kv_cache_gib."""
    gib = config.kv_cache_gib
    return config if gib is None else msgspec.structs.replace(config, kv_cache_gib=gib / world)
