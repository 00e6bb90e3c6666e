"""From a model's folder to a runner that can execute steps: weights, KV cache, attention, kernels, in that order.

transformers supplies the model code. Knows no requests.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from safetensors import SafetensorError
from transformers.distributed.configuration_utils import DistributedConfig

from model_manager.engine import falcon, kv_memory
from model_manager.engine.architectures import OTHER_PARTS, TESTED, TEXT_PART_KEYS, feed_forward_size, longest_context
from model_manager.engine.attention_probe import AttentionLayout, probe_attention
from model_manager.engine.checkpoint import Checkpoint, read_checkpoint
from model_manager.engine.compiled_runner import CompiledRunner, obstacle
from model_manager.engine.cpu_attention import CpuAttention, supports
from model_manager.engine.cuda import cuda_runner
from model_manager.engine.decoder_plan import plan_decoder
from model_manager.engine.device import choose_device, choose_dtype, usable_cores
from model_manager.engine.interface import AdapterSlots, ModelRunner
from model_manager.engine.kv_memory import NO_ROOM, CachePlan, Room
from model_manager.engine.linear import can_pack, pack_linears
from model_manager.engine.lora import LoraLayers
from model_manager.engine.matrix_ops import Format
from model_manager.engine.model_runner import TorchModelRunner
from model_manager.engine.paged_attention import (
    IMPLEMENTATION,
    CacheShape,
    GatheringAttention,
    PagedAttention,
    register,
)
from model_manager.engine.plain_linears import make_linears_plain
from model_manager.engine.prompt_reader import MOST_LOGITS
from model_manager.engine.quantization import (
    CACHE_FORMATS,
    check_formats,
    in_force,
    keeps,
    put_in,
    round_linears,
)
from model_manager.engine.quantized_checkpoint import read_weights
from model_manager.engine.self_check import check_against_own_attention
from model_manager.engine.stored_formats import Weight
from model_manager.engine.tensor_parallel import Rank, check_divisible
from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import ModelCorrupt, ModelDoesNotFit
from model_manager.wire.messages import ModelInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run."""

    runner: ModelRunner
    info: ModelInfo
    adapter_slots: AdapterSlots | None = None
    """Where the settings ask for adapters."""


def load_model(
    config: ModelConfig,
    folder: Path,
    rank: Rank | None = None,
    *,
    beside: Room = NO_ROOM,
    num_blocks: int | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder` as `config` asks, or a rank's part of it; returns once a step has run.

    `beside` is left free for another model, whose cache has as many blocks; `num_blocks`, by default all that fit, is
    what this one's cache has.

    Raises ModelError (which says what about the model or the machine is wrong) or ConfigError (which names the
    setting). float32 by default where the processor does not compute the checkpoint's own format fast.
    """
    started = time.monotonic()
    checkpoint = read_checkpoint(folder)
    device = rank.device if rank else choose_device(config.device)
    dtype = choose_dtype(config.dtype, checkpoint.stored_dtype, device)
    check_formats(config, device)
    torch.set_num_threads(config.num_threads or usable_cores())
    max_model_len = longest_context(checkpoint.config, config.max_model_len)
    world = rank.world if rank else 1
    if rank:
        check_divisible(checkpoint.config, config, is_quantized=checkpoint.quantization is not None)
        config = _share_of(config, world)
    kv_memory.check_weights(_weight_bytes(checkpoint, dtype, device) // world, _free_memory(device, rank))
    source = _source(checkpoint, dtype, keeps(config.quantization, device), world)
    model = _load_weights(checkpoint, source, dtype, device)
    make_linears_plain(model)
    runner = _runner(config, checkpoint, model, dtype, device, max_model_len, rank, beside, num_blocks)
    if checkpoint.architecture not in TESTED and isinstance(runner, TorchModelRunner):
        check_against_own_attention(model, runner, rounds_cache=config.kv_cache_dtype != "auto")
    runner.warm_up()
    info_dtype = str(dtype).removeprefix("torch.")
    info = ModelInfo(
        name=config.model,
        folder=str(folder),
        architecture=checkpoint.architecture,
        dtype=info_dtype,
        device=str(device),
        vocab_size=runner.vocab_size,
        max_model_len=runner.max_model_len,
        max_num_seqs=config.max_num_seqs,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        eos_token_ids=runner.eos_token_ids,
        load_seconds=time.monotonic() - started,
        quantization=in_force(config.quantization, source.kept),
        kv_cache_dtype=info_dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )
    return LoadedModel(runner, info, runner.adapters if isinstance(runner, TorchModelRunner) else None)


def room_for(config: ModelConfig, folder: Path) -> Room:
    """What the checkpoint in `folder` will take, without loading its weights; raises as load_model does."""
    checkpoint = read_checkpoint(folder)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, checkpoint.stored_dtype, device)
    _register()
    with torch.device("meta"):
        model = checkpoint.model_class._from_config(checkpoint.config, attn_implementation=IMPLEMENTATION)
    max_model_len = longest_context(checkpoint.config, config.max_model_len)
    layout = probe_attention(model, torch.device("meta"), max_model_len)
    shape = _cache_shape(config, layout, dtype, num_blocks=0)
    return Room(_weight_bytes(checkpoint, dtype, device), shape.bytes_per_block)


def _share_of(config: ModelConfig, world: int) -> ModelConfig:
    """The settings with a rank's part of the KV cache that was asked for."""
    gib = config.kv_cache_gib
    return config if gib is None else msgspec.structs.replace(config, kv_cache_gib=gib / world)


def _weight_bytes(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of the weights once loaded, at least; on a CPU a tied output layer is packed beside the embedding."""
    config = checkpoint.config
    packed_again = config.vocab_size * config.hidden_size if config.tie_word_embeddings and device.type == "cpu" else 0
    if checkpoint.quantization is not None:
        return int(checkpoint.stored_bytes + packed_again * dtype.itemsize)
    return int(checkpoint.num_parameters + packed_again) * dtype.itemsize


def _free_memory(device: torch.device, rank: Rank | None) -> int:
    """Bytes that this process may take; the same for all ranks, for they must come to the same KV cache."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else kv_memory.free_memory()
    if rank is None:
        return free
    return rank.least(free if device.type == "cuda" else free // rank.world)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its progress bars and its advice to developers; what matters of it is raised as errors here."""
    logging_of = transformers.utils.logging
    verbosity = logging_of.get_verbosity()
    logging_of.set_verbosity_error()
    logging_of.disable_progress_bar()
    try:
        yield
    finally:
        logging_of.set_verbosity(verbosity)
        logging_of.enable_progress_bar()


@dataclass(frozen=True)
class _Source:
    """Where transformers is to take a model's weights from."""

    arguments: dict[str, Any]
    """Of from_pretrained."""
    kept: dict[str, Weight]
    """Weights that stay quantized, by layer."""


def _source(checkpoint: Checkpoint, dtype: torch.dtype, keep: Callable[[Weight], bool], world: int) -> _Source:
    """The folder, of which each of `world` processes takes its part; of a quantized checkpoint, what its files hold."""
    if checkpoint.quantization is None:
        divided = {"distributed_config": DistributedConfig(tp_size=world)} if world > 1 else {}
        return _Source({"pretrained_model_name_or_path": checkpoint.folder, **divided}, {})
    with torch.device("meta"):
        model = checkpoint.model_class(checkpoint.config)
    linears = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    stored = read_weights(checkpoint.folder, checkpoint.quantization, dtype, linears, keep)
    return _Source({"pretrained_model_name_or_path": None, "state_dict": stored.state}, stored.kept)


def _load_weights(checkpoint: Checkpoint, source: _Source, dtype: torch.dtype, device: torch.device) -> Any:
    """The transformers model, in eval mode, its attention ours.

    Raises ModelCorrupt unless every weight is there, ModelDoesNotFit if memory ran out after all.
    """
    _register()
    try:
        with _quiet_transformers():
            model, report = checkpoint.model_class.from_pretrained(
                **source.arguments,
                config=checkpoint.config,
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                key_mapping=TEXT_PART_KEYS if checkpoint.is_text_part else None,
            )
        _check_report(checkpoint, report)
        put_in(model, source.kept, device)
        return model.eval().requires_grad_(False).to(device)
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, MemoryError) as error:
        if _is_out_of_memory(error):
            raise ModelDoesNotFit(f"{checkpoint.folder}: memory ran out while the weights were loaded") from None
        raise ModelCorrupt(f"{checkpoint.folder}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


def _register() -> None:
    """Make our attention known to transformers' models."""
    register()
    falcon.register()


def _is_out_of_memory(error: Exception) -> bool:
    """Torch's allocator of a CPU has no class of error of its own."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    out_of_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return out_of_memory or any(words in str(error) for words in ("DefaultCPUAllocator", "annot allocate memory"))


def _let_go_of_files(model: torch.nn.Module) -> None:
    """Copy what is left of the weights as loaded: each is a view of a whole mapped file, which stays while one does."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _check_report(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if checkpoint.is_text_part:
            names = [name for name in names if not name.startswith(OTHER_PARTS)]
        if names:
            some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            raise ModelCorrupt(f"{checkpoint.folder}: {len(names)} weights are {kind.removesuffix('_keys')}: {some}")


def _runner(
    config: ModelConfig,
    checkpoint: Checkpoint,
    model: Any,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    rank: Rank | None,
    beside: Room,
    num_blocks: int | None,
) -> CompiledRunner | TorchModelRunner:
    layout = probe_attention(model, device, max_model_len)
    shape = _cache_shape(config, layout, dtype, num_blocks=0)
    adapters = LoraLayers(model, config, dtype, device) if config.max_loras else None
    beside = Room(beside.weight_bytes + (adapters.most_bytes if adapters else 0), beside.bytes_per_block)
    plan = (
        _plan(config, checkpoint, layout, shape, device, max_model_len, rank, beside)
        if num_blocks is None
        else CachePlan(num_blocks, max_model_len)
    )
    shape = _cache_shape(config, layout, dtype, plan.num_blocks)
    log.info("KV cache: %d blocks of %d tokens", plan.num_blocks, config.block_size)
    local = device.type == "cpu" and not rank
    compiled = _compiled_runner(config, checkpoint, model, shape, plan.max_model_len) if local else None
    if compiled is None:
        round_linears(model, config.quantization)
        if local and can_pack(dtype):
            pack_linears(model, config.max_num_seqs, fuse=not adapters)
    if local:
        _let_go_of_files(model)
    if compiled is not None:
        return compiled
    if adapters:
        adapters.stand_in(model)  # last: what packs or rounds layers has to find them
    sizes: dict[str, Any] = {
        "device": device,
        "vocab_size": layout.vocab_size,
        "max_model_len": plan.max_model_len,
        "num_blocks": plan.num_blocks,
        "block_size": config.block_size,
        "eos_token_ids": checkpoint.eos_token_ids,
        "adapters": adapters,
    }
    if device.type == "cuda":
        return cuda_runner(model, config, shape, captures=rank is None, **sizes)
    return TorchModelRunner(model, _attention(shape, device), **sizes)


def _plan(
    config: ModelConfig,
    checkpoint: Checkpoint,
    layout: AttentionLayout,
    shape: CacheShape,
    device: torch.device,
    max_model_len: int,
    rank: Rank | None,
    beside: Room,
) -> CachePlan:
    return kv_memory.plan_cache(
        config,
        bytes_per_block=shape.bytes_per_block + beside.bytes_per_block,
        max_model_len=max_model_len,
        free=_free_memory(device, rank),
        reserve=_activation_bytes(config, checkpoint, layout, shape.dtype)
        + _unpacked_bytes(checkpoint, shape.dtype, device)
        + beside.weight_bytes,
        share=kv_memory.SHARE_OF_GPU if device.type == "cuda" else kv_memory.SHARE_OF_MACHINE,
    )


def _unpacked_bytes(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """What packing will take on a CPU: weights in their file's own format are mapped until then, and count as free."""
    mapped = device.type == "cpu" and dtype == checkpoint.stored_dtype and checkpoint.quantization is None
    return _weight_bytes(checkpoint, dtype, device) if mapped else 0


def _compiled_runner(
    config: ModelConfig, checkpoint: Checkpoint, model: Any, shape: CacheShape, max_model_len: int
) -> CompiledRunner | None:
    """For the models whose layers it knows, on processors that have its instructions; the log tells of any other."""
    if config.max_loras:
        log.info("%s runs through transformers' code: max_loras=%d", checkpoint.architecture, config.max_loras)
        return None
    plan = plan_decoder(model) if config.quantization in ("none", "int8") else None
    fmt = Format.INT8 if config.quantization == "int8" else Format(shape.dtype.itemsize)
    reason = obstacle(plan, shape, fmt) if supports(shape) else "of the sizes of its heads"
    if plan is None or reason:
        log.info("%s runs through transformers' code, because %s", checkpoint.architecture, reason)
        return None
    return CompiledRunner(
        plan,
        CpuAttention(shape, torch.get_num_threads()),
        shape,
        fmt,
        max_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        eos_token_ids=checkpoint.eos_token_ids,
        num_threads=torch.get_num_threads(),
    )


def _cache_shape(config: ModelConfig, layout: AttentionLayout, dtype: torch.dtype, num_blocks: int) -> CacheShape:
    return CacheShape(
        num_layers=layout.num_layers,
        num_heads=layout.num_heads,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        num_blocks=num_blocks,
        block_size=config.block_size,
        dtype=dtype,
        rounded=CACHE_FORMATS[config.kv_cache_dtype],
    )


def _activation_bytes(config: ModelConfig, checkpoint: Checkpoint, layout: AttentionLayout, dtype: torch.dtype) -> int:
    """Most that one step holds besides weights and cache: one layer's states, and logits with the copies that
    sampling, and reading prompts, make of them.
    """
    width = 3 * feed_forward_size(checkpoint.config) + 8 * checkpoint.config.hidden_size
    states = config.max_num_batched_tokens * width * dtype.itemsize
    read = min(MOST_LOGITS, config.max_num_batched_tokens * layout.vocab_size)
    logits = (config.max_num_seqs * layout.vocab_size + read) * (dtype.itemsize + 4 * 4)
    return int(states + logits)


def _attention(shape: CacheShape, device: torch.device) -> PagedAttention:
    if not supports(shape):
        log.warning("no CPU kernel for heads of %d in %s: attention gathers, slowly", shape.head_dim, shape.stored)
        return GatheringAttention(shape, device)
    return CpuAttention(shape, torch.get_num_threads())
