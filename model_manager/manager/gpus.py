"""The GPUs and cores of the machine, and the share of each engine of a model. Asks the driver's files, so needs no
torch.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ConfigError

_DRIVER_WITHIN = 10.0
"""Seconds to wait for nvidia-smi."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineSetup:
    """What one engine is started with: its settings and its GPUs."""

    config: ModelConfig
    gpus: tuple[str, ...] = ()
    """GPUs as CUDA_VISIBLE_DEVICES names them; empty for an engine on the CPU."""


def visible_gpus(
    environment: Mapping[str, str] = os.environ,
    drivers: Path = Path("/proc/driver/nvidia/gpus"),
    devices: Path = Path("/dev"),
) -> tuple[str, ...]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives or takes."""
    # a sandbox such as gVisor shows the device files alone
    found = list(drivers.glob("*")) or list(devices.glob("nvidia[0-9]*"))
    present = [str(index) for index, _ in enumerate(found)]
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or not present:
        return tuple(present)
    names = [name.strip() for name in named.split(",")]
    end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:end])  # CUDA too ignores the entries after an invalid one


def gpu_memory(gpus: Sequence[str]) -> dict[str, int]:
    """Bytes of each GPU's memory, by the names that `visible_gpus` gives; nothing where the driver does not tell."""
    if not gpus:
        return {}
    query = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=_DRIVER_WITHIN, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]
        sizes = {name: int(mib) * 2**20 for index, uuid, mib in rows for name in (index, uuid)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("the GPUs' memory is not known, so models on them are not counted: %s", error)
        return {}
    return {gpu: sizes[gpu] for gpu in gpus if gpu in sizes}


def engine_setups(config: ModelConfig, gpus: Sequence[str], cores: int) -> list[EngineSetup]:
    """A setup for each engine of the model. The number is `num_engines`; by default as many as the GPUs allow with
    `tensor_parallel` GPUs each, or one on the CPU.

    Engines on the CPU divide its `cores`, unless num_threads says otherwise. Raises ConfigError, with what the machine
    has, when there are not GPUs enough for the engines asked for.
    """
    if not BACKENDS[config.backend].uses_gpus or config.device == "cpu" or not gpus:
        return _on_cpu(config, cores)
    each = config.tensor_parallel
    count = config.num_engines or max(1, len(gpus) // each)
    if count * each > len(gpus):
        raise ConfigError(
            f"num_engines={count} with tensor_parallel={each} takes {count * each} GPUs: this machine has {len(gpus)}"
        )
    return [EngineSetup(config, tuple(gpus[index * each : (index + 1) * each])) for index in range(count)]


def _on_cpu(config: ModelConfig, cores: int) -> list[EngineSetup]:
    count = config.num_engines or 1
    processes = count * config.tensor_parallel
    if config.num_threads is None:
        config = msgspec.structs.replace(config, num_threads=max(1, cores // processes))
    return [EngineSetup(config)] * count
