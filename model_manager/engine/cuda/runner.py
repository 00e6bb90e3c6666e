"""The runner of a model on a CUDA device: Triton kernels and captured graphs. The log names what replaces either."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...wire.config import ModelConfig
from ..paged_attention import CacheShape
from ..torch.gathering_attention import GatheringAttention
from ..torch.merged_linears import merge_linears
from ..torch.model_runner import TorchModelRunner

log = logging.getLogger(__name__)

_LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16, and with room for a tile in its shared memory."""


def cuda_runner(
    model: Any,
    config: ModelConfig,
    shape: CacheShape,
    *,
    device: torch.device,
    max_model_len: int,
    captures: bool,
    **sizes: Any,
) -> TorchModelRunner:
    """A runner for steps as `config` bounds them; `captures` says whether decoding may run from graphs, which a model
    that is divided among processes cannot.

    `sizes` as of TorchModelRunner.
    """
    from . import fused_layers

    fused = fused_layers.fuse_layers(model)
    log.info("one kernel each: %s", ", ".join(f"{count} {name}" for name, count in fused.counts.items()))
    if captures and not config.max_loras:  # adapters stand around single layers, and so do a divided model's hooks
        log.info("%d linear layers share products", merge_linears(model))
    sizes |= {"device": device, "max_model_len": max_model_len, "as_written": fused.undone}
    return _attending_runner(model, config, shape, sizes, captures=captures)


def _attending_runner(
    model: Any, config: ModelConfig, shape: CacheShape, sizes: dict[str, Any], *, captures: bool
) -> TorchModelRunner:
    """A runner with the attention that the GPU is able to."""
    from . import graphs as cuda_graphs  # triton comes with torch for CUDA alone
    from . import triton_attention
    from .step_buffer import StepBuffer

    device = sizes["device"]
    if not triton_attention.supports(shape) or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        log.warning("no kernel for heads of %d in %s on %s: attention gathers, slowly", *_kind(shape), name)
        return TorchModelRunner(model, GatheringAttention(shape, device), **sizes)
    most_rows = max(cuda_graphs.graph_sizes(config.max_num_seqs))
    buffer = StepBuffer(
        device,
        max_tokens=max(config.max_num_batched_tokens, most_rows),
        max_seqs=most_rows,
        max_blocks=-(-sizes["max_model_len"] // config.block_size),
    )
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    attention = triton_attention.TritonAttention(shape, device, buffer, num_sms)
    runner = cuda_graphs.PlacedModelRunner(model, attention, **sizes)
    if captures:
        _capture(runner, config.max_num_seqs)
    return runner


def _capture(runner: Any, max_num_seqs: int) -> None:
    """Capture graphs; a model whose code cannot be captured, because it looks at its own results, runs without."""
    from .graphs import CudaCapture

    runner.warm_up()
    try:
        runner.capture(CudaCapture(), max_num_seqs)
    except RuntimeError as error:
        log.warning("decoding runs without captured graphs: %s", str(error).partition("\n")[0])
        runner.release()


def _kind(shape: CacheShape) -> tuple[int, torch.dtype]:
    return shape.head_dim, shape.stored
