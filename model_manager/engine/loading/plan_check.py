"""Checks that a compiled step gives the logits of transformers' code, for the very config.

Both compute a small model with the config, random weights and as many layers, each as narrow as its heads allow, in
float32. The real weights would need twice the memory, and rounding in bfloat16 or int8 would hide what a config's field
changes. That a folder's weights are the plan's is known from their names and shapes. Knows no file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...wire.errors import ModelUnsupported
from ..cpu.attention import CpuAttention
from ..cpu.compiled_runner import CompiledRunner
from ..cpu.decoder_plan import DecoderPlan, plan_decoder
from ..cpu.matrix_ops import LANES, Format
from ..cpu.parameter_reader import LoadedParameters
from ..paged_attention import CacheShape
from .own_masks import own_windows
from .placement import Placement
from .self_check import EXACT, check_against_own_attention

_BLOCK_SIZE, _NUM_BLOCKS, _MOST_TOKENS = 16, 4, 64
_VOCABULARY, _FEED_FORWARD = 256, 128
_GAIN = 1.5
"""Size of random matrices' values: scores vary by more than 1, so that what attention sees decides what it gives."""
_SPREAD = 0.2
"""Size of random norms' and biases' values."""


def disagreement(placement: Placement) -> str | None:
    """How the compiled step of a model differs from transformers' code for it; None if it does not.

    Raises ModelUnsupported for attention that the engine computes in no way.
    """
    with _one_thread():
        return _disagreement(placement)


def _disagreement(placement: Placement) -> str | None:
    model = _small_instance(placement)
    windows = own_windows(model, torch.device("cpu"), placement.max_model_len)
    plan = plan_decoder(placement.checkpoint.architecture, model.config)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if plan is None or {name: found.get(name) for name in plan.shapes} != plan.shapes:
        return "it takes other weights than transformers' code"
    planned = tuple(w if w and w < placement.max_model_len else None for w in plan.layout.windows)
    if planned != windows:
        return f"it attends with windows {planned}, and transformers' code with {windows}"
    runner = _runner(placement, plan, LoadedParameters(state))
    try:
        check_against_own_attention(model, runner, EXACT, max_tokens=_MOST_TOKENS, max_seqs=2)
    except ModelUnsupported as error:
        return str(error)
    return None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within, torch computes on one thread: for such small products threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _runner(placement: Placement, plan: DecoderPlan, parameters: LoadedParameters) -> CompiledRunner:
    layout = plan.layout
    sizes = layout.num_layers, layout.num_heads, layout.num_kv_heads, layout.head_dim
    shape = CacheShape(*sizes, num_blocks=_NUM_BLOCKS, block_size=_BLOCK_SIZE, dtype=torch.float32)
    return CompiledRunner(
        plan,
        parameters,
        CpuAttention(shape, num_threads=1),
        shape,
        Format.FLOAT32,
        max_tokens=_MOST_TOKENS,
        max_model_len=placement.max_model_len,
        eos_token_ids=[],
        num_threads=1,
    )


def _small_instance(placement: Placement) -> Any:
    """A transformers model of the checkpoint's class and, but for sizes, its config; the same at each call."""
    checkpoint = placement.checkpoint
    config = narrowed(checkpoint.transformers_config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = checkpoint.model_class._from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=_SPREAD)
                else:
                    parameter.normal_(0.0, 1.0 if "embed" in name else _GAIN * parameter.shape[1] ** -0.5)
    return model.requires_grad_(False)


def narrowed(config: Any) -> Any:
    """A copy with at most two KV heads of at most two heads each; all other widths shrink with the heads."""
    small = copy.deepcopy(config)
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    few_kv_heads = min(kv_heads, 2)
    few = few_kv_heads * min(heads // kv_heads, 2)
    hidden = config.hidden_size * few // heads
    if heads % kv_heads == 0 and config.hidden_size * few % heads == 0 and hidden % LANES == 0:
        _set(small, "num_attention_heads", few)
        _set(small, "num_key_value_heads", few_kv_heads)
        _set(small, "hidden_size", hidden)
        _set(small, "word_embed_proj_dim", hidden)
    for name in ("intermediate_size", "ffn_dim"):
        _set(small, name, min(int(getattr(small, name, 0) or 0), _FEED_FORWARD))
    _set(small, "vocab_size", min(config.vocab_size, _VOCABULARY))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(small, name, None)
    return small


def _set(config: Any, name: str, value: int) -> None:
    if getattr(config, name, None) is not None:
        setattr(config, name, value)
