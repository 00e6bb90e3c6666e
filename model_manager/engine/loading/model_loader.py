"""Loads a model's folder into a runner of steps, the fastest one that the architecture allows; and the folder of a
smaller model that guesses for it, if the settings want one, so that both fit.

Knows no requests.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer

from ...wire.config import ModelConfig
from ...wire.errors import ConfigError
from ...wire.status import ModelInfo
from ..cpu.compiled_runner import CompiledRunner
from ..cpu.decoder_plan import DecoderPlan
from ..cpu.parameter_reader import stored_parameters
from ..interface import AdapterSlots, ModelRunner
from .checkpoint import read_checkpoint
from .compiled_loader import compiled_plan, compiled_runner, mapped_runner
from .kept_passes import KeptPass
from .kv_memory import NO_OTHER, OtherModel
from .placement import Placement
from .ranks import Rank
from .refusing import damage_named

if TYPE_CHECKING:
    from ..torch.model_runner import TorchModelRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run."""

    runner: ModelRunner
    info: ModelInfo
    adapter_slots: AdapterSlots | None = None
    """Where the settings ask for adapters."""


def load_with_draft(config: ModelConfig, folder: Path) -> tuple[LoadedModel, ModelRunner | None]:
    """The model in `folder`, and the runner of `config.draft_model` (a folder) over as many blocks.

    Raises what load_model raises, and ConfigError unless both have the same vocabulary.
    """
    if config.draft_model is None:
        return load_model(config, folder), None
    draft_folder = Path(config.draft_model)
    own = msgspec.structs.replace(
        config, model=config.draft_model, max_model_len=None, max_loras=0, speculation="off", draft_model=None
    )
    _check_tokens(config, folder, draft_folder)
    loaded = load_model(config, folder, beside=memory_of(own, draft_folder))
    runner = load_model(own, draft_folder, num_blocks=loaded.info.num_blocks).runner
    if runner.vocab_size != loaded.info.vocab_size:
        raise _other_vocabulary(config, f"{runner.vocab_size} tokens, and {config.model} has {loaded.info.vocab_size}")
    return loaded, runner


def load_model(
    config: ModelConfig,
    folder: Path,
    rank: Rank | None = None,
    *,
    beside: OtherModel = NO_OTHER,
    num_blocks: int | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder` as `config` asks, or a rank's part of it; returns once a step has run.

    `beside` is left free for another model, whose cache has as many blocks; `num_blocks`, by default all that fit, is
    what this one's cache has.

    Raises ModelError (which says what about the model or the machine is wrong) or ConfigError (which names the
    setting). float32 by default where the processor does not compute the checkpoint's own format fast.
    """
    started = time.monotonic()
    placement = Placement.choose(config, read_checkpoint(folder), rank, beside, num_blocks)
    torch.set_num_threads(placement.num_threads)
    placement.check_weights()
    with damage_named(folder, SafetensorError, OSError):
        runner, quantization = _load(placement)
        runner.warm_up()
    return LoadedModel(
        runner,
        _info(placement, runner, quantization, time.monotonic() - started),
        None if isinstance(runner, CompiledRunner) else runner.adapters,
    )


def memory_of(config: ModelConfig, folder: Path) -> OtherModel:
    """Memory that the checkpoint in `folder` will take, without loading its weights; raises as load_model does."""
    placement = Placement.choose(config, read_checkpoint(folder))
    plan = compiled_plan(placement)
    if plan is None:
        from .transformers_loader import layout_of

        layout = layout_of(placement)
    else:
        layout = plan.layout
    return OtherModel(placement.weight_bytes, placement.cache_shape(layout, num_blocks=0).bytes_per_block)


def _load(placement: Placement) -> tuple[CompiledRunner | TorchModelRunner, str]:
    """The runner, and the format of its linear layers.

    Transformers' model code is imported only here and only if needed: that takes longer than everything else.
    """
    plan = _checked_plan(placement)
    checkpoint = placement.checkpoint
    if plan and (mapped := mapped_runner(placement, plan)):
        return mapped, placement.config.quantization
    if plan and checkpoint.quantization is None:
        stored = stored_parameters(plan.shapes, checkpoint.parameters)
        if stored:
            runner = compiled_runner(placement, plan, stored, reserve=placement.weight_bytes)
            return runner, placement.config.quantization
    from .transformers_loader import TransformersModel

    model = TransformersModel(placement)
    loaded = model.give_parameters(plan) if plan else None
    if plan and loaded:
        return compiled_runner(placement, plan, loaded, reserve=placement.unpacked_bytes), model.quantization
    return model.runner(), model.quantization


def _checked_plan(placement: Placement) -> DecoderPlan | None:
    """The plan of a model, if its compiled step computes what transformers' code does; else None, as the log says."""
    plan = compiled_plan(placement)
    if plan is None:
        return None
    passed, checkpoint = KeptPass(placement, "compiled"), placement.checkpoint
    if not passed.is_kept():
        from .plan_check import disagreement

        if reason := disagreement(placement):
            log.warning("%s runs through transformers' code: compiled, %s", checkpoint.architecture, reason)
            return None
        passed.keep()
    if checkpoint.quantization is None and not checkpoint.is_text_part:
        checkpoint.kept.keep(checkpoint.architecture, checkpoint.config, plan)
    return plan


def _info(
    placement: Placement, runner: CompiledRunner | TorchModelRunner, quantization: str, load_seconds: float
) -> ModelInfo:
    config, checkpoint = placement.config, placement.checkpoint
    dtype = str(placement.dtype).removeprefix("torch.")
    return ModelInfo(
        name=config.model,
        folder=str(checkpoint.folder),
        architecture=checkpoint.architecture,
        dtype=dtype,
        device=str(placement.device),
        vocab_size=runner.vocab_size,
        max_model_len=runner.max_model_len,
        max_num_seqs=config.max_num_seqs,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        eos_token_ids=runner.eos_token_ids,
        load_seconds=load_seconds,
        quantization=quantization,
        kv_cache_dtype=dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        revision=config.revision or "",
        is_cut=runner.max_model_len < placement.max_model_len,
    )


def _check_tokens(config: ModelConfig, folder: Path, draft_folder: Path) -> None:
    """Raise ConfigError unless both tokenizers, if there are two, are equal: a guess is a token id."""
    paths = [each / "tokenizer.json" for each in (folder, draft_folder)]
    if all(path.is_file() for path in paths):
        ours, drafts = (Tokenizer.from_file(str(path)).get_vocab() for path in paths)
        if ours != drafts:
            differing = len(ours.items() ^ drafts.items())
            raise _other_vocabulary(config, f"{differing} token ids that mean something else than in {config.model}")


def _other_vocabulary(config: ModelConfig, difference: str) -> ConfigError:
    return ConfigError(f"draft_model={config.draft_model!r}: has {difference}; takes a model of the same vocabulary")
