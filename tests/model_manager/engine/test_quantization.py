"""Quantized weights and caches: what is refused."""

from __future__ import annotations

import pytest
import torch

from model_manager.engine.quantization import check_formats
from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quantization": "fp8"}, "quantization='fp8': not on this cpu"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8': not on this cpu"),
    ],
)
def test_a_format_that_a_device_does_not_serve_is_refused_by_the_settings_name(
    fields: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_formats(ModelConfig.parse(fields), torch.device("cpu"))
