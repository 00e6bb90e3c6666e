"""The number of KV cache blocks: from the setting, or from the memory that is left once the weights are loaded.

The cache is only reserved here, never touched: memory is used as blocks are. Knows no torch device; what memory
there is comes in as a number.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from ...store.memory import SHARE_OF_MACHINE, USEFUL_TOKENS
from ...wire.config import ModelConfig
from ...wire.errors import ModelDoesNotFit

log = logging.getLogger(__name__)

_GIB = 2**30


@dataclass(frozen=True)
class CachePlan:
    """Size of a KV cache."""

    num_blocks: int
    max_model_len: int
    """Most tokens of one sequence; below the model's own where the cache holds fewer."""


@dataclass(frozen=True)
class OtherModel:
    """Memory that a second model beside the first takes."""

    weight_bytes: int = 0
    bytes_per_block: int = 0


NO_OTHER = OtherModel()


def plan_cache(
    config: ModelConfig,
    *,
    bytes_per_block: int,
    max_model_len: int,
    free: int,
    reserve: int,
    share: float = SHARE_OF_MACHINE,
) -> CachePlan:
    """Blocks for `config` on a device with `free` bytes; a step's activations take `reserve` of them.

    The cache takes `share` of the rest, but never more than max_num_seqs sequences of full length need. Raises
    ModelDoesNotFit, with the numbers and the setting to change, if not one sequence of useful length (or of the
    max_model_len that was asked for) fits.
    """
    budget = _budget(config, free - reserve, share)
    blocks_per_sequence = -(-max_model_len // config.block_size)
    num_blocks = min(budget // bytes_per_block, config.max_num_seqs * blocks_per_sequence)
    tokens = num_blocks * config.block_size
    needed = max_model_len if config.max_model_len is not None else min(max_model_len, USEFUL_TOKENS)
    if tokens < needed:
        raise ModelDoesNotFit(_refusal(config, bytes_per_block, budget, needed))
    if tokens < max_model_len:
        log.warning("the KV cache holds %d tokens, so max_model_len is %d, not %d", tokens, tokens, max_model_len)
    return CachePlan(num_blocks, min(max_model_len, tokens))


def check_weights(weight_bytes: int, free: int) -> None:
    """Raise ModelDoesNotFit if weights of that size exceed the memory there is."""
    if weight_bytes > free:
        raise ModelDoesNotFit(
            f"the weights take {weight_bytes / _GIB:.2f} GiB and {free / _GIB:.2f} GiB of memory are free: "
            "use a machine with more memory, a smaller model or dtype=bfloat16"
        )


def _size(count: int) -> str:
    """Bytes for people, in a unit that shows them."""
    for unit, size in (("GiB", _GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def _budget(config: ModelConfig, left: int, share: float) -> int:
    if config.kv_cache_gib is not None:
        return int(config.kv_cache_gib * _GIB)
    return max(0, int(left * share))


def _refusal(config: ModelConfig, bytes_per_block: int, budget: int, tokens: int) -> str:
    need = -(-tokens // config.block_size) * bytes_per_block
    change = (
        f"set kv_cache_gib (--kv_cache_gib) to {math.ceil(need / _GIB * 1000) / 1000} or more"
        if config.kv_cache_gib is not None
        else "use a machine with more memory, or set kv_cache_gib"
    )
    return (
        f"a KV cache for one sequence of {tokens} tokens takes {_size(need)} and {_size(budget)} are set aside for it: "
        f"{change}{' or max_model_len lower' if config.max_model_len is not None else ''}"
    )
