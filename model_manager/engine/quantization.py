"""What a model's weights and its KV cache are rounded to: which settings a device can serve.

Knows no checkpoint.
"""

from __future__ import annotations

import torch

from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import ConfigError

CACHE_FORMATS = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""What each kv_cache_dtype rounds keys and values to."""


def check_formats(config: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError, naming the setting, for a format that `device` does not serve."""
    if config.quantization != "none":
        raise ConfigError(f"quantization={config.quantization!r}: not on this {device.type}; takes 'none' here")
    if config.kv_cache_dtype == "fp8" and device.type == "cpu":
        raise ConfigError("kv_cache_dtype='fp8': no CPU computes with it, and int8 is as small; takes 'auto' or 'int8'")
