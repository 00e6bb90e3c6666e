"""What a model's weights and its KV cache are rounded to: which settings a device can serve.

Knows no checkpoint.
"""

from __future__ import annotations

import torch

from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import ConfigError


def check_formats(config: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError, naming the setting, for a format that `device` does not serve."""
    if config.quantization != "none":
        raise ConfigError(f"quantization={config.quantization!r}: not on this {device.type}; takes 'none' here")
    if config.kv_cache_dtype != "auto":
        raise ConfigError(f"kv_cache_dtype={config.kv_cache_dtype!r}: not on this {device.type}; takes 'auto' here")
