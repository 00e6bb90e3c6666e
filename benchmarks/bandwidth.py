"""The speed of a GPU that decodes a workload and only reads: the weights, and each sequence's KV cache, once a step.

    bytes = longest output x bytes of weights + sum over sequences and their output tokens of context x KV bytes a token
    bound = output tokens / (bytes / bandwidth)

It supposes that all sequences run from the first step to their end, so that there are as many steps as the longest
output has tokens; prefill, activations and sampling count as nothing. No engine reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.large_checkpoints import CONFIGS, shapes
from benchmarks.workload import Item

BYTES_PER_SECOND = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.04e12, "L40S": 0.864e12, "L4": 0.3e12}
"""By a part of the device's name, as the vendor states them."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model in bfloat16."""

    weight_bytes: int
    """A step reads so many. An embedding table counts only where a step reads all of it."""
    kv_bytes_per_token: int


def _sizes(fields: dict[str, Any]) -> Sizes:
    """The sizes of a configuration. An embedding table counts only if it is the output layer too."""
    read = sum(math.prod(size) for size in shapes(fields).values())
    if not fields["tie_word_embeddings"]:
        read -= fields["vocab_size"] * fields["hidden_size"]
    values = 2 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * fields["head_dim"]
    return Sizes(weight_bytes=2 * read, kv_bytes_per_token=2 * values)


SIZES = {name: _sizes(fields) for name, fields in CONFIGS.items()}


def bound(items: Sequence[Item], sizes: Sizes, bytes_per_second: float) -> float:
    """Output tokens a second that memory allows."""
    contexts = sum(i.num_output * len(i.prompt_token_ids) + i.num_output * (i.num_output + 1) // 2 for i in items)
    weights = max(item.num_output for item in items) * sizes.weight_bytes
    return sum(i.num_output for i in items) * bytes_per_second / (weights + contexts * sizes.kv_bytes_per_token)


def bytes_per_second(device_name: str) -> float:
    """The stated bandwidth of a device; raises KeyError, naming it, for one that is not in the table."""
    for name, figure in BYTES_PER_SECOND.items():
        if name in device_name.split("-")[0].split():
            return figure
    raise KeyError(f"{device_name}: its bandwidth is not known here; there are {', '.join(BYTES_PER_SECOND)}")
