"""What an engine computes in, and how long a text may be, by the settings and the model's config."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from millrace.model_manager.backends.ctranslate2 import _dtype
from millrace.model_manager.backends.model_info import computing_dtype, declared_dtype, longest
from millrace.model_manager.backends.openvino import _CAPABILITIES, _PRECISIONS, _WEIGHTS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError

OLD_CPU = {"float32", "int8", "int8_float32", "int16"}
"""Compute types of CTranslate2 on a processor without bfloat16."""
OPTIMUM_WEIGHTS = {"fp32", "fp16", "int8", "int4", "mxfp4", "nf4", "cb4"}
"""What `optimum-cli export openvino --weight-format` of optimum-intel 2.2.0 takes."""


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_auto_falls_back_to_float32_and_says_so_once(quantization: str, caplog: pytest.LogCaptureFixture) -> None:
    config = ModelConfig.parse({"backend": "ctranslate2", "quantization": quantization})
    with caplog.at_level(logging.WARNING):
        assert _dtype(config, "bfloat16", OLD_CPU) == "float32"
    (said,) = caplog.messages
    assert said == (
        "millrace-tiny: CTranslate2 does not compute in bfloat16, the checkpoint's type, on this machine: computes in"
        " float32"
    )


def test_what_is_supported_is_kept_silently(caplog: pytest.LogCaptureFixture) -> None:
    assert _dtype(ModelConfig(), "bfloat16", OLD_CPU | {"bfloat16"}) == "bfloat16"
    assert _dtype(ModelConfig(dtype="float32"), "bfloat16", OLD_CPU) == "float32"
    assert not caplog.messages


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_type_that_is_asked_for_is_refused_by_the_settings_name(quantization: str) -> None:
    config = ModelConfig.parse({"backend": "ctranslate2", "quantization": quantization, "dtype": "bfloat16"})
    with pytest.raises(ConfigError) as found:
        _dtype(config, "float32", OLD_CPU)
    assert str(found.value) == (
        "dtype='bfloat16': CTranslate2 does not compute in it on this machine: takes auto, float32"
    )


def test_int8_weights_need_the_pair_of_types() -> None:
    config = ModelConfig.parse({"backend": "ctranslate2", "quantization": "int8", "dtype": "bfloat16"})
    with pytest.raises(ConfigError, match=r"^dtype='bfloat16': "):
        _dtype(config, "bfloat16", OLD_CPU | {"bfloat16"})


def test_a_checkpoint_says_its_type_in_either_field() -> None:
    assert declared_dtype({"dtype": "bfloat16"}) == declared_dtype({"torch_dtype": "bfloat16"}) == "bfloat16"
    assert declared_dtype({}) == "float32"
    assert computing_dtype(ModelConfig(), "float64", ["float32"], "OpenVINO") == "float32"


def test_each_type_that_openvino_computes_in_has_weights_that_its_exporter_takes() -> None:
    assert _WEIGHTS.keys() == _PRECISIONS.keys() == _CAPABILITIES.keys()
    assert set(_WEIGHTS.values()) <= OPTIMUM_WEIGHTS


@pytest.mark.parametrize(
    ("setting", "fields", "found"),
    [
        (None, {"max_position_embeddings": 1024}, 1024),
        (None, {}, 2048),
        (1024, {"max_position_embeddings": 1024}, 1024),
        (8, {"max_position_embeddings": 1024}, 8),
        (100_000, {}, 100_000),
    ],
)
def test_the_longest_context_is_the_setting_or_the_models(setting: Any, fields: dict[str, Any], found: int) -> None:
    assert longest(ModelConfig(backend="openvino", max_model_len=setting), fields) == found


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    config = ModelConfig(backend="ctranslate2", max_model_len=100_000)
    with pytest.raises(ConfigError, match=r"^max_model_len=100000: this model takes at most 1024$"):
        longest(config, {"max_position_embeddings": 1024})
