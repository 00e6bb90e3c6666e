"""Loads models that run as one compiled program per step: the plan from the config, the parameters from the files.

Imports no model code of transformers, which would take longer than the rest of a start.
"""

from __future__ import annotations

import logging

from ..cpu.attention import CpuAttention, supports
from ..cpu.compiled_runner import CompiledRunner, obstacle
from ..cpu.decoder_plan import DecoderPlan, plan_decoder
from ..cpu.decoder_weights import KeptTensors
from ..cpu.matrix_ops import Format
from ..cpu.parameter_reader import LoadedParameters, Parameters
from .kept_weights import KeptWeights
from .placement import Placement

log = logging.getLogger(__name__)


def compiled_plan(placement: Placement) -> DecoderPlan | None:
    """The plan of a model that can be compiled here; else None, and the log says why."""
    if not placement.is_whole_on_cpu:
        return None
    architecture = placement.checkpoint.architecture
    plan = plan_decoder(architecture, placement.checkpoint.config)
    reason = _obstacle(placement, plan)
    if reason:
        log.info("%s runs through transformers' code, because %s", architecture, reason)
        return None
    return plan


def mapped_runner(placement: Placement, plan: DecoderPlan) -> CompiledRunner | None:
    """A runner of the weights that an earlier load packed; None if they are not kept."""
    mapped = KeptWeights(placement, plan, _format(placement)).mapped()
    if mapped is None:
        return None
    return _runner(placement, plan, LoadedParameters({}), max(placement.weight_bytes, mapped.size), mapped)


def compiled_runner(placement: Placement, plan: DecoderPlan, parameters: Parameters, *, reserve: int) -> CompiledRunner:
    """Packs the parameters, and keeps them packed; `reserve` bytes are still needed for them."""
    with KeptWeights(placement, plan, _format(placement)).keeping() as keeper:
        return _runner(placement, plan, parameters, reserve, keeper)


def _runner(
    placement: Placement, plan: DecoderPlan, parameters: Parameters, reserve: int, kept: KeptTensors | None
) -> CompiledRunner:
    config = placement.config
    cache = placement.plan_cache(plan.layout, reserve)
    log.info("KV cache: %d blocks of %d tokens", cache.num_blocks, config.block_size)
    shape = placement.cache_shape(plan.layout, cache.num_blocks)
    return CompiledRunner(
        plan,
        parameters,
        CpuAttention(shape, placement.num_threads),
        shape,
        _format(placement),
        max_tokens=config.max_num_batched_tokens,
        max_model_len=cache.max_model_len,
        eos_token_ids=placement.checkpoint.eos_token_ids,
        num_threads=placement.num_threads,
        kept=kept,
    )


def _obstacle(placement: Placement, plan: DecoderPlan | None) -> str | None:
    config = placement.config
    if config.max_loras:
        return f"it takes adapters (max_loras={config.max_loras})"
    if config.quantization not in ("none", "int8"):
        return f"its products are in {config.quantization}"
    if plan is None:
        return "its layers are not among those that can be compiled"
    shape = placement.cache_shape(plan.layout, num_blocks=0)
    return obstacle(plan, shape, _format(placement)) if supports(shape) else "of the sizes of its heads"


def _format(placement: Placement) -> Format:
    return Format.INT8 if placement.config.quantization == "int8" else Format(placement.dtype.itemsize)
