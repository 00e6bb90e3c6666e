"""The table of back ends: what a setting or a parameter that one lacks is told, before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("backend", "setting", "value", "takes"),
    [
        ("ctranslate2", "quantization", "int4", "none, int8"),
        ("ctranslate2", "quantization", "fp8", "none, int8"),
        ("openvino", "quantization", "fp8", "none, int8, int4"),
        ("openvino", "kv_cache_dtype", "fp8", "auto, int8"),
        ("openvino", "kv_cache_gib", 0.3, "whole numbers, 1 or more"),
        ("openvino", "kv_cache_gib", 2.5, "whole numbers, 1 or more"),
    ],
)
def test_a_value_that_an_engine_would_ignore_is_refused(backend: str, setting: str, value: Any, takes: str) -> None:
    with pytest.raises(ConfigError) as found:
        ModelConfig.parse({"backend": backend, setting: value})
    assert str(found.value) == f"{setting}={value!r}: the back end {backend} takes {takes}"


def test_adapters_are_refused_by_an_engine_that_has_none() -> None:
    with pytest.raises(ConfigError, match=r"^max_loras=2: the back end openvino does not take it; .* do: torch, vllm,"):
        ModelConfig.parse({"backend": "openvino", "max_loras": 2})


def test_values_that_an_engine_takes_are_taken() -> None:
    ModelConfig.parse({"backend": "openvino", "kv_cache_gib": 2.0, "quantization": "int4", "kv_cache_dtype": "int8"})
    ModelConfig.parse({"backend": "vllm", "kv_cache_gib": 0.3})
