"""Loads a model with transformers' modules, our attention, and packed or rounded linear layers.

Knows no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.distributed.configuration_utils import DistributedConfig

from ...wire.errors import ModelCorrupt
from ..cpu.attention import CpuAttention, supports
from ..cpu.decoder_plan import DecoderPlan
from ..cpu.parameter_reader import LoadedParameters
from ..cuda.runner import cuda_runner
from ..lora.adapted_linear import LoraLayers
from ..paged_attention import AttentionLayout, CacheShape, PagedAttention
from ..quantization.precision import in_force, keeps, put_in, round_linears
from ..quantization.stored_formats import Weight
from ..quantization.stored_weights import read_weights
from ..torch import attention_hook, falcon
from ..torch.attention_hook import IMPLEMENTATION
from ..torch.gathering_attention import GatheringAttention
from ..torch.linear import can_pack, pack_linears
from ..torch.model_runner import TorchModelRunner
from ..torch.plain_linears import make_linears_plain
from .architectures import OTHER_PARTS, TEXT_PART_KEYS
from .attention_probe import probe_attention
from .checkpoint import Checkpoint
from .kept_passes import KeptPass
from .own_masks import check_windows
from .placement import Placement
from .refusing import damage_named
from .self_check import check_against_own_attention, tolerance

log = logging.getLogger(__name__)

_CHECKED_BLOCKS = 6
"""Blocks of a KV cache that holds a check's tokens."""


class TransformersModel:
    """A model in memory."""

    def __init__(self, placement: Placement) -> None:
        """Raises ModelError, which says what is wrong with the checkpoint or the machine."""
        self._placement = placement
        source = _source(placement)
        self._model = _load_weights(placement.checkpoint, source, placement.dtype, placement.device)
        self.quantization = in_force(placement.config.quantization, source.kept)
        """The format of its linear layers."""
        self._is_plain = not source.kept
        make_linears_plain(self._model)

    def give_parameters(self, plan: DecoderPlan) -> LoadedParameters | None:
        """The parameters of `plan`, which gives up this model; None, changing nothing, if the model differs from the
        plan.
        """
        state: dict[str, torch.Tensor] = self._model.state_dict()
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        head = self._model.get_output_embeddings().weight
        if plan.is_tied and head.data_ptr() == state[plan.tokens].data_ptr():
            del found["lm_head.weight"]
        if not (self._is_plain and found == plan.shapes):
            log.info("%s runs through transformers' code, as its weights came", self._placement.checkpoint.architecture)
            return None
        del self._model
        return LoadedParameters(state)

    def runner(self) -> TorchModelRunner:
        """What computes the model's steps."""
        model, placement = self._model, self._placement
        layout = probe_attention(model, placement.device, placement.max_model_len)
        passed = KeptPass(placement, "transformers' modules")
        if passed.is_kept():
            return _runner(model, placement, layout)
        check_windows(model, layout, placement.device, placement.max_model_len)
        runner = _runner(model, placement, layout)
        self._check(runner, layout)
        passed.keep()
        return runner

    def _check(self, runner: TorchModelRunner, layout: AttentionLayout) -> None:
        """Check the runner. On a CPU keys and values are not rounded meanwhile: that would hide differences."""
        config, placement = self._placement.config, self._placement
        rounds_cache = config.kv_cache_dtype != "auto"
        rounds_weights = self.quantization != "none"
        if placement.device.type == "cuda":
            within = tolerance(self._model, rounds_weights=rounds_weights, rounds_cache=rounds_cache)
            check_against_own_attention(
                self._model,
                runner,
                within,
                max_tokens=config.max_num_batched_tokens,
                max_seqs=config.max_num_seqs,
                as_written=runner.as_written,
            )
            return
        shape = replace(placement.cache_shape(layout, min(runner.num_blocks, _CHECKED_BLOCKS)), rounded=None)
        within = tolerance(self._model, rounds_weights=rounds_weights, rounds_cache=False)
        with runner.attending_with(_attention(shape, placement.device) if rounds_cache else None):
            check_against_own_attention(self._model, runner, within, max_tokens=64, max_seqs=2)


def layout_of(placement: Placement) -> AttentionLayout:
    """The attention layout of the checkpoint's model, without its weights."""
    _register()
    return probe_attention(_without_weights(placement.checkpoint), torch.device("meta"), placement.max_model_len)


def _without_weights(checkpoint: Checkpoint) -> Any:
    """The model as its config describes it, on torch's device `meta`: it takes no memory."""
    with torch.device("meta"):
        return checkpoint.model_class._from_config(checkpoint.transformers_config, attn_implementation=IMPLEMENTATION)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Within, transformers shows no progress bars and no advice; what matters is raised as errors here."""
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
class _WeightSource:
    """Where transformers is to take a model's weights from."""

    arguments: dict[str, Any]
    """Arguments for from_pretrained."""
    kept: dict[str, Weight]
    """Weights that stay quantized, by layer."""


def _source(placement: Placement) -> _WeightSource:
    """The folder, where each rank reads its part; for a quantized checkpoint, the tensors of its files."""
    checkpoint, world = placement.checkpoint, placement.world
    if checkpoint.quantization is None:
        divided = {"distributed_config": DistributedConfig(tp_size=world)} if world > 1 else {}
        return _WeightSource({"pretrained_model_name_or_path": checkpoint.folder, **divided}, {})
    with torch.device("meta"):
        model = checkpoint.model_class(checkpoint.transformers_config)
    linears = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    keep: Callable[[Weight], bool] = keeps(placement.config.quantization, placement.device)
    stored = read_weights(checkpoint.folder, checkpoint.quantization, placement.dtype, linears, keep)
    return _WeightSource({"pretrained_model_name_or_path": None, "state_dict": stored.state}, stored.kept)


def _load_weights(checkpoint: Checkpoint, source: _WeightSource, dtype: torch.dtype, device: torch.device) -> Any:
    """The transformers model, in eval mode, its attention ours.

    Raises ModelCorrupt unless every weight is there, ModelDoesNotFit if memory ran out after all.
    """
    _register()
    signs = (SafetensorError, OSError, ValueError, RuntimeError, KeyError)
    with damage_named(checkpoint.folder, *signs), _quiet_transformers():
        _check_count(checkpoint)
        model, report = checkpoint.model_class.from_pretrained(
            **source.arguments,
            config=checkpoint.transformers_config,
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


def _check_count(checkpoint: Checkpoint) -> None:
    """Raises ModelCorrupt before memory is taken, if the model has far more parameters than the files.

    Up to twice as many may be: transformers says below which are missing, and may tie some of them.
    """
    count = sum(each.numel() for each in _without_weights(checkpoint).parameters())
    held = checkpoint.most_parameters
    if count > 2 * held:
        raise ModelCorrupt(
            f"{checkpoint.folder}: config.json describes {count:,} parameters, and the files hold {held:,}"
        )


def _register() -> None:
    """Make our attention known to transformers' models."""
    attention_hook.register()
    falcon.register()


def _check_report(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if checkpoint.is_text_part:
            names = [name for name in names if not name.startswith(OTHER_PARTS)]
        if names:
            some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            raise ModelCorrupt(f"{checkpoint.folder}: {kind.removesuffix('_keys')} weights ({len(names):,}): {some}")


def _runner(model: Any, placement: Placement, layout: AttentionLayout) -> TorchModelRunner:
    config, device, dtype = placement.config, placement.device, placement.dtype
    adapters = LoraLayers(model, config, dtype, device) if config.max_loras else None
    reserve = (adapters.most_bytes if adapters else 0) + placement.unpacked_bytes
    cache = placement.plan_cache(layout, reserve)
    log.info("KV cache: %d blocks of %d tokens", cache.num_blocks, config.block_size)
    round_linears(model, config.quantization)
    if placement.is_whole_on_cpu:
        if can_pack(dtype):
            pack_linears(model, config.max_num_seqs)
        _let_go_of_files(model)
    if adapters:
        adapters.stand_in(model)  # last: packing and rounding must find the plain layers
    shape = placement.cache_shape(layout, cache.num_blocks)
    sizes: dict[str, Any] = {
        "device": device,
        "vocab_size": layout.vocab_size,
        "max_model_len": cache.max_model_len,
        "num_blocks": cache.num_blocks,
        "block_size": config.block_size,
        "eos_token_ids": placement.checkpoint.eos_token_ids,
        "adapters": adapters,
    }
    if device.type == "cuda":
        return cuda_runner(model, config, shape, captures=placement.rank is None, **sizes)
    return TorchModelRunner(model, _attention(shape, device), **sizes)


def _let_go_of_files(model: torch.nn.Module) -> None:
    """Copy what is left of the weights as loaded: each is a view of a whole mapped file, which stays while one does."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _attention(shape: CacheShape, device: torch.device) -> PagedAttention:
    if not supports(shape):
        log.warning("no CPU kernel for heads of %d in %s: attention gathers, slowly", shape.head_dim, shape.stored)
        return GatheringAttention(shape, device)
    return CpuAttention(shape, torch.get_num_threads())
