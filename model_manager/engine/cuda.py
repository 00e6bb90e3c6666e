"""What a CUDA device runs a model's attention with: Triton's kernels where they fit, by name in the log where not."""

from __future__ import annotations

import logging

import torch

from model_manager.engine.paged_attention import CacheShape, GatheringAttention, PagedAttention
from model_manager.wire.config import ModelConfig

log = logging.getLogger(__name__)

_LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16, and with room for a tile in its shared memory."""


def cuda_attention(config: ModelConfig, shape: CacheShape, device: torch.device, max_model_len: int) -> PagedAttention:
    """The paged attention for steps as `config` bounds them, with contexts up to `max_model_len`."""
    from model_manager.engine import triton_attention  # triton is there with torch for CUDA alone
    from model_manager.engine.step_buffer import StepBuffer

    if not triton_attention.supports(shape) or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        log.warning(
            "no kernel for heads of %d in %s on %s: attention gathers, slowly",
            *(shape.head_dim, shape.dtype, torch.cuda.get_device_name(device)),
        )
        return GatheringAttention(shape, device)
    buffer = StepBuffer(
        device,
        max_tokens=config.max_num_batched_tokens,
        max_seqs=config.max_num_seqs,
        max_blocks=-(-max_model_len // config.block_size),
    )
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return triton_attention.TritonAttention(shape, device, buffer, num_sms)
