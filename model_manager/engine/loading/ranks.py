"""One model divided among processes, each with a GPU (or CPU cores), by transformers' tensor-parallel plan.

Every rank holds its share of the weights and the KV cache of its heads. The model's code sums what they compute, so all
ranks have the logits. Rank 0 (leader.py) is the engine's process, the others (peer.py) follow it. They wait for steps
at a pipe, because a collective would time out while the engine is idle.
"""

from __future__ import annotations

import os
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from ...wire.config import ModelConfig
from ...wire.errors import ConfigError

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Rank:
    """One process's part in the group."""

    index: int
    world: int
    device: torch.device

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers; all ranks must call this."""
        numbers = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
        return int(numbers.item())


def join(meeting: Path, index: int, world: int, device: torch.device) -> Rank:
    """Join the group that meets in the file `meeting`; returns when all ranks are there."""
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(world)}  # read by transformers
    if device.type == "cuda":
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=index, world_size=world)
    return Rank(index, world, device)


def check_divisible(model: Any, config: ModelConfig, *, is_quantized: bool = False) -> None:
    """Raise ConfigError unless a model with this transformers config can be divided as `config` says.

    `is_quantized`: its checkpoint is.
    """
    text, count = model.get_text_config(decoder=True), config.tensor_parallel
    if config.quantization != "none":
        raise ConfigError(f"tensor_parallel={count}: takes 1 with quantization={config.quantization!r}")
    if is_quantized:
        raise ConfigError(f"tensor_parallel={count}: takes 1 with a quantized checkpoint")
    if config.draft_model is not None:
        raise ConfigError(f"tensor_parallel={count}: takes 1 with draft_model={config.draft_model!r}")
    if not getattr(model, "base_model_tp_plan", None):
        raise ConfigError(f"tensor_parallel={count}: transformers has no plan for {model.model_type} models; takes 1")
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if kv_heads % count or text.num_attention_heads % count:
        raise ConfigError(f"tensor_parallel={count}: takes a divisor of this model's {kv_heads} KV heads")


def send(pipe: IO[bytes], command: object) -> None:
    """Send a command to the process at the other end, which calls `receive`."""
    body = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next command of rank 0; EOFError when rank 0 is gone."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    return pickle.loads(pipe.read(length))
