"""Chooses the device and the number format of a model, by the settings and the machine.

Knows nothing of a model but the format of its checkpoint.
"""

from __future__ import annotations

import logging

import torch

from ...wire.config import Device, Dtype
from ...wire.errors import ConfigError

log = logging.getLogger(__name__)

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(setting: Device) -> torch.device:
    """The device to run on; raises ConfigError if the setting names one that is not there."""
    present = torch.cuda.is_available()
    if setting == "cuda" and not present:
        raise ConfigError("device='cuda': this machine has no usable CUDA device; takes 'cpu' or 'auto' here")
    return torch.device("cuda" if present and setting != "cpu" else "cpu")


def choose_dtype(setting: Dtype, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """The format to compute in: the setting, else the stored format if `device` computes it fast.

    Raises ConfigError for float16 on a CPU, where it has neither speed nor range.
    """
    if setting == "float16" and device.type == "cpu":
        raise ConfigError("dtype='float16': not on a CPU; takes 'auto', 'float32' or 'bfloat16' there")
    if setting != "auto":
        return _FORMATS[setting]
    chosen = stored if _is_fast(stored, device) else _next_best(device)
    if chosen != stored:
        log.warning("dtype auto: %s on this %s instead of the checkpoint's %s", chosen, device.type, stored)
    return chosen


def computes_bfloat16_fast() -> bool:
    """True if this processor multiplies bfloat16 in hardware (AVX512-BF16 or AMX; on Arm, BF16)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type == "cuda":
        return dtype in _FORMATS.values()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and computes_bfloat16_fast())


def _next_best(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" or computes_bfloat16_fast() else torch.float32
